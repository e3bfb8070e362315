-- The newest utilisation of every cell of a model, fractions of what the GPU can do.
-- Parameters: model_key. Columns: gpu_class, share, block (NULL: every block), batch, l2, dram.
SELECT gpu_class, share, block, batch, l2, dram
FROM utilisations WHERE model_key = ?
QUALIFY row_number() OVER (
    PARTITION BY gpu_class, share, block, batch ORDER BY measured_at DESC, rowid DESC
) = 1
ORDER BY gpu_class, share DESC, block, batch;
