-- Purpose: keep a plan; nothing happens where its id is known.
-- Parameters: $plan_id, $planner, $cluster_digest, $workload_digest, $objective, $value,
--     $upper_bound, $gap (fraction), $solver, $solve_seconds, $gpus_used, $body (JSON)
-- Columns: none
INSERT INTO plans (
    plan_id, planner, cluster_digest, workload_digest, objective, value, upper_bound, gap,
    solver, solve_seconds, gpus_used, body
)
VALUES (
    $plan_id, $planner, $cluster_digest, $workload_digest, $objective, $value, $upper_bound, $gap,
    $solver, $solve_seconds, $gpus_used, $body
)
ON CONFLICT DO NOTHING
