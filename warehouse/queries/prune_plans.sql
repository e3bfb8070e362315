-- Forget plans added before an instant that were rolled out, and that nothing which stays names: no rollout
-- (see prune_rollouts), no run and no minute. Plans that were never rolled out stay.
-- Parameters: before, the plan in force (null: none). Columns: n (1 per row forgotten).
DELETE FROM plans WHERE added_at < $1 AND plan_id IS DISTINCT FROM $2
    AND plan_id IN (SELECT unnest([plan_id, former_plan_id]) FROM rollouts)
    AND plan_id NOT IN (
        WITH kept AS (SELECT * FROM rollouts
            WHERE started_at >= $1 OR outcome IS NULL
                OR plan_id IN (SELECT plan_id FROM model_minutes UNION SELECT plan_id FROM vgpu_minutes)
                OR rollout_id = (SELECT arg_max(rollout_id, started_at) FROM rollouts)
                OR rollout_id = (SELECT arg_max(rollout_id, started_at) FROM rollouts WHERE state = 'done'))
        SELECT plan_id FROM kept
        UNION SELECT former_plan_id FROM kept WHERE former_plan_id IS NOT NULL
        UNION SELECT plan_id FROM runs WHERE plan_id IS NOT NULL
        UNION SELECT plan_id FROM model_minutes UNION SELECT plan_id FROM vgpu_minutes)
RETURNING 1 AS n;
