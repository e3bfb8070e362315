-- Purpose: bytes that cross after each block of a cut.
-- Parameters: $model_key; $sizes: list of bytes per sample after block 0, 1, …
-- Columns: none
INSERT INTO boundaries (model_key, after_block, bytes_per_sample)
SELECT $model_key, unnest(range(len($sizes))), unnest($sizes::BIGINT[])
ON CONFLICT DO NOTHING
