-- The newest rollouts.
-- Parameters: limit. Columns: those of rollouts.
SELECT * FROM rollouts ORDER BY started_at DESC, rollout_id LIMIT ?;
