-- Purpose: outcome of one model in a run.
-- Parameters: $run_id, $model, $offered, $served, $late, $dropped, $failed (requests), $p50_ms,
--     $p99_ms (or NULL)
-- Columns: none
INSERT INTO run_models (
    run_id, model, offered, served, late, dropped, failed, p50_ms, p99_ms
)
VALUES ($run_id, $model, $offered, $served, $late, $dropped, $failed, $p50_ms, $p99_ms)
