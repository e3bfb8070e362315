-- Forget rollouts that began before an instant, but for the newest, the newest that was done (a rollback goes
-- back from it), those that have not ended, and those whose plan has minutes.
-- Parameters: before. Columns: n (1 per row forgotten).
DELETE FROM rollouts WHERE started_at < ? AND outcome IS NOT NULL
    AND plan_id NOT IN (SELECT plan_id FROM model_minutes UNION SELECT plan_id FROM vgpu_minutes)
    AND rollout_id IS DISTINCT FROM (SELECT arg_max(rollout_id, started_at) FROM rollouts)
    AND rollout_id IS DISTINCT FROM (
        SELECT arg_max(rollout_id, started_at) FROM rollouts WHERE state = 'done')
RETURNING 1 AS n;
