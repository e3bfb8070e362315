-- Purpose: add to one minute of one vGPU.
-- Parameters: $instance, $minute (UTC), $plan_id, $vgpu, $model, $gpu_class, $vgpu_divisor,
--     $stage, $runs, $busy_us, $profiled_us
-- Columns: none
INSERT INTO vgpu_minutes (
    instance, minute, plan_id, vgpu, model, gpu_class, vgpu_divisor, stage, runs, busy_us, profiled_us
)
VALUES (
    $instance, $minute, $plan_id, $vgpu, $model, $gpu_class, $vgpu_divisor, $stage,
    $runs, $busy_us, $profiled_us
)
ON CONFLICT DO UPDATE SET
    runs = runs + excluded.runs,
    busy_us = busy_us + excluded.busy_us,
    profiled_us = profiled_us + excluded.profiled_us
