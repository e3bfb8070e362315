-- Types of a table's columns.
-- Parameters: table. Columns: column_name, data_type.
SELECT column_name, data_type FROM duckdb_columns()
WHERE database_name = current_database() AND table_name = ?;
