-- Purpose: key columns of the newest plans.
-- Parameters: $count
-- Columns: plan_id; planner; cluster (name); objective; value; gap (fraction); solve_seconds;
--     gpus_used; stored_at (UTC)
SELECT
    plan_id, planner, clusters.name AS cluster, objective, value, gap, solve_seconds, gpus_used, stored_at
FROM plans
LEFT JOIN clusters USING (cluster_digest)
ORDER BY stored_at DESC, plan_id
LIMIT $count
