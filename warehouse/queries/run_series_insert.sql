-- Purpose: one column of whole numbers of a run.
-- Parameters: $run_id, $series (name), $items (list)
-- Columns: none
INSERT INTO run_series (run_id, series, items) VALUES ($run_id, $series, $items)
