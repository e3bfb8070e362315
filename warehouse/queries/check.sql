-- What does not fit together; a sound warehouse has no row.
-- Parameters: none. Columns: place (table and row), problem.
SELECT 'cells of ' || model_key AS place, 'their model is missing' AS problem
FROM cells WHERE model_key NOT IN (SELECT model_key FROM models) GROUP BY model_key
UNION ALL
SELECT 'cells of ' || model_key, 'block ' || max(block) || ' of ' || any_value(blocks) || ' blocks'
FROM cells JOIN models USING (model_key) GROUP BY model_key HAVING max(block) >= any_value(blocks)
UNION ALL
SELECT 'model ' || model_key, len(boundary_bytes) || ' boundaries for ' || blocks || ' blocks'
FROM models WHERE len(boundary_bytes) <> blocks - 1
UNION ALL
SELECT 'artifact ' || artifact, 'its model ' || model_key || ' is missing'
FROM artifacts WHERE model_key NOT IN (SELECT model_key FROM models)
UNION ALL
SELECT 'plan ' || plan_id, 'its document is of plan ' || coalesce(document ->> '$.plan_id', 'nothing')
FROM plans WHERE (document ->> '$.plan_id') IS DISTINCT FROM plan_id
UNION ALL
SELECT 'run ' || run_id || ', model ' || model, 'offered ' || offered || ' but '
       || (served + late + dropped + failed) || ' accounted for'
FROM run_models WHERE offered <> served + late + dropped + failed
UNION ALL
SELECT 'steps of rollout ' || rollout_id, 'the rollout is missing'
FROM rollout_steps WHERE rollout_id NOT IN (SELECT rollout_id FROM rollouts) GROUP BY rollout_id
ORDER BY place, problem;
