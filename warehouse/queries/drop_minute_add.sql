-- Purpose: add to one minute of one reason of drops.
-- Parameters: $instance, $minute (UTC), $model, $reason, $dropped (requests)
-- Columns: none
INSERT INTO drop_minutes (instance, minute, model, reason, dropped)
VALUES ($instance, $minute, $model, $reason, $dropped)
ON CONFLICT DO UPDATE SET dropped = dropped + excluded.dropped
