-- Purpose: one rollout with the state it reached.
-- Parameters: $rollout_id
-- Columns: those of rollout_states
SELECT * FROM rollout_states WHERE rollout_id = $rollout_id
