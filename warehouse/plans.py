"""Plans by id."""

import json
from datetime import datetime
from typing import Any

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from warehouse.db import Warehouse


def add_plan(warehouse: Warehouse, plan: Plan, now: datetime) -> None:
    """Store a plan; the same id again changes nothing but when it was added."""
    row = {
        "plan_id": plan.plan_id,
        "planner": plan.planner,
        "objective": plan.objective.name,
        "value": plan.objective.value,
        "upper_bound": plan.objective.upper_bound,
        "gap": plan.objective.gap,
        "gpus": sum(plan.gpus_used.values()),
        "document": json.dumps(plan.to_dict()),
        "added_at": now,
    }
    warehouse.insert("plans", [row], replace=True)


def read_plan(warehouse: Warehouse, plan_id: str) -> Plan:
    """A plan by its id, or by the beginning of it where that is unique.

    An id comes before longer ones.

    Raises:
        InputError: none or several fit.
    """
    rows = warehouse.query("plan_by_id", [plan_id])
    if len(rows) != 1 and not (rows and rows[0]["plan_id"] == plan_id):
        found = ", ".join(row["plan_id"] for row in rows) or "none"
        raise InputError(f"plan {plan_id!r}", f"{found} of that id in {warehouse.path}")
    return Plan.from_dict(json.loads(rows[0]["document"]))


def list_plans(warehouse: Warehouse, limit: int = 50) -> list[dict[str, Any]]:
    """The newest plans: plan_id, planner, objective, value, gap, gpus, added_at."""
    return warehouse.query("plans", [limit])
