-- Purpose: the steps of a rollout, in order.
-- Parameters: $rollout_id
-- Columns: step_number; state; finished; note; details (JSON); seconds; happened_at (UTC)
SELECT step_number, state, finished, note, details, seconds, happened_at
FROM rollout_steps
WHERE rollout_id = $rollout_id
ORDER BY step_number
