-- Purpose: the next step of a rollout.
-- Parameters: $rollout_id, $state, $finished, $note, $details (JSON), $seconds (or NULL),
--     $happened_at (UTC)
-- Columns: none
INSERT INTO rollout_steps (
    rollout_id, step_number, state, finished, note, details, seconds, happened_at
)
SELECT
    $rollout_id,
    (SELECT coalesce(max(step_number), 0) + 1 FROM rollout_steps WHERE rollout_id = $rollout_id),
    $state, $finished, $note, $details, $seconds, $happened_at
