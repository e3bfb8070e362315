-- Plans whose id begins as given; at most five.
-- Parameters: beginning of plan_id. Columns: plan_id, document (JSON text).
SELECT plan_id, document FROM plans WHERE starts_with(plan_id, ?) ORDER BY plan_id LIMIT 5;
