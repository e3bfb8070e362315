-- Two models side by side as the running system measured them: mean latency of the first one's runs in microseconds.
-- Parameters: fewest runs of a row. Columns: those of Pair; latency_2_us is NULL, the other side has a row of its own.
SELECT gpu_class, model AS model_1, batch AS batch_1, share AS share_1,
       beside_model AS model_2, beside_batch AS batch_2, beside_share AS share_2,
       sum(busy_us) / sum(runs) AS latency_1_us, NULL::DOUBLE AS latency_2_us
FROM neighbour_minutes
GROUP BY ALL HAVING sum(runs) >= ?
ORDER BY gpu_class, model_1, model_2, batch_1, batch_2, share_1, share_2;
