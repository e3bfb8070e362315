-- Purpose: rollouts with the state they reached, the newest first.
-- Parameters: $count
-- Columns: rollout_id; plan_id; previous_plan_id; who; why; started_at (UTC); state; finished;
--     note; changed_at (UTC)
SELECT * FROM rollout_states ORDER BY started_at DESC, rollout_id DESC LIMIT $count
