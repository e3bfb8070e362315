-- Purpose: the number the next run of a kind gets.
-- Parameters: $kind
-- Columns: number
SELECT
    coalesce(max(try_cast(substr(run_id, len(kind) + 2) AS INTEGER)), 0) + 1 AS number
FROM runs
WHERE kind = $kind
