-- Cells of a model that were measured with one of the artifacts given, and with no other since.
-- Parameters: model_key, list of artifacts. Columns: block, gpu_class, share, basis, batch.
SELECT block, gpu_class, share, basis, batch
FROM newest_cells WHERE model_key = ? AND list_contains(?, artifact);
