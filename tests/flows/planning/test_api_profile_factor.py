"""Plans made for latencies longer than profiled: planned, stated, verified, and kept."""

from dataclasses import replace

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.registry import product_planners
from flows.planning.robust import make_robust_plan
from flows.planning.verify.numbers import verify_plan
from flows.planning.verify.profiled import profiled_ratios
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.workload import ModelDemand
from triton_backend.simulator.goodput import find_goodput, tolerance
from triton_backend.simulator.offered import Deterministic
from triton_backend.simulator.scenario import SimOptions

PROFILES = {"net": profile()}
FIFTH = PlanOptions(profile_factor=1.2)
LOOSE = ModelDemand(name="net", slo_us=40_000, weight=1.0, batch_building_rate_rps=1e9)
EVEN = SimOptions(arrivals=Deterministic(), duration_s=5, keep_uses=False)


def test_a_plan_for_slower_stages_is_that_of_slower_profiles() -> None:
    plan = make_plan(PROFILES, cluster(), workload(), FIFTH)
    slower = {"net": PROFILES["net"].slower(1.2)}
    same = make_plan(slower, cluster(), workload())
    assert (plan.pools, plan.models, plan.objective) == (same.pools, same.models, same.objective)
    assert plan.options["profile_factor"] == 1.2
    assert "profile_factor" not in same.options
    assert verify_plan(plan, PROFILES) == []
    assert profiled_ratios(plan, PROFILES) == pytest.approx({p.name: 1.0 for p in plan.pools})
    assert plan.objective.value < make_plan(PROFILES, cluster(), workload()).objective.value


@pytest.mark.parametrize("odd", [1.0, 1.3, 0.5, "much"])
def test_another_factor_than_the_planned_one_is_found(odd: object) -> None:
    plan = make_plan(PROFILES, cluster(), workload(), FIFTH)
    assert verify_plan(replace(plan, options={**plan.options, "profile_factor": odd}), PROFILES)


@pytest.mark.long
@pytest.mark.parametrize("planner", ["pool", "subclusters", "no-partitioning"])
def test_its_rates_hold_when_stages_are_as_slow(planner: str) -> None:
    usual = make_plan(PROFILES, cluster(), workload(LOOSE), PlanOptions(planner=planner))
    robust = make_plan(
        PROFILES, cluster(), workload(LOOSE), PlanOptions(planner=planner, profile_factor=1.2)
    )
    assert find_goodput(robust, EVEN).load_factor >= 0.95
    if planner == "pool":  # the others use less of so loose an SLO
        assert find_goodput(usual, replace(EVEN, latency_factor=1.2)).load_factor < 0.95
    kept = {each.case: each.load_factor for each in tolerance(robust, EVEN)}
    assert kept["latencies x 1.2"] >= 0.95
    assert kept["latencies x 1"] >= 0.95


@pytest.mark.long
def test_margins_by_simulation_and_the_planner_that_asks_the_others_keep_it() -> None:
    for plan in (
        make_robust_plan(PROFILES, cluster(), workload(LOOSE), FIFTH, duration_s=1.0, budget_s=0.0),
        make_plan(
            PROFILES, cluster(), workload(LOOSE), PlanOptions(planner="auto", profile_factor=1.2)
        ),
    ):
        assert plan.planner in product_planners()
        assert plan.options["profile_factor"] == 1.2
        assert verify_plan(plan, PROFILES) == []


def test_an_slo_too_tight_for_slower_stages_is_refused() -> None:
    # All blocks one by one take 3 ms; a plan uses 60 % of the SLO.
    tight = workload(ModelDemand(name="net", slo_us=5_500, weight=1.0, batch_building_rate_rps=1e9))
    fast = replace(FIFTH, profile_factor=1.0)
    assert make_plan(PROFILES, cluster(), tight, fast).objective.value > 0
    with pytest.raises(InfeasibleError, match="net"):
        make_plan(PROFILES, cluster(), tight, FIFTH)


def test_a_factor_below_one_is_refused() -> None:
    with pytest.raises(InputError, match=r"option profile_factor: 0.9 is not within 1 and 10"):
        PlanOptions(profile_factor=0.9)
    assert PlanOptions.from_dict("pool", FIFTH.to_dict()) == FIFTH
