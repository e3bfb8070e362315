-- Purpose: estimated time and memory of every block of a cut, in order.
-- Parameters: $model_key
-- Columns: block; time_us (µs or NULL); memory_bytes (or NULL)
SELECT block, time_us, memory_bytes FROM blocks WHERE model_key = $model_key ORDER BY block
