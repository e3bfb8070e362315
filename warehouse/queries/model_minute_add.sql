-- Purpose: add to one minute of one model.
-- Parameters: $instance, $minute (UTC), $model, $plan_id, $offered, $served, $late, $dropped,
--     $failed (requests), $batches, $samples, $latency_sum_ms
-- Columns: none
INSERT INTO model_minutes (
    instance, minute, model, plan_id,
    offered, served, late, dropped, failed, batches, samples, latency_sum_ms
)
VALUES (
    $instance, $minute, $model, $plan_id,
    $offered, $served, $late, $dropped, $failed, $batches, $samples, $latency_sum_ms
)
ON CONFLICT DO UPDATE SET
    offered = offered + excluded.offered,
    served = served + excluded.served,
    late = late + excluded.late,
    dropped = dropped + excluded.dropped,
    failed = failed + excluded.failed,
    batches = batches + excluded.batches,
    samples = samples + excluded.samples,
    latency_sum_ms = latency_sum_ms + excluded.latency_sum_ms
