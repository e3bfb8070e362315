-- The newest measurement of every cell of a model, latencies in microseconds.
-- Parameters: model_key. Columns: block, gpu_class, share, basis, batch, mean_us, p50_us, p99_us, runs, interval.
SELECT block, gpu_class, share, basis, batch, mean_us, p50_us, p99_us, runs, interval
FROM newest_cells WHERE model_key = ?
ORDER BY gpu_class, share DESC, basis, block, batch;
