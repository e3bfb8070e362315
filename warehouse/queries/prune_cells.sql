-- Forget cells that newer ones replaced, measured before an instant.
-- Parameters: before, list of [model_key, gpu_class] of which all stay. Columns: n (rows forgotten).
DELETE FROM cells WHERE measured_at < ?
    AND NOT list_contains(?::VARCHAR[][], [model_key, gpu_class]) AND rowid NOT IN (SELECT cells.rowid FROM cells JOIN newest_cells
    USING (model_key, block, gpu_class, share, basis, batch, measured_at))
RETURNING 1 AS n;
