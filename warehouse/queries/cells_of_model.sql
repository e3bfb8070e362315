-- Purpose: the newest cell of everything measured of a cut, by class, divisor, block and batch.
-- Parameters: $model_key
-- Columns: block; gpu_class; vgpu_divisor; batch; mean_us, p50_us, p99_us (µs); runs; ci_relative
--     (fraction); artifact_key
SELECT
    block, gpu_class, vgpu_divisor, batch,
    mean_us, p50_us, p99_us, runs, ci_relative, artifact_key
FROM current_cells
WHERE model_key = $model_key
ORDER BY gpu_class, vgpu_divisor, block, batch
