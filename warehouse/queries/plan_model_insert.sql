-- Purpose: key figures of one model of a plan.
-- Parameters: $plan_id, $model, $slo_ms, $throughput_rps
-- Columns: none
INSERT INTO plan_models (plan_id, model, slo_ms, throughput_rps)
VALUES ($plan_id, $model, $slo_ms, $throughput_rps)
ON CONFLICT DO NOTHING
