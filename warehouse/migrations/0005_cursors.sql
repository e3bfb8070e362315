-- How far the files of a source of statistics were read, and what was open there: requests without
-- an outcome and minutes that have not ended. It changes together with the rows it led to.

CREATE TABLE ingest_cursors (
    source     VARCHAR PRIMARY KEY,          -- one life of one gateway
    document   JSON NOT NULL,                -- the reader's own
    changed_at TIMESTAMPTZ NOT NULL
);
