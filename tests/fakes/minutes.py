"""Minutes of statistics as a gateway writes them, made by hand."""

from datetime import datetime
from typing import Any

from warehouse.observations import ModelMinute


def model_minute(minute: datetime, offered: int, **fields: Any) -> ModelMinute:
    """A minute of model `m` under plan `p`, of which all was served.

    Fields say what was otherwise.
    """
    made: dict[str, Any] = {"instance": "i", "model": "m", "plan_id": "p"}
    made |= {"served": offered, "late": 0, "dropped": 0, "failed": 0}
    made |= {"batches": 1, "samples": offered, "latency_sum_us": 1}
    return ModelMinute(minute=minute, offered=offered, **made | fields)
