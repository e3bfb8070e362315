-- Every sum of blocks beside the whole model on a GPU class, oldest first, microseconds.
-- Parameters: model_key, gpu_class. Columns: those of RatioRecord.
SELECT gpu_class, vgpu_divisor, batch, blocks_us, whole_us
FROM sum_ratios WHERE model_key = ? AND gpu_class = ?
ORDER BY measured_at, vgpu_divisor, batch;
