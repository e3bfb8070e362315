-- Purpose: tensors at every edge of a cut, in order.
-- Parameters: $model_key
-- Columns: after_block (-1: inputs); name; dtype; shape
SELECT after_block, name, dtype, shape
FROM tensors
WHERE model_key = $model_key
ORDER BY after_block, position
