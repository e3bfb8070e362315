-- Cells of a model that were measured with one of the artifacts given.
-- Parameters: model_key, list of artifacts. Columns: block, gpu_class, share, basis, batch.
SELECT DISTINCT block, gpu_class, share, basis, batch
FROM cells WHERE model_key = ? AND list_contains(?, artifact);
