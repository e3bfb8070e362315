"""Plans on wrong numbers: less goodput the further off they are, and named cases."""

from dataclasses import replace

import pytest

from tests.fakes.plans import two_stages
from triton_backend.contract.errors import InputError
from triton_backend.simulator.goodput import tolerance
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

OPTIONS = SimOptions(duration_s=5, keep_uses=False)


def test_goodput_falls_as_latencies_rise_and_with_a_higher_rate() -> None:
    plan = two_stages()
    kept = {each.case: each.load_factor for each in tolerance(plan, OPTIONS)}
    factors = [kept[f"latencies x {factor}"] for factor in ("1", "1.1", "1.2", "1.5")]
    assert factors == sorted(factors, reverse=True)
    assert factors[0] > factors[-1]
    for model in plan.models:
        # A model at 1.2 times its rate reaches its share of the load at 1 / 1.2 of the factor.
        assert kept[f"{model.name}: rate x 1.2"] <= factors[0]


def test_latencies_are_as_much_longer_as_asked() -> None:
    plan = two_stages()
    slow = SimOptions(load_factor=0.05, duration_s=5, latency_factor=1.5)
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
