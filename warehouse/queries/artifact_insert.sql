-- Purpose: store that a stage was built for a class, or why it could not be.
-- Parameters: $model_key, $first_block, $last_block, $gpu_class, $runtime, $artifact_key (NULL:
--     failed), $failure (NULL: built), $details (JSON)
-- Columns: none
INSERT INTO artifacts (
    artifact_id, model_key, first_block, last_block, gpu_class, runtime, artifact_key, failure, details
)
SELECT
    (SELECT coalesce(max(artifact_id), 0) + 1 FROM artifacts),
    $model_key, $first_block, $last_block, $gpu_class, $runtime, $artifact_key, $failure, $details
