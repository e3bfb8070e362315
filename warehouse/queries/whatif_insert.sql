-- Purpose: one point of a what-if curve.
-- Parameters: $run_id, $varied, $setting (or NULL), $label, $objective (or NULL), $details (JSON)
-- Columns: none
INSERT INTO whatif_rows (row_id, run_id, varied, setting, label, objective, details)
SELECT
    (SELECT coalesce(max(row_id), 0) + 1 FROM whatif_rows),
    $run_id, $varied, $setting, $label, $objective, $details
