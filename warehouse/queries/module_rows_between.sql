-- Rows that modules ran and the samples of the requests they ran them for.
-- Parameters: since, until (excluded). Columns: application, module, samples, rows (both sums).
SELECT application, module, sum(samples)::BIGINT AS samples, sum(rows)::BIGINT AS rows
FROM module_minutes WHERE minute >= ? AND minute < ?
GROUP BY application, module ORDER BY application, module;
