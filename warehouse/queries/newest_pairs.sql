-- The newest measurement of every two models that ran side by side, latencies in microseconds.
-- Parameters: none. Columns: those of Pair.
SELECT gpu_class, model_1, batch_1, share_1, model_2, batch_2, share_2, latency_1_us, latency_2_us
FROM pairs
QUALIFY row_number() OVER (
    PARTITION BY gpu_class, model_1, batch_1, share_1, model_2, batch_2, share_2
    ORDER BY measured_at DESC, rowid DESC
) = 1
ORDER BY gpu_class, model_1, model_2, batch_1, batch_2, share_1, share_2;
