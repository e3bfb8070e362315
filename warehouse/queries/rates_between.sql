-- Offered and served rates per minute and model, in time order.
-- Parameters: since, until (excluded). Columns: minute, model, offered_rps, served_rps.
SELECT minute, model, offered_rps, served_rps FROM rates_by_minute
WHERE minute >= ? AND minute < ?
ORDER BY minute, model;
