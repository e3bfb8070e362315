-- Purpose: blocks of a cut.
-- Parameters: $model_key; $times_us (µs or NULL) and $memory_bytes (or NULL): lists, one entry
--     per block
-- Columns: none
INSERT INTO blocks (model_key, block, time_us, memory_bytes)
SELECT $model_key, unnest(range(len($times_us))), unnest($times_us::DOUBLE[]), unnest($memory_bytes::BIGINT[])
ON CONFLICT DO NOTHING
