-- Purpose: remember how far a file was read.
-- Parameters: $path, $bytes_read
-- Columns: none
INSERT INTO ingested_files (path, bytes_read) VALUES ($path, $bytes_read)
ON CONFLICT DO UPDATE SET bytes_read = excluded.bytes_read
