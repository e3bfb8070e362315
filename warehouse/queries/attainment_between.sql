-- Outcomes per hour and model.
-- Parameters: since, until (excluded). Columns: model, hour, offered, served, attainment (fraction), mean_rps.
SELECT * FROM attainment_by_hour WHERE hour >= ? AND hour < ? ORDER BY hour, model;
