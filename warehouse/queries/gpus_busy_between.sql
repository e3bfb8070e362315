-- Purpose: GPUs busy and planned per hour and class.
-- Parameters: $since, $until (UTC, until excluded)
-- Columns: those of gpus_busy_by_hour
SELECT *
FROM gpus_busy_by_hour
WHERE hour >= $since AND hour < $until
ORDER BY hour, gpu_class
