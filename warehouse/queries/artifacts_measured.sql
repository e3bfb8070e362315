-- The artifacts by which each block of a model was measured on each GPU class, oldest first.
-- Parameters: model_key. Columns: gpu_class, block, artifact, first_at, last_at (of its measurements).
SELECT gpu_class, block, artifact, min(measured_at) AS first_at, max(measured_at) AS last_at
FROM cells WHERE model_key = ? AND artifact IS NOT NULL
GROUP BY gpu_class, block, artifact
ORDER BY gpu_class, first_at, block;
