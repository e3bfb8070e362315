-- Purpose: key columns of the newest runs.
-- Parameters: $count
-- Columns: run_id; kind; plan_id; started_at (UTC); duration_s; attainment (fraction)
SELECT run_id, kind, plan_id, started_at, duration_s, attainment
FROM runs
ORDER BY started_at DESC, run_id DESC
LIMIT $count
