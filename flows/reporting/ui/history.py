"""The last day as the warehouse knows it: minutes per model, rollouts, drops by reason.

Here: the rows the page draws, read from a warehouse file (a read-only snapshot while another
process writes). Not here: how they came there; what the page saw itself (`live`).
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from triton_backend.contract.errors import InputError
from warehouse.db import Warehouse, open_warehouse
from warehouse.observations import Rollout, drops_between, list_rollouts

SPAN = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class History:
    """Rows for the page, instants in seconds since 1970; `note` says why there are none."""

    minutes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    rollouts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    drops: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    note: str = ""


def read_history(path: Path, now: datetime) -> History:
    """The last day's rows; the note says why a warehouse cannot be read now."""
    try:
        with open_warehouse(path, read_only=True) as warehouse:
            return _read(warehouse, now)
    except InputError as error:
        return History(note=str(error))


def _read(warehouse: Warehouse, now: datetime) -> History:
    since = now - SPAN
    minutes: dict[float, dict[str, Any]] = {}
    for row in warehouse.query("minutes_between", [since, now]):
        at, model = row.pop("minute").timestamp(), row.pop("model")
        minutes.setdefault(at, {"minute": int(at), "models": {}})["models"][model] = row
    return History(
        minutes=list(minutes.values()),
        rollouts=[_rollout(r) for r in list_rollouts(warehouse) if r.started_at >= since],
        drops=drops_between(warehouse, since, now),
    )


def _rollout(rollout: Rollout) -> dict[str, Any]:
    return {
        "at": int(rollout.started_at.timestamp()),
        "plan_id": rollout.plan_id,
        "state": rollout.state,
        "outcome": rollout.outcome,
        "reason": rollout.reason,
        "by": rollout.requested_by,
    }
