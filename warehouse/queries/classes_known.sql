-- GPU classes that the newest model of any name was measured on.
-- Parameters: none. Columns: gpu_class.
SELECT DISTINCT gpu_class FROM cells
WHERE model_key IN (SELECT max_by(model_key, added_at) FROM models GROUP BY name)
ORDER BY gpu_class;
