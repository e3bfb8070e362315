-- Note the state a rollout has reached.
-- Parameters: state, outcome (NULL: goes on), changed_at, rollout_id. Columns: rollout_id of the row changed.
UPDATE rollouts SET state = ?, outcome = ?, changed_at = ? WHERE rollout_id = ? RETURNING rollout_id;
