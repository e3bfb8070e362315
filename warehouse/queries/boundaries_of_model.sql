-- Purpose: bytes that cross after each block of a cut, in order.
-- Parameters: $model_key
-- Columns: after_block; bytes_per_sample
SELECT after_block, bytes_per_sample
FROM boundaries
WHERE model_key = $model_key
ORDER BY after_block
