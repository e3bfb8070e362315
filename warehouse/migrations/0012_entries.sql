-- Requests by the entry of a model that they came in at: replanning learns rates of entries from them.

CREATE TABLE entry_minutes (
    instance      VARCHAR NOT NULL,
    model         VARCHAR NOT NULL,
    entry         VARCHAR NOT NULL,
    block         INTEGER NOT NULL,
    budget_us     BIGINT NOT NULL,
    minute        TIMESTAMPTZ NOT NULL,
    plan_id       VARCHAR NOT NULL,
    offered       BIGINT NOT NULL,
    PRIMARY KEY (instance, model, entry, minute, plan_id)
);

COMMENT ON TABLE entry_minutes IS 'Requests per entry of a model, per minute.';
COMMENT ON COLUMN entry_minutes.instance IS 'Running system.';
COMMENT ON COLUMN entry_minutes.model IS 'Name of the model.';
COMMENT ON COLUMN entry_minutes.entry IS 'Name of the entry in the plan of that minute.';
COMMENT ON COLUMN entry_minutes.block IS 'First block that runs for these requests.';
COMMENT ON COLUMN entry_minutes.budget_us IS 'Time from arrival to answer in µs.';
COMMENT ON COLUMN entry_minutes.minute IS 'Minute in which the requests arrived.';
COMMENT ON COLUMN entry_minutes.plan_id IS 'Id of the plan.';
COMMENT ON COLUMN entry_minutes.offered IS 'Requests offered.';
