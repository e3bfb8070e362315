-- Purpose: how far a file was read.
-- Parameters: $path
-- Columns: bytes_read
SELECT bytes_read FROM ingested_files WHERE path = $path
