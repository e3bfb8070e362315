"""The search for goodput on its grid, and what is left of it on wrong numbers."""

from dataclasses import replace

import pytest

from tests.fakes.plans import Own, make_plan, two_stages
from triton_backend.contract.errors import InputError
from triton_backend.simulator.goodput import find_goodput, goodput_report, grid_of, tolerance
from triton_backend.simulator.offered import Deterministic
from triton_backend.simulator.results import Goodput
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

REGULAR = SimOptions(arrivals=Deterministic(), duration_s=5)
RANDOM = SimOptions(duration_s=5, keep_uses=False)


def test_a_plan_that_holds_its_rate_has_its_rate_as_goodput() -> None:
    plan = make_plan([[Own(latency_us=(10_000,), gpus=4)]], slo_us=50_000)
    assert find_goodput(plan, REGULAR) == Goodput(load_factor=1.0, rps=400.0)


def test_half_the_cluster_holds_half_the_reference_rate() -> None:
    reference = make_plan([[Own(latency_us=(10_000,), gpus=4)]], slo_us=50_000)
    plan = make_plan([[Own(latency_us=(10_000,), gpus=2)]], slo_us=50_000)
    options = SimOptions(arrivals=Deterministic(), duration_s=5, reference=reference)
    assert find_goodput(plan, options) == Goodput(load_factor=0.5, rps=200.0)


def test_a_finer_grid_finds_more() -> None:
    reference = make_plan([[Own(latency_us=(10_000,), gpus=20)]], slo_us=50_000)
    plan = make_plan([[Own(latency_us=(10_000,), gpus=11)]], slo_us=50_000)
    options = SimOptions(arrivals=Deterministic(), duration_s=5, reference=reference)
    found = [find_goodput(plan, options, step=step).load_factor for step in (0.3, 0.1, 0.05)]
    assert found == [0.4, 0.5, 0.55]


def test_load_factors_end_above_nothing() -> None:
    assert grid_of(0.3) == (1.0, 0.7, 0.4)
    assert grid_of(0.5) == (1.0, 0.5)
    assert grid_of(1.0) == (1.0,)
    assert grid_of() == tuple(k / 20 for k in range(20, 0, -1))


def test_a_plan_that_cannot_keep_its_slo_has_none() -> None:
    plan = make_plan([[Own(latency_us=(10_000,))]], slo_us=5_000)
    assert find_goodput(plan, REGULAR) == Goodput(load_factor=0.0, rps=0.0)


@pytest.mark.parametrize("slo_us", [5_000, 50_000])
def test_a_rate_without_a_request_holds_nothing(slo_us: int) -> None:
    plan = make_plan([[Own(latency_us=(10_000,), gpus=4)]], slo_us=slo_us)
    short = replace(RANDOM, duration_s=0.01 if slo_us < 10_000 else 1e-6)
    with pytest.raises(InputError, match=r"duration: .* has no request of m0 at load factor"):
        find_goodput(plan, short)


def test_the_report_has_the_joint_figure_and_each_model_alone() -> None:
    pool = [[Own(latency_us=(10_000,), gpus=4)]]
    report = goodput_report(make_plan(pool, pool, slo_us=50_000), REGULAR)
    assert report == {
        "joint": {"load_factor": 1.0, "rps": 800.0},
        "models": {
            "m0": {"load_factor": 1.0, "rps": 400.0},
            "m1": {"load_factor": 1.0, "rps": 400.0},
        },
    }


def test_goodput_falls_as_latencies_rise_and_with_a_higher_rate() -> None:
    plan = two_stages()
    kept = {each.case: each.load_factor for each in tolerance(plan, RANDOM)}
    factors = [kept[f"latencies x {factor}"] for factor in ("1", "1.1", "1.2", "1.5")]
    assert factors == sorted(factors, reverse=True)
    assert factors[0] > factors[-1]
    for model in plan.models:
        # A model at 1.2 times its rate reaches its share of the load at 1 / 1.2 of the factor.
        assert kept[f"{model.name}: rate x 1.2"] <= factors[0]


def test_latencies_are_as_much_longer_as_asked() -> None:
    plan = two_stages()
    slow = SimOptions(load_factor=0.05, duration_s=5, latency_factor=1.5, measured=False)
    usual, longer = (simulate(plan, each) for each in (replace(slow, latency_factor=1.0), slow))
    for before, after in zip(usual.models, longer.models, strict=True):
        assert (after.latency_ms.p50 or 0) > 1.2 * (before.latency_ms.p50 or 1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"latency_factor": 0.0}, "latency_factor: 0.0 is not positive"),
        ({"rate_factors": {"alpha": -1.0}}, "rate_factors.alpha: -1.0 is not 0 or more"),
    ],
)
def test_factors_that_mean_nothing_are_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        SimOptions(**change)  # pyright: ignore[reportArgumentType]


def test_a_rate_of_an_unknown_model_is_refused() -> None:
    with pytest.raises(InputError, match="rate_factors: 'other' is none of"):
        simulate(two_stages(), SimOptions(rate_factors={"other": 2.0}))
