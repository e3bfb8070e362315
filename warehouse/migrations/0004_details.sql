-- What the first three left out: parts of runs for pictures, what-if curves, builds that failed,
-- and drops by reason. Views answer the questions that need no table of their own.

-- Whole-number columns of a run, by name ("latency_us/<model>", "uses/vgpu"): what pictures show.
CREATE TABLE run_series (
    run_id VARCHAR NOT NULL,
    series VARCHAR NOT NULL,
    items  BIGINT[] NOT NULL,
    PRIMARY KEY (run_id, series)
);

-- One point of a what-if curve, in order within its run.
CREATE TABLE whatif_rows (
    run_id    VARCHAR NOT NULL,
    position  INTEGER NOT NULL,
    varied    VARCHAR NOT NULL,            -- for instance slo_scale
    setting   VARCHAR NOT NULL,            -- as given, for instance 2.5 or 40+60
    objective DOUBLE,                      -- NULL where no plan exists
    document  JSON NOT NULL,               -- further figures of the point
    PRIMARY KEY (run_id, position)
);

-- Stages that could not be built for a class; the planner has no cells of them.
CREATE TABLE build_failures (
    model_key   VARCHAR NOT NULL,
    first_block INTEGER NOT NULL,
    last_block  INTEGER NOT NULL,          -- exclusive
    gpu_class   VARCHAR NOT NULL,
    runtime     VARCHAR NOT NULL,
    reason      VARCHAR NOT NULL,
    failed_at   TIMESTAMPTZ NOT NULL
);

CREATE TABLE drop_minutes (
    instance VARCHAR NOT NULL,
    model    VARCHAR NOT NULL,
    minute   TIMESTAMPTZ NOT NULL,
    reason   VARCHAR NOT NULL,
    dropped  BIGINT NOT NULL,
    PRIMARY KEY (instance, model, minute, reason)
);

ALTER TABLE vgpu_minutes ADD COLUMN vgpu_divisor INTEGER DEFAULT 1;

-- Cells of an artifact that was rebuilt since are left out: latencies of two builds never mix.
CREATE OR REPLACE VIEW newest_cells AS
SELECT * FROM cells
QUALIFY artifact IS NOT DISTINCT FROM first_value(artifact) OVER (
        PARTITION BY model_key, block, gpu_class ORDER BY measured_at DESC, rowid DESC
    )
    AND row_number() OVER (
        PARTITION BY model_key, block, gpu_class, vgpu_divisor, batch
        ORDER BY measured_at DESC, rowid DESC
    ) = 1;

-- Outcome of every model of every run that offered requests.
CREATE VIEW run_models AS
SELECT runs.run_id, runs.kind, runs.plan_id, runs.added_at, model.key AS model,
       (model.value ->> '$.offered')::BIGINT AS offered,
       (model.value ->> '$.served')::BIGINT AS served,
       (model.value ->> '$.late')::BIGINT AS late,
       (model.value ->> '$.dropped')::BIGINT AS dropped,
       coalesce((model.value ->> '$.failed')::BIGINT, 0) AS failed,
       (model.value ->> '$.attainment')::DOUBLE AS attainment,
       (model.value ->> '$.latency_ms.p50')::DOUBLE AS p50_ms,
       (model.value ->> '$.latency_ms.p99')::DOUBLE AS p99_ms
FROM runs, json_each(runs.result, '$.models') AS model
WHERE json_type(runs.result, '$.models') = 'OBJECT'
  AND json_exists(model.value, '$.offered');

-- What a plan was for, beside its key columns.
CREATE VIEW plan_inputs AS
SELECT plan_id, document ->> '$.cluster.name' AS cluster,
       document ->> '$.solver' AS solver,
       (document ->> '$.solve_seconds')::DOUBLE AS solve_seconds,
       document -> '$.cluster' AS cluster_document,
       document -> '$.workload' AS workload_document
FROM plans;

CREATE VIEW plan_gpus AS
SELECT plans.plan_id, used.key AS gpu_class, used.value::INTEGER AS gpus
FROM plans, json_each(plans.document, '$.gpus_used') AS used;

CREATE VIEW rates_by_minute AS
SELECT minute, model, sum(offered) / 60.0 AS offered_rps, sum(served) / 60.0 AS served_rps
FROM model_minutes GROUP BY minute, model;

-- GPUs kept busy, a vGPU of divisor v counting 1/v, beside those the plan holds.
CREATE VIEW gpus_by_hour AS
WITH busy AS (
    SELECT minute, plan_id, gpu_class, sum(busy_us / vgpu_divisor) / 60e6 AS gpus_busy
    FROM vgpu_minutes GROUP BY minute, plan_id, gpu_class
)
SELECT busy.plan_id, gpu_class, date_trunc('hour', minute) AS hour,
       avg(gpus_busy) AS gpus_busy, any_value(gpus) AS gpus_planned
FROM busy LEFT JOIN plan_gpus USING (plan_id, gpu_class)
GROUP BY busy.plan_id, gpu_class, hour;
