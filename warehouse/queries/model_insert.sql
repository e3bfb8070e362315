-- Purpose: register one cut of a model; nothing happens where its key is known.
-- Parameters: $model_key, $name, $blocks, $source, $origin, $max_batch (or NULL), $details (JSON)
-- Columns: none
INSERT INTO models (model_key, name, blocks, source, origin, max_batch, details)
VALUES ($model_key, $name, $blocks, $source, $origin, $max_batch, $details)
ON CONFLICT DO NOTHING
