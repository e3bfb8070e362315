-- Forget steps of rollouts that are forgotten, done before an instant.
-- Parameters: before. Columns: n (1 per row forgotten).
DELETE FROM rollout_steps WHERE done_at < ? AND rollout_id NOT IN (SELECT rollout_id FROM rollouts)
RETURNING 1 AS n;
