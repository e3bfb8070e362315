-- Purpose: newest comparisons of the sum of blocks with the whole.
-- Parameters: $model_key
-- Columns: gpu_class; vgpu_divisor; batch; blocks_us; whole_us (µs); ratio (blocks / whole)
SELECT gpu_class, vgpu_divisor, batch, blocks_us, whole_us, blocks_us / whole_us AS ratio
FROM stage_checks
WHERE model_key = $model_key
QUALIFY row_number() OVER (
    PARTITION BY gpu_class, vgpu_divisor, batch ORDER BY check_id DESC
) = 1
ORDER BY gpu_class, vgpu_divisor, batch
