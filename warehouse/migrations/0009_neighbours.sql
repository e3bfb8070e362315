-- Runs of whole models side by side on one GPU, as the running system measured them: interference is learnt from them.

CREATE TABLE neighbour_minutes (
    instance      VARCHAR NOT NULL,
    gpu_class     VARCHAR NOT NULL,
    model         VARCHAR NOT NULL,          -- whose runs these are
    batch         INTEGER NOT NULL,          -- samples in a run
    share         INTEGER NOT NULL,          -- of a GPU, in 300ths
    beside_model  VARCHAR NOT NULL,          -- what kept the other vGPU of the GPU busy meanwhile
    beside_batch  INTEGER NOT NULL,
    beside_share  INTEGER NOT NULL,
    minute        TIMESTAMPTZ NOT NULL,
    runs          BIGINT NOT NULL,
    busy_us       BIGINT NOT NULL,           -- of those runs together
    PRIMARY KEY (instance, gpu_class, model, batch, share, beside_model, beside_batch, beside_share, minute)
);
