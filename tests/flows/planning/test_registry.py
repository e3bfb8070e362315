"""Planners are found by name, say what they take, and need no other file to know them."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from flows.planning import PlanOptions, make_plan, registry
from flows.planning.certificate import objective_of
from flows.planning.registry import (
    Inputs,
    Option,
    Outcome,
    PlannedPipeline,
    PlannedStage,
    Planner,
    Trace,
    planners,
    product_planners,
)
from flows.planning.verify.numbers import verify_plan
from tests.flows.planning.brute import latencies
from tests.flows.planning.small import cluster, profile, workload
from tests.repository.files import ROOT
from triton_backend.contract.errors import InputError

PROFILES = {"net": profile()}


def alone(inputs: Inputs) -> Outcome:
    """The first model, whole and one by one, on so many fast GPUs."""
    gpus: int = inputs.options.own["gpus"]
    rate = gpus * 1e6 / float(latencies(inputs.profiles["net"], ("fast", 1))[:, 0].sum())
    stage = PlannedStage(blocks=(0, 3), gpu_class="fast", divisor=1, vgpus=gpus)
    pipeline = PlannedPipeline(model=0, batch=1, rate_rps=rate, stages=(stage,))
    trace = Trace(status="by rule", details={"rule": "one by one"})
    objective = objective_of("throughput", rate, rate)
    return Outcome(pipelines=(pipeline,), objective=objective, trace=trace)


ALONE = Planner(
    name="alone",
    plan=alone,
    space="one GPU class",
    options=(Option(name="gpus", default=1, help="How many.", least=1, most=2),),
    rates_from=(),
)


@pytest.fixture
def with_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {**planners(), "alone": ALONE}
    monkeypatch.setattr(registry, "planners", lambda: known)


@pytest.mark.usefixtures("with_alone")
def test_a_planner_needs_no_other_file_to_know_it() -> None:
    plan = make_plan(PROFILES, cluster(), workload(), PlanOptions(planner="alone", own={"gpus": 2}))
    assert plan.planner == "alone"
    assert plan.options["gpus"] == 2
    assert plan.objective.space == "one GPU class"
    assert plan.certificate["rule"] == "one by one"
    assert plan.gpus_used == {"fast": 2, "slow": 0}
    assert plan.objective.value == pytest.approx(2e6 / 3000)
    assert verify_plan(plan, PROFILES) == []
    assert "gpus" not in PlanOptions(planner="alone").to_dict()


PLANNED_ALONE = """
import sys
from flows.planning import PlanOptions, make_plan
from tests.flows.planning.small import cluster, profile, workload

make_plan({"net": profile()}, cluster(), workload(), PlanOptions(planner=sys.argv[1]))
print(*(name for name in sys.modules if name.startswith("flows.planning.papers")))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planner", "loads"), [("pool", False), ("no-partitioning", False), ("dart-r", True)]
)
def test_planners_to_compare_with_are_loaded_where_one_is_asked_for(
    planner: str, *, loads: bool
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PLANNED_ALONE, planner],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=200,
    )  # fmt: skip
    assert ("flows.planning.papers.ppipe" in ran.stdout.split()) is loads
    assert bool(ran.stdout.split()) is loads


@pytest.mark.usefixtures("with_alone")
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"own": {"gpus": 3}}, "option gpus: 3 is not within 1 and 2"),
        ({"own": {"gpus": True}}, "option gpus: True is not of type int"),
        ({"own": {"overflow": True}}, "option overflow: alone does not take it; it takes gpus"),
        ({"objective": "cost"}, "option objective: alone is defined for throughput alone"),
        ({"pinned_models": ("net",)}, "option pinned_models: alone plans every model again"),
    ],
)
def test_what_a_planner_does_not_take_is_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        PlanOptions(planner="alone", **options)


def test_every_planner_of_the_folder_is_found_and_an_unknown_one_is_refused() -> None:
    assert {"pool", "no-partitioning", "dart-r"} <= set(planners())
    assert set(product_planners()) == {
        "auto",
        "gpulets",
        "gpulets-open",
        "graft",
        "no-partitioning",
        "piccolo",
        "pool",
        "subclusters",
    }
    with pytest.raises(InputError, match=r"'guess' is none of .*pool"):
        PlanOptions(planner="guess")


def test_no_partitioning_states_the_one_stage_it_may_use() -> None:
    plan = make_plan(
        PROFILES, cluster(), workload(), PlanOptions(planner="no-partitioning", max_partitions=3)
    )
    assert plan.options["max_partitions"] == 1
    longer = replace(plan, options={**plan.options, "max_partitions": 0})
    assert any("stages, at most 0 allowed" in text for text in verify_plan(longer, PROFILES))
