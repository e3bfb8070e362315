-- Purpose: the cut every name stands for, by name.
-- Parameters: none
-- Columns: those of models
SELECT * FROM current_models ORDER BY name
