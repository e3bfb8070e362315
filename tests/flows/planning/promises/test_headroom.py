"""Headroom for Poisson arrivals: the least factor that holds, stated in the plan."""

from dataclasses import replace
from functools import partial
from math import nan
from typing import Any

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.promises import attainment
from flows.planning.promises.headroom import HEADROOM, at_part, plan_with_headroom
from flows.planning.registry import Inputs, product_planners
from flows.planning.robust import make_robust_plan
from flows.planning.verify.numbers import verify_plan
from flows.planning.watch import Watch
from scripts.golden.problems import Made, named
from tests.flows.planning.entries.entry_cases import case, cluster, planned
from tests.flows.planning.gpulets.cases import Held
from tests.flows.planning.small import cluster as small_cluster
from tests.flows.planning.small import profile, workload
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import ModelDemand
from triton_backend.simulator.offered import POISSON
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions


def attained(plan: Plan, seed: int = attainment.SEED) -> float:
    """The least attainment for as long as a plan's own is simulated."""
    how = SimOptions(
        arrivals=POISSON,
        load_factor=0.9,
        duration_s=attainment.seconds_of(plan),
        seed=seed,
        keep_uses=False,
    )
    return simulate(plan, how).least_attainment


def largest(plan: Plan) -> float:
    """The largest factor that a plan states."""
    own = plan.options.get("headroom_factors", {})
    return max(plan.options["headroom_factor"], *own.values(), 1.0)


SHORT = (
    ("pool", "applications-00", True),
    ("pool", "scarce-01", False),
    ("no-partitioning", "two-stages-00", False),
    ("subclusters", "scarce-00", False),
    ("gpulets", "gpulets-cost-00", True),
    ("gpulets", "gpulets-00", False),
    ("gpulets-open", "open-seats-02", False),
    ("piccolo", "applications-01", True),
    ("graft", "entries-one-rate-00", True),
)
"""A planner, a golden problem of which its plan falls short, and whether it asks for rates."""


def golden(name: str, planner: str, **own: Any) -> Made:
    made = named(name).make()
    more = {"phases": "any"} if planner == "graft" else {}
    options = replace(
        made.options,
        planner=planner,
        own=more | own,
        slo_margin=nan,
        margin_given=True,
        gap=0.02,
        previous=None,
    )
    return replace(made, options=options)


@pytest.mark.long
@pytest.mark.parametrize(("planner", "problem", "at_rates"), SHORT)
def test_every_planner_has_headroom_where_its_plan_falls_short(
    planner: str, problem: str, *, at_rates: bool
) -> None:
    without = golden(problem, planner, headroom="none").plan()
    assert attained(without) < 0.99
    made = golden(problem, planner, headroom="poisson99")
    plan = made.plan()
    assert attained(plan) >= 0.99
    assert 1 < largest(plan) <= 20
    assert plan.options["headroom"] == "poisson99"
    assert verify_plan(plan, made.profiles) == []
    for name, factor in plan.options.get("headroom_factors", {}).items():
        for odd in (100 * factor, 0.5, "much"):
            own = {**plan.options["headroom_factors"], name: odd}
            assert verify_plan(replace(plan, options={**plan.options, "headroom_factors": own}))
    assert Plan.from_dict(plan.to_dict()).to_dict() == plan.to_dict()
    if at_rates:
        promised = {m.name: m.throughput_rps for m in plan.models}
        assert promised == pytest.approx({m.name: m.throughput_rps for m in without.models})
        assert plan.objective.value >= without.objective.value
        asked = [model.rate_rps for model in plan.workload.models]
        assert asked == [model.rate_rps for model in made.workload.models]
        return
    assert without.objective.value / largest(plan) <= plan.objective.value * (1 + 1e-6)
    assert plan.objective.value <= without.objective.upper_bound
    asked = [(model.weight, model.rate_rps) for model in plan.workload.models]
    assert asked == [(model.weight, model.rate_rps) for model in made.workload.models]


@pytest.mark.long
@pytest.mark.parametrize(
    ("planner", "problem"),
    [
        ("gpulets", "scarce-00"),
        ("pool", "scarce-00"),
        ("no-partitioning", "three-stages-02"),
        ("no-partitioning", "percents-05"),
    ],
)
def test_headroom_holds_for_arrivals_that_its_search_did_not_simulate(
    planner: str, problem: str
) -> None:
    plan = golden(problem, planner, headroom="poisson99").plan()
    assert min(attained(plan, seed) for seed in range(1, 6)) >= 0.99


@pytest.mark.long
def test_a_planner_that_takes_all_its_time_leaves_some_for_other_factors() -> None:
    clock = Held()

    def slow(inputs: Inputs) -> Plan:
        plan = make_plan(inputs.profiles, inputs.cluster, inputs.workload, inputs.options)
        clock.now_s += inputs.watch.left_s() or 0.0
        gap = replace(plan.objective, upper_bound=plan.objective.value * 2)
        return replace(plan, objective=gap)

    asked = workload(ModelDemand(name="net", slo_us=15_000, rate_rps=120.0))
    inputs = Inputs(
        profiles={"net": profile()},
        cluster=small_cluster(4, 8, fast_hourly_cost=2, slow_hourly_cost=1),
        workload=asked,
        options=PlanOptions(objective="cost", slo_margin=0.0, own={"headroom": "poisson99"}),
        watch=Watch(limit_s=60.0, _clock=clock),
    )
    hasty = replace(inputs, watch=Watch(limit_s=0.0, _clock=clock))
    assert attained(plan_with_headroom(slow, hasty)) < 0.99
    clock.now_s = 0.0
    assert attained(plan_with_headroom(slow, inputs)) >= 0.99


def test_every_planner_of_the_product_takes_headroom_as_one_option() -> None:
    assert all(HEADROOM in planner.options for planner in product_planners().values())


def test_a_plan_for_least_cost_carries_the_factor_that_it_states() -> None:
    profiles, on = {"net": profile()}, small_cluster(4, 8, fast_hourly_cost=2, slow_hourly_cost=1)
    asked = workload(ModelDemand(name="net", slo_us=15_000, rate_rps=900.0))
    options = PlanOptions(objective="cost", own={"headroom": "1.3"})
    plan = make_plan(profiles, on, asked, options)
    assert plan.options["headroom_factor"] == 1.3
    assert verify_plan(plan, profiles) == []
    assert "duality" in {part["proven_by"] for part in plan.certificate["proof"]}
    assert plan.workload.models[0].rate_rps == 900.0
    assert plan.models[0].throughput_rps == pytest.approx(900.0)
    more = make_plan(profiles, on, at_part(asked, 1.3), PlanOptions(objective="cost"))
    assert plan.objective == more.objective
    assert plan.pools == more.pools
    for odd in (2.6, 0.5, "much"):
        assert verify_plan(replace(plan, options={**plan.options, "headroom_factor": odd}))


@pytest.mark.long
def test_margins_by_simulation_and_headroom_go_together() -> None:
    profiles, asked = {"net": profile()}, workload()
    options = PlanOptions(slo_margin=0.05, own={"headroom": "poisson99"})
    hasty = partial(make_robust_plan, duration_s=1.0, budget_s=0.0)
    robust = hasty(profiles, small_cluster(1, 1), asked, options)
    none = replace(options, own={"headroom": "none"})
    bare = hasty(profiles, small_cluster(1, 1), asked, none)
    factor = robust.options["headroom_factor"]
    assert attained(bare) < 0.99
    assert factor > 1
    assert robust.pools == bare.pools
    assert robust.objective.value == pytest.approx(bare.objective.value / factor)
    assert robust.options["slo_margins"] == bare.options["slo_margins"]
    assert robust.certificate["robust"] == bare.certificate["robust"]
    assert attained(robust) >= 0.99
    assert verify_plan(robust, profiles) == []


@pytest.mark.long
def test_the_planner_that_asks_the_others_gives_them_its_headroom() -> None:
    options = PlanOptions(planner="auto", slo_margin=0.05, own={"headroom": "poisson99"})
    plan = make_plan({"net": profile()}, small_cluster(1, 1), workload(), options)
    assert plan.planner in product_planners()
    assert plan.options["headroom_factor"] > 1
    assert attained(plan) >= 0.99
    wrong = replace(options, own={"headroom": "much"})
    with pytest.raises(InputError, match="option headroom: 'much'"):
        make_plan({"net": profile()}, small_cluster(1, 1), workload(), wrong)


def test_rates_to_keep_are_not_planned_with_headroom() -> None:
    options = PlanOptions(minimum_rps={"net": 1.0}, own={"headroom": "poisson99"})
    with pytest.raises(InputError, match=r"option headroom: rates to keep"):
        make_plan({"net": profile()}, small_cluster(), workload(), options)


@pytest.mark.parametrize("objective", ["throughput", "cost"])
def test_a_factor_beyond_all_rates_is_blamed_itself(objective: str) -> None:
    options = PlanOptions(objective=objective, own={"headroom": "1e12"})
    asked = replace(workload(), models=tuple(replace(m, rate_rps=20.0) for m in workload().models))
    with pytest.raises(InputError, match="option headroom: 1e12 is not within 1 and 1000"):
        make_plan({"net": profile()}, small_cluster(), asked, options)


def test_a_plan_too_large_to_be_simulated_has_no_headroom_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attainment, "MOST_REQUESTS", 10)
    options = PlanOptions(own={"headroom": "poisson99"})
    plan = make_plan({"net": profile()}, small_cluster(), workload(), options)
    assert plan.options["headroom_factor"] == 1
    assert any("too large to be simulated" in note for note in plan.certificate["notes"])


def test_the_least_factor_that_holds_is_stated() -> None:
    problem = case(0, 16, rates=(40.0, 90.0), blocks=1, loose=3)
    plan = planned(problem, own={"headroom": "poisson99"})
    factor = plan.options["headroom_factor"]
    assert attained(plan) >= 0.99
    assert factor > 1
    less = planned(problem, own={"headroom": f"{factor - 0.05:g}"})
    sure = attainment.surely_attained(less)
    assert sure is not None
    assert min(sure.values()) < 0.99


@pytest.mark.parametrize("planner", ["pool", "graft"])
@pytest.mark.parametrize("seed", range(3))
def test_plans_by_default_attain_under_poisson_arrivals(planner: str, seed: int) -> None:
    problem = case(seed, 12, rates=(5.0, 30.0, 120.0), blocks=1 + seed % 2)
    options = PlanOptions(planner=planner, objective="share")
    plan = make_plan(problem.profiles, problem.cluster, problem.workload, options)
    assert attained(plan) >= 0.99
    assert plan.options["headroom"] == "auto"
    assert plan.options["headroom_factor"] >= 1
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


def test_throughput_of_entries_has_headroom_only_where_it_is_asked_for() -> None:
    problem = case(0, 3)
    none = planned(problem, objective="throughput")
    usual = planned(problem, objective="throughput", own={"headroom": "auto"})
    assert usual.objective == none.objective
    assert "headroom_factor" not in usual.options
    asked = planned(problem, objective="throughput", own={"headroom": "poisson99"})
    factor = asked.options["headroom_factor"]
    assert asked.objective.value == pytest.approx(none.objective.value / factor)
    assert attained(asked) >= 0.99


def test_what_is_no_headroom_is_refused() -> None:
    problem = case(0, 3)
    for given in ("much", "0.5", "nan"):
        with pytest.raises(InputError, match="option headroom"):
            planned(problem, own={"headroom": given})
