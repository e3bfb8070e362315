"""Guards and expected times follow true run times, as in a gateway."""

from dataclasses import replace

import numpy as np
import pytest

from tests.fakes.plans import Own, make_plan, two_tails
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.measured.guard import kept_back_us
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import PlanChange, SimOptions
from triton_backend.simulator.world import LATE, SERVED

SLO_US = 100_000
SLOW = SimOptions(policy="latest", duration_s=20, load_factor=0.3, latency_factor=1.15)


def one_stage(plan_id: str = "first") -> Plan:
    """Batches of 4 in 30 ms: one that is sent last is late where a stage is slower by a tenth."""
    own = Own(latency_us=(15_000, 20_000, 25_000, 30_000), gpus=2)
    return make_plan([[own]], slo_us=SLO_US, plan_id=plan_id)


def in_time(options: SimOptions, plan: Plan | None = None) -> float:
    return simulate(plan or one_stage(), options).attainment


@pytest.mark.parametrize("factor", [1.1, 1.3, 2.0])
def test_slow_stages_are_made_up_for(factor: float) -> None:
    slow = replace(SLOW, latency_factor=factor)
    blind, measured = (in_time(replace(slow, measured=each)) for each in (False, True))
    assert measured > 0.98 > blind


def test_run_times_as_profiled_are_not_measured() -> None:
    exact = replace(SLOW, latency_factor=1.0)
    runs = [simulate(one_stage(), replace(exact, measured=each)) for each in (False, True)]
    assert runs[0].requests.tobytes() == runs[1].requests.tobytes()


def test_a_slow_stage_takes_no_longer_because_it_is_expected() -> None:
    uses = simulate(one_stage(), replace(SLOW, latency_factor=2.0)).uses
    ran_us = uses["end_us"] - uses["start_us"]
    assert set(ran_us.tolist()) <= {30_000, 40_000, 50_000, 60_000}


def test_before_anything_is_known_a_tenth_is_kept_back() -> None:
    """So a batch that waits to the last moment ends that much sooner."""
    found = simulate(one_stage(), replace(SLOW, latency_factor=0.999, duration_s=1)).requests
    served = found[found["outcome"] == SERVED]
    spare_us = served["deadline_us"] - served["finish_us"]
    assert spare_us.min() >= kept_back_us(None, SLO_US)


def test_a_front_keeps_its_guard_over_a_change_of_plan() -> None:
    """At most the first half-second, before the first look, is late."""
    change = PlanChange(at_s=10, plan=one_stage(plan_id="next"))
    found = simulate(one_stage(), replace(SLOW, changes=(change,))).requests
    late = found[found["outcome"] != SERVED]
    assert len(found) - len(late) > 0.97 * len(found)
    assert not np.any((late["arrival_us"] > 10_000_000) & (late["arrival_us"] < 11_000_000))


def test_members_of_shared_batches_show_the_pace_of_their_stage() -> None:
    """Expected to take twice as long, it takes that, and its members are not late."""
    slow = SimOptions(latency_factor=2.0, load_factor=0.5, duration_s=10)
    result = simulate(two_tails(), slow)
    late = result.requests[result.requests["outcome"] == LATE]
    assert len(result.requests) > 50
    assert not np.any(late["arrival_us"] > 2_000_000)
