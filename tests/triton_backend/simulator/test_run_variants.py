"""Variants, simulated: a name degrades before it drops, and recovers."""

from typing import Any

import numpy as np
import pytest

from tests.fakes.variants import ACCURACY, CHEAP, NAME, plain_plan, variant_plan
from triton_backend.contract.plan import Plan
from triton_backend.simulator.failures import Failure
from triton_backend.simulator.offered import Replay
from triton_backend.simulator.results import SimResult, VariantResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import PlanChange, SimOptions, loaded
from triton_backend.simulator.world import OPEN, SERVED

SECONDS = 10.0


def at(plan: Plan, load_factor: float, **more: Any) -> SimResult:
    given: dict[str, Any] = {"duration_s": SECONDS, "keep_uses": False, **more}
    return simulate(plan, SimOptions(load_factor=load_factor, **given))


def of_name(result: SimResult) -> VariantResult:
    return result.variants[NAME]


def test_three_times_the_load_is_served_by_a_variant_of_half_the_cost() -> None:
    without, both = at(plain_plan(), 3.0), at(variant_plan(), 3.0)
    assert of_name(both).outcome.offered == without.models[0].offered
    assert of_name(both).outcome.served >= 1.8 * without.models[0].served


def test_it_degrades_before_it_drops() -> None:
    plan = variant_plan()
    usual, more, much = (of_name(at(plan, load)) for load in (0.8, 1.4, 3.0))
    assert usual.accuracy == pytest.approx(ACCURACY[NAME], abs=1e-3)
    assert more.outcome.dropped == 0
    assert more.accuracy == pytest.approx(0.743, abs=5e-3)  # (2 / 1.4 - 1) of 0.8, the rest of 0.7
    assert much.accuracy == pytest.approx(ACCURACY[CHEAP], abs=5e-3)
    assert sum(more.shares.values()) == pytest.approx(1.0)


def test_every_request_is_counted_once_and_as_the_one_that_took_it() -> None:
    result = at(variant_plan(), 1.4)
    outcome = of_name(result).outcome
    assert outcome.offered == len(result.requests) == sum(m.offered for m in result.models)
    assert not (result.requests["outcome"] == OPEN).any()
    assert all(model.offered for model in result.models)
    assert result.least_attainment == outcome.attainment
    assert result.to_dict()["variants"][NAME]["accuracy"] == of_name(result).accuracy


def test_load_is_offered_to_the_name_alone() -> None:
    assert loaded(variant_plan(), SimOptions()) == ((NAME,), ())
    assert not len(at(variant_plan(), 1.0, models=(CHEAP,)).requests)


def test_accuracy_comes_back_when_a_burst_is_over() -> None:
    plan = variant_plan()
    rate = plan.own_rate_rps(NAME)
    gaps = np.concatenate([np.full(4000, 1e6 / (0.7 * rate)), np.full(8000, 1e6 / (2.5 * rate))])
    gaps = np.concatenate([gaps, np.full(8000, 1e6 / (0.7 * rate))])
    instants = np.cumsum(gaps).astype(np.int64)
    seconds = float(instants[-1]) / 1e6
    result = simulate(
        plan,
        SimOptions(
            arrivals=Replay(by_model={NAME: instants}),
            rate_rps=len(instants) / seconds,
            duration_s=seconds,
        ),
    )
    model = result.requests["model"]
    assert (model[:3900] == 0).all()
    assert (model[6000:11_900] == 1).all()
    assert (model[14_000:] == 0).all()
    assert (result.requests["outcome"] == SERVED).all()


def test_admission_lets_the_cheap_one_have_the_time_of_all() -> None:
    without, both = at(plain_plan(), 3.0, admission=True), at(variant_plan(), 3.0, admission=True)
    assert of_name(both).outcome.served >= 1.8 * without.models[0].served


def test_where_half_of_the_gpus_are_lost_the_cheap_one_serves_all() -> None:
    lost = tuple(Failure(start_s=2.0, end_s=7.0, vgpu=vgpu) for vgpu in (0, 1))
    without, both = (at(plan, 1.0, failures=lost) for plan in (plain_plan(), variant_plan()))
    meanwhile, after = (
        (both.requests["arrival_us"] > 1e6 * start) & (both.requests["arrival_us"] < 1e6 * end)
        for start, end in ((2.5, 7.0), (7.5, 10.0))
    )
    assert without.models[0].attainment < 0.85
    assert of_name(both).outcome.attainment > 0.999
    assert (both.requests["model"][meanwhile] == 1).mean() > 0.9
    assert (both.requests["model"][after] == 0).mean() > 0.9


def test_a_plan_that_takes_over_knows_what_is_lost() -> None:
    plan = variant_plan()
    lost = tuple(Failure(start_s=0.0, vgpu=vgpu) for vgpu in (0, 1))
    result = at(plan, 1.0, failures=lost, changes=(PlanChange(at_s=5.0, plan=plan),))
    late = result.requests["arrival_us"] > 6e6
    assert (result.requests["model"][late] == 1).mean() > 0.9
    assert (result.requests["outcome"][late] == SERVED).all()


@pytest.mark.parametrize("adds", [True, False])
def test_a_change_of_plan_adds_or_removes_a_variant(adds: bool) -> None:
    plans = (plain_plan(), variant_plan()) if adds else (variant_plan(), plain_plan())
    change = PlanChange(at_s=SECONDS / 2, plan=plans[1])
    result = at(plans[0], 3.0, changes=(change,))
    late = result.requests["arrival_us"] > (SECONDS / 2 + 1) * 1e6
    assert not (result.requests["outcome"] == OPEN).any()
    served = [(result.requests["outcome"][which] == 1).mean() for which in (~late, late)]
    assert served[1] > 1.5 * served[0] if adds else served[1] < 0.7 * served[0]
    assert (result.requests["model"][late] == 0).all()  # as of the first plan, without the other


def test_low_requests_take_the_cheapest() -> None:
    result = at(variant_plan(), 0.3, low_load_factor=0.2)
    low = result.requests["low"] == 1
    assert (result.requests["model"][low] == 1).all()
    assert (result.requests["model"][~low] == 0).all()
