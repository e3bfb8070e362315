-- Forget rows of drop_minutes before an instant.
-- Parameters: before. Columns: n (1 per row forgotten).
DELETE FROM drop_minutes WHERE minute < ? RETURNING 1 AS n;
