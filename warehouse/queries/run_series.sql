-- The columns kept of a run.
-- Parameters: run_id. Columns: series, items (list of whole numbers).
SELECT series, items FROM run_series WHERE run_id = ? ORDER BY series;
