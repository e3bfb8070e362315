-- Plans, what was done with them, and figures of benchmarks.

CREATE TABLE plans (
    plan_id     VARCHAR PRIMARY KEY,
    planner     VARCHAR NOT NULL,
    objective   VARCHAR NOT NULL,
    value       DOUBLE NOT NULL,
    upper_bound DOUBLE NOT NULL,
    gap         DOUBLE NOT NULL,
    gpus        INTEGER NOT NULL,
    document    JSON NOT NULL,               -- plan.json, whole
    added_at    TIMESTAMPTZ NOT NULL
);

CREATE TABLE runs (
    run_id   VARCHAR PRIMARY KEY,
    kind     VARCHAR NOT NULL,               -- simulate, load, quickstart, whatif, backtest
    plan_id  VARCHAR,
    options  JSON NOT NULL,
    result   JSON NOT NULL,
    report   VARCHAR,                        -- page written for it
    added_at TIMESTAMPTZ NOT NULL
);

CREATE TABLE figures (
    benchmark   VARCHAR NOT NULL,
    name        VARCHAR NOT NULL,
    value       DOUBLE NOT NULL,
    unit        VARCHAR NOT NULL,
    target      VARCHAR,                     -- as written in the table, for instance "<= 5"
    machine     JSON NOT NULL,
    versions    JSON NOT NULL,
    measured_at TIMESTAMPTZ NOT NULL
);
