-- Purpose: measured over profiled stage time of a plan's vGPUs, the slowest first.
-- Parameters: $plan_id
-- Columns: model; stage; gpu_class; vgpu; runs; ratio (1 = as profiled)
SELECT model, stage, gpu_class, vgpu, runs, ratio
FROM latency_drift
WHERE plan_id = $plan_id
ORDER BY ratio DESC NULLS LAST, vgpu
