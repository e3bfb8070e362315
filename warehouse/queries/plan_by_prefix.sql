-- Purpose: plans whose id begins as given, at most two.
-- Parameters: $prefix
-- Columns: plan_id; body (JSON)
SELECT plan_id, body FROM plans WHERE starts_with(plan_id, $prefix) ORDER BY plan_id = $prefix DESC, plan_id LIMIT 2
