-- Purpose: begin a rollout; nothing happens where its id is known.
-- Parameters: $rollout_id, $plan_id, $previous_plan_id (or NULL), $who, $why, $started_at (UTC)
-- Columns: none
INSERT INTO rollouts (rollout_id, plan_id, previous_plan_id, who, why, started_at)
VALUES ($rollout_id, $plan_id, $previous_plan_id, $who, $why, $started_at)
ON CONFLICT DO NOTHING
