-- Purpose: keep a cluster; nothing happens where its content is known.
-- Parameters: $digest, $name, $body (JSON)
-- Columns: none
INSERT INTO clusters (cluster_digest, name, body) VALUES ($digest, $name, $body)
ON CONFLICT DO NOTHING
