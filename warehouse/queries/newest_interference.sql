-- The newest interference model of every GPU class.
-- Parameters: none. Columns: gpu_class, the five constants, residuals.
SELECT gpu_class, c1_l2_self, c2_l2_other, c3_dram_self, c4_dram_other, c5, residuals
FROM interference_models
QUALIFY row_number() OVER (PARTITION BY gpu_class ORDER BY added_at DESC, rowid DESC) = 1
ORDER BY gpu_class;
