-- All tables.
-- Parameters: none. Columns: table_name.
SELECT table_name FROM duckdb_tables()
WHERE database_name = current_database() ORDER BY table_name;
