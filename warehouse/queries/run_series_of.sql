-- Purpose: the columns of a run, one row per item.
-- Parameters: $run_id, $series
-- Columns: item
SELECT unnest(items) AS item FROM run_series WHERE run_id = $run_id AND series = $series
