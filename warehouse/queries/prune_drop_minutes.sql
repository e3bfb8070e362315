-- Purpose: forget rows of drop_minutes before an instant.
-- Parameters: $before (UTC)
-- Columns: minute: one row per row forgotten
DELETE FROM drop_minutes WHERE minute < $before RETURNING minute
