"""Pipelines of five stages and more, with many models.

A plan, or one line that says why there is none.
"""

from typing import Any

import numpy as np
import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.pool import columns
from flows.planning.pool.columns import enumerate_columns
from flows.planning.verify.numbers import verify_plan
from tests.flows.planning.small import cluster, problem_of, profile
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile, loaded
from triton_backend.contract.workload import Workload

BLOCKS = 6
NAMES = [f"m{number:02}" for number in range(25)]
COSTS = {
    "fast_hourly_cost": 3.0,
    "slow_hourly_cost": 1.0,
    "fast_power_w": 70.0,
    "slow_power_w": 30.0,
}
GPUS = cluster(150, 150, **COSTS)
SIZES = (1_000,) * (BLOCKS - 1)
ALIKE = {name: profile(name, (1_000,) * BLOCKS, boundary_bytes=SIZES) for name in NAMES}


def alternating(name: str) -> ModelProfile:
    """Blocks that are fast on one class and 20 times slower on the other, by turns."""
    batches = np.array([1.0, 1.5, 2.0, 2.5])
    fast, slow = np.full(BLOCKS, 1_000.0), np.full(BLOCKS, 1_000.0)
    fast[1::2] *= 20
    slow[::2] *= 20
    tables = {("fast", 1): np.outer(fast, batches), ("slow", 1): np.outer(slow, batches)}
    return ModelProfile(name=name, boundary_bytes=SIZES, tables=loaded(tables))


ALTERNATING = {name: alternating(name) for name in NAMES}


def demands(objective: str) -> Workload:
    asked = {"weight": 1.0} if objective == "throughput" else {"rate_rps": 100.0}
    entries: dict[str, Any] = {
        "entries": [{"name": "e", "block": 0, "budget_ms": 60.0, "rate_rps": 20.0}]
    }
    with_entries = objective in ("gpus", "share")
    fields = entries if with_entries else asked | {"batch_building_rate_rps": 1e6}
    return Workload.from_dict({"models": [{"name": n, "slo_ms": 60.0} | fields for n in NAMES]})


def longest(plan: Plan) -> int:
    return max(len(p.stages) for model in plan.models for p in model.pipelines)


LONGEST = {5: 4, 6: 6}  # up to five, four stages are worth as much as five


def made(
    profiles: dict[str, ModelProfile], workload: Workload, objective: str, stages: int
) -> Plan:
    options = PlanOptions(objective=objective, max_partitions=stages, gap=0.3, slo_margin=0.0)
    plan = make_plan(profiles, GPUS, workload, options)
    assert verify_plan(plan, profiles) == []
    return plan


@pytest.mark.long
@pytest.mark.parametrize("stages", [5, 6])
@pytest.mark.parametrize("objective", ["throughput", "cost", "power", "gpus", "share"])
def test_many_models_have_a_plan_for_every_objective(objective: str, stages: int) -> None:
    profiles = ALIKE if objective in ("gpus", "share") else ALTERNATING
    plan = made(profiles, demands(objective), objective, stages)
    assert objective != "throughput" or longest(plan) >= LONGEST[stages]


@pytest.mark.long
def test_an_application_at_least_cost_has_a_plan_where_modules_may_have_five_stages() -> None:
    modules = [
        {"name": "one", "model": "m00", "after": []},
        {"name": "two", "model": "m01", "after": ["one"]},
    ]
    app = {"name": "app", "slo_ms": 150.0, "rate_rps": 200.0, "modules": modules}
    plan = made(ALTERNATING, Workload.from_dict({"applications": [app]}), "cost", 5)
    assert plan.applications


@pytest.mark.parametrize(
    ("limit", "reason"), [("MOST_ENUMERATED", "look at"), ("MOST_BYTES", "GiB")]
)
def test_more_configurations_than_can_be_kept_are_one_line(
    monkeypatch: pytest.MonkeyPatch, limit: str, reason: str
) -> None:
    monkeypatch.setattr(columns, limit, 1_000)
    problem = problem_of(ALIKE, GPUS, demands("throughput"), PlanOptions())
    with pytest.raises(InputError, match=f"option max_partitions: .* at most 5 stages .*{reason}"):
        enumerate_columns(problem, 5)


def test_configurations_are_counted_as_the_table_that_they_are_joined_into_holds_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of two stages are padded to the widest, which takes several times their own memory."""
    problem = problem_of(ALIKE, GPUS, demands("throughput"), PlanOptions())
    table = enumerate_columns(problem, 3)
    names = ("model", "batch", "stages", "types", "cuts", "rate_rps", "usage")
    table_bytes = sum(getattr(table, name).nbytes for name in names)
    monkeypatch.setattr(columns, "MOST_BYTES", table_bytes - 1)
    with pytest.raises(InputError, match=r"at most 3 stages make more than .* GiB of them"):
        enumerate_columns(problem, 3)
    monkeypatch.setattr(columns, "MOST_BYTES", 2 * table_bytes)  # and what they are joined from
    assert len(enumerate_columns(problem, 3)) == len(table)


def test_cuts_are_looked_at_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of many blocks have more of them than memory holds at once."""
    problem = problem_of(ALIKE, GPUS, demands("throughput"), PlanOptions())

    def rows() -> list[tuple[list[int], ...]]:
        table = enumerate_columns(problem, 3)
        names = ("model", "batch", "types", "cuts")
        return sorted(zip(*(getattr(table, name).tolist() for name in names), strict=True))

    every = rows()
    monkeypatch.setattr(columns, "CHUNK_CELLS", 16)  # four cuts in four batches
    assert rows() == every
