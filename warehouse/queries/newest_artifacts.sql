-- The artifact by which each block of a model was measured last on each GPU class.
-- Parameters: model_key. Columns: gpu_class, block, artifact.
SELECT DISTINCT gpu_class, block, artifact
FROM newest_cells WHERE model_key = ? AND artifact IS NOT NULL
ORDER BY gpu_class, block;
