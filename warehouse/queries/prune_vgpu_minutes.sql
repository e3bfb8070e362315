-- Purpose: forget rows of vgpu_minutes before an instant.
-- Parameters: $before (UTC)
-- Columns: minute: one row per row forgotten
DELETE FROM vgpu_minutes WHERE minute < $before RETURNING minute
