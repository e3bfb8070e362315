-- Purpose: rollouts that neither ended nor went on for a day before the newest step.
-- Parameters: none
-- Columns: rollout_id; state; changed_at (UTC)
SELECT rollout_id, state, changed_at
FROM rollout_states
WHERE NOT finished AND changed_at < (SELECT max(changed_at) FROM rollout_states) - INTERVAL 1 DAY
