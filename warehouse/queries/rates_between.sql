-- Purpose: offered and served rate per minute and model.
-- Parameters: $since, $until (UTC, until excluded)
-- Columns: minute (UTC); model; offered_rps; served_rps
SELECT minute, model, offered_rps, served_rps
FROM rates_by_minute
WHERE minute >= $since AND minute < $until
ORDER BY minute, model
