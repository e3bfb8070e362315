-- Purpose: tensors at one edge of a cut.
-- Parameters: $model_key, $after_block (-1: the inputs); lists $names, $dtypes, $shapes in order
-- Columns: none
INSERT INTO tensors (model_key, after_block, position, name, dtype, shape)
SELECT $model_key, $after_block, unnest(range(len($names))), unnest($names::VARCHAR[]), unnest($dtypes::VARCHAR[]), unnest($shapes::INTEGER[][])
ON CONFLICT DO NOTHING
