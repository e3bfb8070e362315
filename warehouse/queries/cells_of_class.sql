-- Every cell measured of a model on a GPU class, oldest first, latencies in microseconds.
-- Parameters: model_key, gpu_class. Columns: those of CellRecord.
SELECT block, gpu_class, share, basis, batch, mean_us, artifact, p50_us, p99_us, runs, interval
FROM cells WHERE model_key = ? AND gpu_class = ?
ORDER BY measured_at, block, share DESC, basis, batch;
