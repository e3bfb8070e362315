-- Purpose: store a run.
-- Parameters: $run_id, $kind, $plan_id (or NULL), $started_at (UTC), $duration_s (or NULL),
--     $attainment (fraction or NULL), $options (JSON), $result (JSON)
-- Columns: none
INSERT INTO runs (run_id, kind, plan_id, started_at, duration_s, attainment, options, result)
VALUES ($run_id, $kind, $plan_id, $started_at, $duration_s, $attainment, $options, $result)
