-- Cells by share of a GPU and by what its neighbours did; how parts of a GPU slow each other down.

CREATE TEMP TABLE former_cells AS SELECT * FROM cells;
DROP VIEW newest_cells;
DROP TABLE cells;

CREATE TABLE cells (
    model_key   VARCHAR NOT NULL,
    block       INTEGER NOT NULL,
    gpu_class   VARCHAR NOT NULL,
    share       INTEGER NOT NULL,            -- of a GPU, in 300ths
    basis       VARCHAR NOT NULL,            -- loaded: equal copies kept the other parts busy; solo: idle
    batch       INTEGER NOT NULL,
    artifact    VARCHAR,                     -- NULL for imported tables
    mean_us     DOUBLE NOT NULL,
    p50_us      DOUBLE,
    p99_us      DOUBLE,
    runs        INTEGER,
    interval    DOUBLE,                      -- relative half-width of the 95 % interval of the mean
    measured_at TIMESTAMPTZ NOT NULL
);

INSERT INTO cells
SELECT model_key, block, gpu_class, 300 // vgpu_divisor, 'loaded', batch,
       artifact, mean_us, p50_us, p99_us, runs, interval, measured_at
FROM former_cells ORDER BY rowid;
DROP TABLE former_cells;

CREATE VIEW newest_cells AS
SELECT *, CASE WHEN share IN (300, 150, 100, 75) THEN 300 // share END AS vgpu_divisor FROM cells
QUALIFY artifact IS NOT DISTINCT FROM first_value(artifact) OVER (
        PARTITION BY model_key, block, gpu_class ORDER BY measured_at DESC, rowid DESC
    )
    AND row_number() OVER (
        PARTITION BY model_key, block, gpu_class, share, basis, batch
        ORDER BY measured_at DESC, rowid DESC
    ) = 1;

-- What a model uses of a GPU while it runs alone on a share; the newest counts.
CREATE TABLE utilisations (
    model_key   VARCHAR NOT NULL,
    gpu_class   VARCHAR NOT NULL,
    share       INTEGER NOT NULL,            -- of a GPU, in 300ths
    block       INTEGER,                     -- NULL: every block
    batch       INTEGER NOT NULL,
    l2          DOUBLE NOT NULL,             -- fraction of what the GPU can do
    dram        DOUBLE NOT NULL,
    measured_at TIMESTAMPTZ NOT NULL
);

-- Two models that ran side by side on one GPU; the newest counts.
CREATE TABLE pairs (
    gpu_class    VARCHAR NOT NULL,
    model_1      VARCHAR NOT NULL,           -- by name
    batch_1      INTEGER NOT NULL,
    share_1      INTEGER NOT NULL,
    model_2      VARCHAR NOT NULL,
    batch_2      INTEGER NOT NULL,
    share_2      INTEGER NOT NULL,
    latency_1_us DOUBLE,                     -- beside the other; NULL where only the other was measured
    latency_2_us DOUBLE,
    measured_at  TIMESTAMPTZ NOT NULL
);

-- Interference models of GPU classes (gpulets, section 4.4); the newest of a class is planned with.
CREATE TABLE interference_models (
    gpu_class     VARCHAR NOT NULL,
    c1_l2_self    DOUBLE NOT NULL,
    c2_l2_other   DOUBLE NOT NULL,
    c3_dram_self  DOUBLE NOT NULL,
    c4_dram_other DOUBLE NOT NULL,
    c5            DOUBLE NOT NULL,
    residuals     DOUBLE[] NOT NULL,         -- relative errors at quantiles; empty where not known
    source        VARCHAR NOT NULL,          -- file or folder it came from, or what it was fitted to
    added_at      TIMESTAMPTZ NOT NULL
);
