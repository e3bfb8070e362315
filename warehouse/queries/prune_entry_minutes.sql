-- Forget rows of entry_minutes before an instant.
-- Parameters: before. Columns: n (1 per row forgotten).
DELETE FROM entry_minutes WHERE minute < ? RETURNING 1 AS n;
