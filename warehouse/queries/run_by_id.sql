-- Purpose: one run.
-- Parameters: $run_id
-- Columns: those of runs
SELECT * FROM runs WHERE run_id = $run_id
