"""Parts of runs and builds that few readers want.

What-if curves, failed builds, newest figures.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from warehouse.db import Warehouse


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRow:
    """One point of a curve: what was varied, to what, and the objective (None: no plan)."""

    varied: str
    setting: str
    objective: float | None
    document: Mapping[str, Any] = field(default_factory=dict[str, Any])


def add_whatif_rows(warehouse: Warehouse, run_id: str, rows: Sequence[WhatIfRow]) -> None:
    """Store the points of a curve in their order."""
    warehouse.insert(
        "whatif_rows",
        [
            {
                "run_id": run_id,
                "position": position,
                "varied": row.varied,
                "setting": row.setting,
                "objective": row.objective,
                "document": json.dumps(dict(row.document)),
            }
            for position, row in enumerate(rows)
        ],
    )


def whatif_rows(warehouse: Warehouse, run_id: str) -> list[WhatIfRow]:
    """The points of a curve."""
    rows = warehouse.query("whatif_rows", [run_id])
    return [WhatIfRow(**{**row, "document": json.loads(row["document"])}) for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFailure:
    """Blocks [first_block, last_block) of a model could not be built for a class."""

    first_block: int
    last_block: int
    gpu_class: str
    runtime: str
    reason: str


def add_build_failure(
    warehouse: Warehouse, model_key: str, failure: BuildFailure, now: datetime
) -> None:
    """Store why a stage could not be built."""
    row = {"model_key": model_key, "failed_at": now} | asdict(failure)
    warehouse.insert("build_failures", [row])


def build_failures(warehouse: Warehouse, model_key: str) -> list[BuildFailure]:
    """Stages of a model that failed and were not built since."""
    rows = warehouse.query("build_failures", [model_key])
    names = BuildFailure.__slots__
    return [BuildFailure(**{name: row[name] for name in names}) for row in rows]


def figures(warehouse: Warehouse, benchmark: str) -> list[dict[str, Any]]:
    """The newest figure of every name.

    Name, value, unit, target, machine, versions, measured_at.
    """
    return [
        row | {"machine": json.loads(row["machine"]), "versions": json.loads(row["versions"])}
        for row in warehouse.query("figures", [benchmark])
    ]
