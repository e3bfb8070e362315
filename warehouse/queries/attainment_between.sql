-- Purpose: outcomes per hour and model.
-- Parameters: $since, $until (UTC, until excluded)
-- Columns: those of attainment_by_hour
SELECT *
FROM attainment_by_hour
WHERE hour >= $since AND hour < $until
ORDER BY hour, model
