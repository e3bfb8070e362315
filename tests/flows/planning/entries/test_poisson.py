"""Headroom for Poisson arrivals: the least factor that holds, stated in the plan."""

from dataclasses import replace

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.verify import verify_plan
from tests.flows.planning.entries.entry_cases import case, cluster, planned
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.simulator.offered import POISSON
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions


def attained(plan: Plan) -> float:
    how = SimOptions(arrivals=POISSON, load_factor=0.9, duration_s=20, seed=0, keep_uses=False)
    return simulate(plan, how).least_attainment


def test_the_least_factor_that_holds_is_stated() -> None:
    problem = case(0, 16, rates=(40.0, 90.0), blocks=1, loose=3)
    plan = planned(problem, own={"headroom": "poisson99"})
    factor = plan.options["headroom_factor"]
    assert attained(plan) >= 0.99
    assert factor > 1
    less = planned(problem, own={"headroom": f"{factor - 0.05:g}"})
    assert attained(less) < 0.99


@pytest.mark.parametrize("planner", ["pool", "graft"])
@pytest.mark.parametrize("seed", range(3))
def test_plans_by_default_attain_under_poisson_arrivals(planner: str, seed: int) -> None:
    problem = case(seed, 12, rates=(5.0, 30.0, 120.0), blocks=1 + seed % 2)
    options = PlanOptions(planner=planner, objective="share")
    plan = make_plan(problem.profiles, problem.cluster, problem.workload, options)
    assert attained(plan) >= 0.99
    assert plan.options["headroom"] == "poisson99"
    assert plan.options["phases"] == "any"
    assert verify_plan(plan, problem.profiles) == []


def test_a_cluster_that_is_too_small_for_headroom_has_a_plan_that_says_so() -> None:
    problem = case(1, 16, rates=(5.0, 12.5, 30.0, 120.0), blocks=2, loose=2)
    least = planned(problem).gpus_used["G"]
    assert planned(problem, own={"headroom": "poisson99"}).gpus_used["G"] > least
    small = replace(problem, cluster=cluster(gpus=1))
    gpus = tuple(replace(node, gpus=least) for node in small.cluster.nodes)
    small = replace(small, cluster=replace(small.cluster, nodes=gpus))
    plan = planned(small, own={"headroom": "poisson99"})
    assert attained(plan) < 0.99
    assert any(note.startswith("headroom: ") for note in plan.certificate["notes"])


def test_throughput_has_no_headroom() -> None:
    problem = case(0, 3)
    plan = planned(problem, objective="throughput", own={"headroom": "poisson99"})
    none = planned(problem, objective="throughput")
    assert plan.objective == none.objective
    assert plan.options["headroom"] == "poisson99"
    assert plan.options["headroom_factor"] == 1


def test_what_is_no_headroom_is_refused() -> None:
    problem = case(0, 3)
    for given in ("much", "0.5", "nan"):
        with pytest.raises(InputError, match="option headroom"):
            planned(problem, own={"headroom": given})
