-- The newest figure of every name of a benchmark.
-- Parameters: benchmark. Columns: name, value, unit, target, machine, versions (JSON text), measured_at.
SELECT name, value, unit, target, machine, versions, measured_at FROM figures
WHERE benchmark = ?
QUALIFY row_number() OVER (PARTITION BY name ORDER BY measured_at DESC, rowid DESC) = 1
ORDER BY name;
