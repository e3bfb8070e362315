"""Runs that end once their verdict is sure: the same verdict, sooner."""

from dataclasses import replace

import pytest

from tests.fakes.plans import Own, make_plan
from triton_backend.contract.plan import Plan
from triton_backend.simulator.early_end import surely_below
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

LEAST = 0.99
LOADS = (0.2, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.2, 2.0)


def plan() -> Plan:
    """Two models of unlike speed, one vGPU class each."""
    return make_plan(
        [[Own(latency_us=(4_000, 5_000, 6_000), gpus=3)]],
        [[Own(latency_us=(9_000, 12_000), gpus=2)]],
        slo_us=40_000,
    )


@pytest.mark.parametrize("policy", [None, "triton", "reactive"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_verdicts_are_those_of_whole_runs(policy: str | None, seed: int) -> None:
    whole = SimOptions(policy=policy, duration_s=3, seed=seed)
    verdicts: set[bool] = set()
    sooner = 0
    for load in LOADS:
        full = simulate(plan(), replace(whole, load_factor=load))
        short = simulate(plan(), replace(whole, load_factor=load, give_up_below=LEAST))
        holds = full.least_attainment >= LEAST
        assert (short.least_attainment >= LEAST) == holds
        verdicts.add(holds)
        sooner += short.steps < full.steps
        if holds:
            assert short.requests.tolist() == full.requests.tolist()
    assert verdicts == {True, False}
    assert (sooner > 0) == (policy != "reactive")  # which never looks


def test_low_requests_do_not_count() -> None:
    options = SimOptions(duration_s=2, load_factor=0.5, low_load_factor=3.0)
    result = simulate(plan(), replace(options, give_up_below=LEAST))
    lost = result.requests[result.requests["low"] == 1]["outcome"] > 1
    assert lost.mean() > 1 - LEAST
    assert not surely_below(result.requests, LEAST)
    assert result.requests.tolist() == simulate(plan(), options).requests.tolist()


def test_nothing_is_below_where_nothing_is_asked() -> None:
    result = simulate(plan(), SimOptions(duration_s=1, load_factor=3.0))
    assert surely_below(result.requests, LEAST)
    assert not surely_below(result.requests, None)
    assert not surely_below(result.requests[:0], LEAST)
