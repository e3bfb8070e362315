-- Models as they were split, and what was measured of their blocks.
-- Rows are only ever added; the newest one counts.

CREATE TABLE models (
    model_key          VARCHAR PRIMARY KEY,  -- hash of content and split, or of imported tables
    name               VARCHAR NOT NULL,
    source             VARCHAR NOT NULL,     -- file or folder it came from
    folder             VARCHAR,              -- split on disk; NULL for imported tables
    blocks             INTEGER NOT NULL,
    boundary_bytes     BIGINT[] NOT NULL,    -- bytes per sample after block i
    block_memory_bytes BIGINT[] NOT NULL,    -- empty where not known
    tensors            JSON NOT NULL,        -- {"inputs": [], "outputs": [], "boundaries": [[]]}
    block_times_us     DOUBLE[] NOT NULL,    -- estimates used for splitting; empty where not known
    added_at           TIMESTAMPTZ NOT NULL
);

CREATE TABLE cells (
    model_key    VARCHAR NOT NULL,
    block        INTEGER NOT NULL,
    gpu_class    VARCHAR NOT NULL,
    vgpu_divisor INTEGER NOT NULL,
    batch        INTEGER NOT NULL,
    artifact     VARCHAR,                    -- NULL for imported tables
    mean_us      DOUBLE NOT NULL,
    p50_us       DOUBLE,
    p99_us       DOUBLE,
    runs         INTEGER,
    interval     DOUBLE,                     -- relative half-width of the 95 % interval of the mean
    measured_at  TIMESTAMPTZ NOT NULL
);

CREATE VIEW newest_cells AS
SELECT * FROM cells
QUALIFY row_number() OVER (
    PARTITION BY model_key, block, gpu_class, vgpu_divisor, batch ORDER BY measured_at DESC
) = 1;

CREATE TABLE sum_ratios (
    model_key    VARCHAR NOT NULL,
    gpu_class    VARCHAR NOT NULL,
    vgpu_divisor INTEGER NOT NULL,
    batch        INTEGER NOT NULL,
    blocks_us    DOUBLE NOT NULL,            -- sum of block means
    whole_us     DOUBLE NOT NULL,            -- mean of the whole model as one stage
    measured_at  TIMESTAMPTZ NOT NULL
);

CREATE TABLE artifacts (
    artifact    VARCHAR NOT NULL,            -- folder below the artifact root
    model_key   VARCHAR NOT NULL,
    first_block INTEGER NOT NULL,
    last_block  INTEGER NOT NULL,            -- exclusive
    gpu_class   VARCHAR NOT NULL,
    runtime     VARCHAR NOT NULL,
    built_at    TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (artifact, model_key, first_block, last_block)
);
