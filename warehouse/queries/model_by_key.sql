-- Purpose: one cut of a model.
-- Parameters: $model_key
-- Columns: those of models
SELECT * FROM models WHERE model_key = $model_key
