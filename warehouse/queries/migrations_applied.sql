-- Purpose: the schema's history.
-- Parameters: none
-- Columns: number; name; digest; applied_at (UTC)
SELECT number, name, digest, applied_at FROM migrations ORDER BY number
