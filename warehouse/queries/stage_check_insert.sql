-- Purpose: store one comparison of the sum of blocks with the whole.
-- Parameters: $model_key, $gpu_class, $vgpu_divisor, $batch, $blocks_us, $whole_us (µs)
-- Columns: none
INSERT INTO stage_checks (check_id, model_key, gpu_class, vgpu_divisor, batch, blocks_us, whole_us)
SELECT
    (SELECT coalesce(max(check_id), 0) + 1 FROM stage_checks),
    $model_key, $gpu_class, $vgpu_divisor, $batch, $blocks_us, $whole_us
