-- Purpose: tables and how many rows they hold (estimates are exact after a checkpoint).
-- Parameters: none
-- Columns: table_name; row_count
SELECT table_name, estimated_size AS row_count
FROM duckdb_tables()
WHERE NOT internal AND database_name = current_database()
ORDER BY table_name
