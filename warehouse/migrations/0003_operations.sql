-- What the running system did: minutes per model and per vGPU, rollouts and their steps.

CREATE TABLE model_minutes (
    instance    VARCHAR NOT NULL,            -- running system
    model       VARCHAR NOT NULL,
    minute      TIMESTAMPTZ NOT NULL,
    plan_id     VARCHAR NOT NULL,
    offered     BIGINT NOT NULL,
    served      BIGINT NOT NULL,             -- in time
    late        BIGINT NOT NULL,
    dropped     BIGINT NOT NULL,
    failed      BIGINT NOT NULL,
    batches     BIGINT NOT NULL,
    samples     BIGINT NOT NULL,             -- in those batches
    latency_sum_us BIGINT NOT NULL,          -- over answered requests
    PRIMARY KEY (instance, model, minute, plan_id)
);

CREATE TABLE vgpu_minutes (
    instance      VARCHAR NOT NULL,
    plan_id       VARCHAR NOT NULL,
    vgpu          INTEGER NOT NULL,          -- numbered as in the plan
    model         VARCHAR NOT NULL,
    stage         INTEGER NOT NULL,
    gpu_class     VARCHAR NOT NULL,
    minute        TIMESTAMPTZ NOT NULL,
    batches       BIGINT NOT NULL,
    busy_us       BIGINT NOT NULL,           -- measured
    profiled_us   BIGINT NOT NULL,           -- the same batches by the plan's table
    PRIMARY KEY (instance, plan_id, vgpu, minute)
);

CREATE TABLE ingested_files (
    path        VARCHAR NOT NULL,
    digest      VARCHAR NOT NULL,
    rows        BIGINT NOT NULL,
    ingested_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (path, digest)
);

CREATE TABLE rollouts (
    rollout_id  VARCHAR PRIMARY KEY,
    plan_id     VARCHAR NOT NULL,
    former_plan_id VARCHAR,
    state       VARCHAR NOT NULL,
    requested_by VARCHAR NOT NULL,
    reason      VARCHAR NOT NULL,
    outcome     VARCHAR,
    started_at  TIMESTAMPTZ NOT NULL,
    changed_at  TIMESTAMPTZ NOT NULL
);

CREATE TABLE rollout_steps (
    rollout_id VARCHAR NOT NULL,
    step       VARCHAR NOT NULL,
    detail     VARCHAR NOT NULL,
    seconds    DOUBLE NOT NULL,
    done_at    TIMESTAMPTZ NOT NULL
);

CREATE VIEW attainment_by_hour AS
SELECT model,
       date_trunc('hour', minute) AS hour,
       sum(offered)::BIGINT AS offered,
       sum(served)::BIGINT AS served,
       sum(served) / nullif(sum(offered), 0) AS attainment,
       sum(offered) / 3600.0 AS mean_rps
FROM model_minutes GROUP BY model, hour;

CREATE VIEW latency_drift AS
SELECT plan_id, model, stage, vgpu, gpu_class,
       date_trunc('hour', minute) AS hour,
       sum(batches)::BIGINT AS batches,
       sum(busy_us) / nullif(sum(profiled_us), 0) AS measured_over_profiled
FROM vgpu_minutes GROUP BY ALL;
