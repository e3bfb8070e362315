-- Purpose: rows that refer to something that is not there.
-- Parameters: none
-- Columns: table_name; row_id; missing
SELECT 'profile_cells' AS table_name, cell_id::VARCHAR AS row_id, 'model ' || model_key AS missing
FROM profile_cells ANTI JOIN models USING (model_key)
UNION ALL
SELECT 'model_selections', selection_id::VARCHAR, 'model ' || model_key
FROM model_selections ANTI JOIN models USING (model_key)
UNION ALL
SELECT 'artifacts', artifact_id::VARCHAR, 'model ' || model_key
FROM artifacts ANTI JOIN models USING (model_key)
UNION ALL
SELECT 'plans', plan_id, 'cluster ' || cluster_digest
FROM plans ANTI JOIN clusters USING (cluster_digest)
UNION ALL
SELECT 'plans', plan_id, 'workload ' || workload_digest
FROM plans ANTI JOIN workloads USING (workload_digest)
UNION ALL
SELECT 'run_models', run_id, 'run ' || run_id
FROM run_models ANTI JOIN runs USING (run_id)
UNION ALL
SELECT 'rollout_steps', rollout_id, 'rollout ' || rollout_id
FROM rollout_steps ANTI JOIN rollouts USING (rollout_id)
