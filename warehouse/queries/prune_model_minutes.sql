-- Forget rows of model_minutes before an instant.
-- Parameters: before. Columns: n (1 per row forgotten).
DELETE FROM model_minutes WHERE minute < ? RETURNING 1 AS n;
