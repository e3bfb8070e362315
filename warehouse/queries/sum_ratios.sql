-- Sum of block latencies over the whole stage's, the newest of each (class, divisor, batch).
-- Parameters: model_key. Columns: gpu_class, vgpu_divisor, batch, ratio (no unit).
SELECT gpu_class, vgpu_divisor, batch, blocks_us / whole_us AS ratio
FROM sum_ratios WHERE model_key = ?
QUALIFY row_number() OVER (
    PARTITION BY gpu_class, vgpu_divisor, batch ORDER BY measured_at DESC
) = 1
ORDER BY gpu_class, vgpu_divisor, batch;
