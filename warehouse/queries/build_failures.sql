-- Stages that failed to build and were not built since.
-- Parameters: model_key. Columns: first_block, last_block, gpu_class, runtime, reason, failed_at.
SELECT first_block, last_block, gpu_class, runtime, reason, failed_at FROM build_failures AS failed
WHERE model_key = ? AND NOT EXISTS (
    SELECT 1 FROM artifacts
    WHERE artifacts.model_key = failed.model_key AND artifacts.gpu_class = failed.gpu_class
      AND artifacts.first_block = failed.first_block AND artifacts.last_block = failed.last_block
      AND artifacts.built_at >= failed.failed_at
)
ORDER BY gpu_class, first_block, last_block;
