-- Cells of a model that were measured with one of the artifacts given.
-- Parameters: model_key, list of artifacts. Columns: block, gpu_class, vgpu_divisor, batch.
SELECT DISTINCT block, gpu_class, vgpu_divisor, batch
FROM cells WHERE model_key = ? AND list_contains(?, artifact);
