"""The planner that asks the others."""

import json
from dataclasses import replace

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.auto.plan import ARRIVALS, MARGINS, able, best_plan
from flows.planning.promises.attainment import LOAD
from flows.planning.registry import Inputs, product_planners
from flows.planning.verify.numbers import verify_plan
from flows.planning.watch import Watch
from scripts.golden.problems import named
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import ModelDemand
from triton_backend.simulator.goodput import ATTAINMENT, find_goodput
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

AUTO = PlanOptions(planner="auto")


def test_the_plan_that_serves_most_is_taken_and_verifies() -> None:
    profiles = {"net": profile(), "other": profile("other", (500, 2000, 500))}
    asked = workload(
        ModelDemand(name="net", slo_us=15_000), ModelDemand(name="other", slo_us=15_000)
    )
    chosen = make_plan(profiles, cluster(3, 6), asked, AUTO)
    assert verify_plan(chosen, profiles) == []
    assert verify_plan(Plan.from_dict(json.loads(json.dumps(chosen.to_dict()))), profiles) == []

    def served(plan: Plan) -> float:  # with arrivals of a seed that `auto` has not seen
        return plan.objective.value * find_goodput(plan, SimOptions(seed=7)).load_factor

    for name in ("pool", "no-partitioning", "subclusters"):
        other = make_plan(profiles, cluster(3, 6), asked, PlanOptions(planner=name))
        assert served(chosen) >= 0.9 * served(other)


def test_margins_are_tried_unless_one_is_given() -> None:
    profiles = {"net": profile()}
    asked = workload(ModelDemand(name="net", slo_us=13_000))
    here = cluster(6, 6)
    chosen = make_plan(profiles, here, asked, AUTO)
    wide = make_plan(profiles, here, asked, PlanOptions(planner="auto", slo_margin=0.4))
    assert chosen.options["slo_margin"] in MARGINS
    assert wide.options["slo_margin"] == 0.4

    def served(plan: Plan) -> float:  # of the same rates, by arrivals that `auto` has not seen
        grid = [step / 20 for step in range(1, 25)]
        at = SimOptions(
            duration_s=10, seed=7, reference=chosen, keep_uses=False, give_up_below=ATTAINMENT
        )
        held = [simulate(plan, replace(at, load_factor=load)).least_attainment for load in grid]
        return max(load for load, share in zip(grid, held, strict=True) if share >= ATTAINMENT)

    assert served(chosen) > served(wide)


def test_more_models_than_gpus_are_planned_on_shared_ones() -> None:
    profiles = {name: profile(name) for name in "abcd"}
    asked = workload(*(ModelDemand(name=name, slo_us=40_000) for name in profiles))
    with pytest.raises(InfeasibleError):
        make_plan(profiles, cluster(1, 1), asked, PlanOptions())
    plan = make_plan(profiles, cluster(1, 1), asked, AUTO)
    assert plan.planner in {"subclusters", "gpulets", "gpulets-open"}
    own = product_planners()[plan.planner].slo_margin
    assert plan.options["slo_margin"] in {own, *MARGINS}
    said = "\n".join(plan.certificate["notes"])
    assert "auto: pool has no plan" in said
    assert f"auto: {plan.planner} " in said


@pytest.mark.parametrize("problem", ["entries-mixed-01", "applications-padded-00"])
def test_other_kinds_of_workload_are_planned_by_those_that_can(problem: str) -> None:
    made = named(problem).make()
    options = PlanOptions(planner="auto", objective=made.options.objective, time_limit_s=20)
    plan = make_plan(made.profiles, made.cluster, made.workload, options)
    assert plan.planner != "auto"
    assert verify_plan(plan, made.profiles) == []


def test_the_cheapest_plan_that_holds_its_rates_is_taken() -> None:
    dear = cluster(10, 20, fast_hourly_cost=4.0, slow_hourly_cost=1.0)
    asked = workload(ModelDemand(name="net", slo_us=15_000, rate_rps=300.0))
    profiles, options = {"net": profile()}, PlanOptions(planner="auto", objective="cost")
    plan = make_plan(profiles, dear, asked, options)
    held = simulate(plan, SimOptions(seed=7, load_factor=LOAD))
    assert held.least_attainment >= ATTAINMENT - 0.01
    for name in ("pool", "subclusters", "gpulets"):
        other = make_plan(profiles, dear, asked, PlanOptions(planner=name, objective="cost"))
        cheaper = other.objective.value < plan.objective.value - 1e-9
        tried = simulate(other, replace(ARRIVALS, load_factor=LOAD))
        assert not (cheaper and tried.least_attainment >= ATTAINMENT)


def test_own_margins_come_first_and_quick_planners_before_slow_ones() -> None:
    asked: list[tuple[str, float]] = []
    limits: list[float] = []

    def refused(inputs: Inputs) -> Plan:
        asked.append((inputs.options.planner, inputs.options.slo_margin))
        limits.append(inputs.watch.limit_s or 0.0)
        raise InfeasibleError(inputs.options.planner, "refused")

    inputs = Inputs(
        profiles={"net": profile()},
        cluster=cluster(),
        workload=workload(ModelDemand(name="net", slo_us=40_000)),
        options=AUTO,
        watch=Watch(limit_s=1000.0),
    )
    names = [name for name, one in product_planners().items() if one.plan and able(one, inputs)]
    with pytest.raises(InfeasibleError, match=names[0]):
        best_plan(refused, inputs)
    assert [name for name, _ in asked[: len(names)]] == names[::-1]
    assert len(set(asked)) == len(asked) > len(names)
    assert {name for name, _ in asked[len(names) :]} == set(names)
    shares = [limit / 1000 for limit in limits]
    assert shares[0] == pytest.approx(1 / (len(names) + 1), abs=0.02)
    assert shares[len(names) - 1] == pytest.approx(1 / 2, abs=0.02)  # the rest is for all others
    assert shares[-1] == pytest.approx(1, abs=0.02)


def test_a_demand_that_no_planner_meets_is_refused_with_the_first_reason() -> None:
    with pytest.raises(InfeasibleError, match="net"):
        make_plan({"net": profile()}, cluster(), workload(ModelDemand(name="net", slo_us=1)), AUTO)


def test_what_no_planner_is_defined_for_is_refused() -> None:
    made = named("mig-01").make()
    options = PlanOptions(planner="auto", objective="share")
    with pytest.raises(InputError, match="no planner has objective share"):
        make_plan(made.profiles, made.cluster, made.workload, options)
