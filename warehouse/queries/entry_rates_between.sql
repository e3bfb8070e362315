-- Offered rates per minute and entry, in time order.
-- Parameters: since, until (excluded). Columns: minute, model, entry, block, budget_us, offered_rps.
SELECT minute, model, entry, block, budget_us, sum(offered) / 60.0 AS offered_rps
FROM entry_minutes WHERE minute >= ? AND minute < ?
GROUP BY minute, model, entry, block, budget_us
ORDER BY minute, model, entry, block, budget_us;
