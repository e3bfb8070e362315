-- The steps of a rollout in the order they were taken.
-- Parameters: rollout_id. Columns: step, detail, seconds, done_at.
SELECT step, detail, seconds, done_at FROM rollout_steps
WHERE rollout_id = ? ORDER BY done_at, rowid;
