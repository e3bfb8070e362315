-- The newest plans.
-- Parameters: limit. Columns: plan_id, planner, objective, value, gap (fraction), gpus, added_at.
SELECT plan_id, planner, objective, value, gap, gpus, added_at
FROM plans ORDER BY added_at DESC LIMIT ?;
