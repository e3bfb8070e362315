-- Requests dropped per model and reason.
-- Parameters: since, until (excluded). Columns: model, reason, dropped.
SELECT model, reason, sum(dropped)::BIGINT AS dropped FROM drop_minutes
WHERE minute >= ? AND minute < ?
GROUP BY model, reason ORDER BY dropped DESC, model, reason;
