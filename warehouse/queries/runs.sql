-- The newest runs.
-- Parameters: limit. Columns: run_id, kind, plan_id, report, added_at.
SELECT run_id, kind, plan_id, report, added_at FROM runs ORDER BY added_at DESC LIMIT ?;
