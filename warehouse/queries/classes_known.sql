-- Purpose: every GPU class that any current model was measured on.
-- Parameters: none
-- Columns: gpu_class
SELECT DISTINCT gpu_class
FROM profile_cells
SEMI JOIN current_models USING (model_key)
ORDER BY gpu_class
