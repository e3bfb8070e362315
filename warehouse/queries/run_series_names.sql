-- Purpose: names of the columns kept of a run.
-- Parameters: $run_id
-- Columns: series
SELECT series FROM run_series WHERE run_id = $run_id ORDER BY series
