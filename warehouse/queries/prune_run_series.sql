-- Purpose: forget the columns kept of runs that started before an instant; their results stay.
-- Parameters: $before (UTC)
-- Columns: run_id: one row per column forgotten
DELETE FROM run_series
WHERE run_id IN (SELECT run_id FROM runs WHERE started_at < $before)
RETURNING run_id
