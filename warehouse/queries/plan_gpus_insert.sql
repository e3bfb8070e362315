-- Purpose: GPUs of one class that a plan uses.
-- Parameters: $plan_id, $gpu_class, $gpus
-- Columns: none
INSERT INTO plan_gpus (plan_id, gpu_class, gpus) VALUES ($plan_id, $gpu_class, $gpus)
ON CONFLICT DO NOTHING
