"""Runs of plans (simulations, loads, quickstarts), and figures of benchmarks."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from triton_backend.contract.errors import InputError
from warehouse.db import Warehouse


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure of a benchmark; `target` is as the benchmark's table words it."""

    name: str
    value: float
    unit: str
    target: str | None = None


def add_run(
    warehouse: Warehouse,
    kind: str,
    plan_id: str | None,
    documents: tuple[Mapping[str, Any], Mapping[str, Any]],
    now: datetime,
) -> str:
    """Store a run's (options, result) and return its new id, for instance `simulate-1f2e3d4c`."""
    run_id = f"{kind}-{uuid.uuid4().hex[:8]}"
    row = {
        "run_id": run_id,
        "kind": kind,
        "plan_id": plan_id,
        "options": json.dumps(documents[0]),
        "result": json.dumps(documents[1]),
        "report": None,
        "added_at": now,
    }
    warehouse.insert("runs", [row])
    return run_id


def set_report(warehouse: Warehouse, run_id: str, page: str) -> None:
    """Remember the page that was written for a run."""
    warehouse.rows("UPDATE runs SET report = ? WHERE run_id = ?", [page, run_id])


def read_run(warehouse: Warehouse, run_id: str) -> dict[str, Any]:
    """A run: run_id, kind, plan_id, options, result, report, added_at.

    Raises:
        InputError: no such run; the message names the newest ones.
    """
    rows = warehouse.rows("SELECT * FROM runs WHERE run_id = ?", [run_id])
    if not rows:
        newest = ", ".join(r["run_id"] for r in list_runs(warehouse, limit=5)) or "none"
        raise InputError(f"run {run_id!r}", f"is not in {warehouse.path}; newest: {newest}")
    row = rows[0]
    return row | {"options": json.loads(row["options"]), "result": json.loads(row["result"])}


def list_runs(warehouse: Warehouse, limit: int = 50) -> list[dict[str, Any]]:
    """The newest runs: run_id, kind, plan_id, report, added_at."""
    return warehouse.query("runs", [limit])


def add_figures(
    warehouse: Warehouse,
    benchmark: str,
    figures: Sequence[Figure],
    environment: tuple[Mapping[str, Any], Mapping[str, str]],
    now: datetime,
) -> None:
    """Store a benchmark's figures with its (machine, versions)."""
    shared = {
        "benchmark": benchmark,
        "machine": json.dumps(environment[0]),
        "versions": json.dumps(environment[1]),
        "measured_at": now,
    }
    warehouse.insert(
        "figures",
        [
            shared | {"name": f.name, "value": f.value, "unit": f.unit, "target": f.target}
            for f in figures
        ],
    )
