-- A vGPU may serve several stages, of several models: its minutes are counted by model and stage.
-- Sizes of vGPUs are whole 300ths of a GPU, as plans have them, and no longer divisors only.

CREATE TEMP TABLE former_vgpu_minutes AS SELECT * FROM vgpu_minutes;
DROP VIEW latency_drift;
DROP VIEW gpus_by_hour;
DROP TABLE vgpu_minutes;

CREATE TABLE vgpu_minutes (
    instance      VARCHAR NOT NULL,
    plan_id       VARCHAR NOT NULL,
    vgpu          INTEGER NOT NULL,          -- numbered as in the plan
    pool          VARCHAR,                   -- its name; NULL in rows from before pools had any
    model         VARCHAR NOT NULL,          -- of the batches
    stage         INTEGER NOT NULL,
    gpu_class     VARCHAR NOT NULL,
    share         INTEGER NOT NULL,          -- of a GPU, in 300ths
    minute        TIMESTAMPTZ NOT NULL,
    batches       BIGINT NOT NULL,
    busy_us       BIGINT NOT NULL,           -- measured
    profiled_us   BIGINT NOT NULL,           -- the same batches by the plan's table
    PRIMARY KEY (instance, plan_id, vgpu, model, stage, minute)
);

INSERT INTO vgpu_minutes
SELECT instance, plan_id, vgpu, NULL, model, stage, gpu_class, 300 // vgpu_divisor,
       minute, batches, busy_us, profiled_us
FROM former_vgpu_minutes;
DROP TABLE former_vgpu_minutes;

CREATE VIEW latency_drift AS
SELECT plan_id, model, stage, vgpu, gpu_class,
       date_trunc('hour', minute) AS hour,
       sum(batches)::BIGINT AS batches,
       sum(busy_us) / nullif(sum(profiled_us), 0) AS measured_over_profiled
FROM vgpu_minutes GROUP BY ALL;

-- GPUs kept busy, a vGPU counting as its share of one, beside those the plan holds.
CREATE VIEW gpus_by_hour AS
WITH busy AS (
    SELECT minute, plan_id, gpu_class, sum(busy_us * share) / 300 / 60e6 AS gpus_busy
    FROM vgpu_minutes GROUP BY minute, plan_id, gpu_class
)
SELECT busy.plan_id, gpu_class, date_trunc('hour', minute) AS hour,
       avg(gpus_busy) AS gpus_busy, any_value(gpus) AS gpus_planned
FROM busy LEFT JOIN plan_gpus USING (plan_id, gpu_class)
GROUP BY busy.plan_id, gpu_class, hour;
