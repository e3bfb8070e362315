-- Purpose: let a name stand for a cut from now on; nothing happens where it does already.
-- Parameters: $name, $model_key
-- Columns: none
INSERT INTO model_selections (selection_id, name, model_key)
SELECT (SELECT coalesce(max(selection_id), 0) + 1 FROM model_selections), $name, $model_key
WHERE NOT EXISTS (
    SELECT 1 FROM current_models WHERE name = $name AND model_key = $model_key
)
