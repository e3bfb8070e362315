-- Purpose: store measured cells of one cut.
-- Parameters: $model_key; lists of equal length: $block, $gpu_class, $vgpu_divisor, $batch,
--     $mean_us, $p50_us, $p99_us (µs), $runs, $ci_relative (fraction), $artifact_key; the last
--     five may hold NULL
-- Columns: none
INSERT INTO profile_cells (
    cell_id, model_key, block, gpu_class, vgpu_divisor, batch,
    mean_us, p50_us, p99_us, runs, ci_relative, artifact_key
)
SELECT
    (SELECT coalesce(max(cell_id), 0) FROM profile_cells) + row_number() OVER (),
    $model_key,
    *
FROM (
    SELECT
        unnest($block::INTEGER[]),
        unnest($gpu_class::VARCHAR[]),
        unnest($vgpu_divisor::INTEGER[]),
        unnest($batch::INTEGER[]),
        unnest($mean_us::DOUBLE[]),
        unnest($p50_us::DOUBLE[]),
        unnest($p99_us::DOUBLE[]),
        unnest($runs::INTEGER[]),
        unnest($ci_relative::DOUBLE[]),
        unnest($artifact_key::VARCHAR[])
)
