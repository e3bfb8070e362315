"""Attainment of a plan in the simulator, stated in the plan."""

from dataclasses import replace

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.promises import attainment
from flows.planning.promises.attainment import shortfall, with_attainment
from flows.planning.promises.headroom import advice
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.simulator.offered import POISSON, Deterministic
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

PROFILES = {"net": profile()}


def made(**own: str) -> Plan:
    options = PlanOptions(slo_margin=0.0, own=own)
    return with_attainment(make_plan(PROFILES, cluster(1, 1), workload(), options))


def test_a_plan_attains_what_the_simulator_says_of_the_same_load() -> None:
    plan = made()
    found = plan.attained
    assert found is not None
    how = SimOptions(duration_s=found.duration_s, seed=found.seed)
    even = simulate(plan, replace(how, arrivals=Deterministic()))
    poisson = simulate(plan, replace(how, arrivals=POISSON, load_factor=found.poisson_load))
    assert (found.even, found.poisson) == (even.least_attainment, poisson.least_attainment)
    assert len(even.requests) <= attainment.MOST_REQUESTS
    assert with_attainment(plan) == plan


def test_an_attainment_is_part_of_the_file_but_not_of_the_identity() -> None:
    plan = made()
    assert Plan.from_dict(plan.to_dict()) == plan
    without = {name: value for name, value in plan.to_dict().items() if name != "attained"}
    old = Plan.from_dict(without)
    assert old.attained is None
    assert old.plan_id == plan.plan_id
    wrong = {**plan.to_dict()["attained"], "poisson": 1.5}
    with pytest.raises(InputError, match=r"attained.*poisson"):
        Plan.from_dict({**plan.to_dict(), "attained": wrong})


def test_rates_too_high_to_be_simulated_are_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attainment, "MOST_REQUESTS", 10)
    plan = made()
    assert plan.attained is not None
    assert (plan.attained.even, plan.attained.poisson, plan.attained.duration_s) == (None, None, 0)
    assert Plan.from_dict(plan.to_dict()) == plan
    assert shortfall(plan) is None


def test_many_requests_are_simulated_for_a_shorter_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rate = made().models[0].throughput_rps
    monkeypatch.setattr(attainment, "MOST_REQUESTS", round(2 * rate))
    found = made().attained
    assert found is not None
    assert found.duration_s == pytest.approx(2.0, abs=0.01)


def test_a_plan_that_falls_short_says_so_in_a_line_with_the_option_to_give() -> None:
    plan = made()
    assert plan.attained is not None
    short = replace(plan, attained=replace(plan.attained, even=1.0, poisson=0.972))
    said = advice(short)
    assert said is not None
    assert "\n" not in said
    assert said.startswith("of Poisson arrivals at 0.9 of the planned rates 97.2% are in time")
    assert "--headroom poisson99 promises less" in said
    sought = replace(short, options={**short.options, "headroom_factor": 1.5})
    assert advice(sought) == shortfall(short)
    assert advice(replace(short, planner="dart-r")) == shortfall(short)
    late = replace(plan, attained=replace(plan.attained, even=0.9, poisson=0.972))
    assert (shortfall(late) or "").startswith("of requests at equal gaps")
    assert advice(replace(plan, attained=None)) is None
    assert advice(replace(plan, attained=replace(plan.attained, even=1.0, poisson=1.0))) is None
