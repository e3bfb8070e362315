-- Forget what pictures of runs before an instant were drawn from; their results stay.
-- Parameters: before. Columns: n (1 per row forgotten).
DELETE FROM run_series WHERE run_id IN (SELECT run_id FROM runs WHERE added_at < ?) RETURNING 1 AS n;
