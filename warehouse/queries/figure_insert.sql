-- Purpose: one figure of a benchmark.
-- Parameters: $bench, $name, $figure, $unit, $target (or NULL), $met (or NULL), $machine,
--     $versions (JSON)
-- Columns: none
INSERT INTO bench_figures (figure_id, bench, name, figure, unit, target, met, machine, versions)
SELECT
    (SELECT coalesce(max(figure_id), 0) + 1 FROM bench_figures),
    $bench, $name, $figure, $unit, $target, $met, $machine, $versions
