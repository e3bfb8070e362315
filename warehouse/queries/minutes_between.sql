-- Outcomes and mean latency per minute and model over all plans and running systems.
-- Parameters: since, until (excluded). Columns: minute, model, offered, served, late, dropped,
-- failed (requests), mean_ms (of answered requests).
SELECT minute, model, sum(offered)::BIGINT AS offered, sum(served)::BIGINT AS served,
       sum(late)::BIGINT AS late, sum(dropped)::BIGINT AS dropped, sum(failed)::BIGINT AS failed,
       sum(latency_sum_us) / 1000.0 / nullif(sum(served) + sum(late), 0) AS mean_ms
FROM model_minutes WHERE minute >= ? AND minute < ?
GROUP BY minute, model ORDER BY minute, model;
