-- The newest model of a name.
-- Parameters: name. Columns: those of models.
SELECT * FROM models WHERE name = ? ORDER BY added_at DESC LIMIT 1;
