-- Measured over profiled stage time per vGPU and hour of a plan, the slowest first.
-- Parameters: plan_id, since. Columns: those of latency_drift (ratio without unit; 1 = as profiled).
SELECT * FROM latency_drift WHERE plan_id = ? AND hour >= ?
ORDER BY measured_over_profiled DESC NULLS LAST, vgpu, hour;
