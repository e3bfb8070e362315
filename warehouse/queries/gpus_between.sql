-- GPUs busy and planned per hour, plan and class.
-- Parameters: since, until (excluded). Columns: plan_id, gpu_class, hour, gpus_busy, gpus_planned.
SELECT * FROM gpus_by_hour WHERE hour >= ? AND hour < ? ORDER BY hour, plan_id, gpu_class;
