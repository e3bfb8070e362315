-- Purpose: forget cells that a newer one of the same place replaced before an instant.
-- Parameters: $before (UTC)
-- Columns: cell_id: one row per cell forgotten
DELETE FROM profile_cells
WHERE measured_at < $before AND cell_id NOT IN (SELECT cell_id FROM current_cells)
RETURNING cell_id
