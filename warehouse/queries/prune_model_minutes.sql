-- Purpose: forget rows of model_minutes before an instant.
-- Parameters: $before (UTC)
-- Columns: minute: one row per row forgotten
DELETE FROM model_minutes WHERE minute < $before RETURNING minute
