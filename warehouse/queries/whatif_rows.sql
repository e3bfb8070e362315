-- The points of a what-if curve in order.
-- Parameters: run_id. Columns: varied, setting, objective (NULL: no plan), document (JSON text).
SELECT varied, setting, objective, document FROM whatif_rows WHERE run_id = ? ORDER BY position;
