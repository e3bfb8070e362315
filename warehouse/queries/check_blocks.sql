-- Purpose: models whose blocks, boundaries or cells do not fit together.
-- Parameters: none
-- Columns: model_key; problem
SELECT model_key, 'has ' || count(after_block) || ' boundaries for ' || any_value(blocks) || ' blocks'
    AS problem
FROM models LEFT JOIN boundaries USING (model_key)
GROUP BY model_key
HAVING count(after_block) <> any_value(blocks) - 1
UNION ALL
SELECT model_key, 'a cell names block ' || max(block) || ' of ' || any_value(blocks)
FROM profile_cells JOIN models USING (model_key)
GROUP BY model_key
HAVING max(block) >= any_value(blocks)
