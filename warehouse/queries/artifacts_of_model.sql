-- Purpose: the newest artifact (or failure) of every stage and class of a cut.
-- Parameters: $model_key
-- Columns: those of artifacts
SELECT *
FROM current_artifacts
WHERE model_key = $model_key
ORDER BY gpu_class, first_block, last_block
