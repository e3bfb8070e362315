-- Purpose: the newest figure of every name of a benchmark.
-- Parameters: $bench
-- Columns: name; figure; unit; target; met; machine; versions (JSON); measured_at (UTC)
SELECT name, figure, unit, target, met, machine, versions, measured_at
FROM bench_figures
WHERE bench = $bench
QUALIFY row_number() OVER (PARTITION BY name ORDER BY figure_id DESC) = 1
ORDER BY name
