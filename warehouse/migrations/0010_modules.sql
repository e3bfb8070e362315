-- Rows that modules of applications ran, as the running system counted them: rows per request are learnt from them.

CREATE TABLE module_minutes (
    instance      VARCHAR NOT NULL,
    application   VARCHAR NOT NULL,
    module        VARCHAR NOT NULL,
    minute        TIMESTAMPTZ NOT NULL,      -- in which the requests arrived
    plan_id       VARCHAR NOT NULL,
    samples       BIGINT NOT NULL,           -- of requests for which it was known how many rows the module runs
    rows          BIGINT NOT NULL,           -- of those; a request of two samples may have twice as many
    PRIMARY KEY (instance, application, module, minute, plan_id)
);
