-- Purpose: keep a workload; nothing happens where its content is known.
-- Parameters: $digest, $body (JSON)
-- Columns: none
INSERT INTO workloads (workload_digest, body) VALUES ($digest, $body)
ON CONFLICT DO NOTHING
