-- Purpose: the points of a what-if curve, in order.
-- Parameters: $run_id
-- Columns: varied; setting; label; objective; details (JSON)
SELECT varied, setting, label, objective, details
FROM whatif_rows
WHERE run_id = $run_id
ORDER BY row_id
