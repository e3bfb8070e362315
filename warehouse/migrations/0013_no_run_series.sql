-- Columns of runs are not kept: a run's document holds what reports draw.
DROP TABLE run_series;
