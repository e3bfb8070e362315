-- Purpose: drops per reason and model.
-- Parameters: $since, $until (UTC, until excluded)
-- Columns: model; reason; dropped (requests)
SELECT model, reason, sum(dropped)::BIGINT AS dropped
FROM drop_minutes
WHERE minute >= $since AND minute < $until
GROUP BY ALL
ORDER BY dropped DESC, model, reason
