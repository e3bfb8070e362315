"""Arrival processes: rates, spreads and repeatability.

Trace texts of three forms and their faults.
"""

from collections.abc import Callable

import numpy as np
import pytest

from triton_backend.contract import arrivals
from triton_backend.contract.errors import InputError
from triton_backend.contract.units import US_PER_S

MINUTE_US = 60 * US_PER_S


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_poisson_has_its_rate_and_its_spread() -> None:
    times = arrivals.poisson_us(500, 10 * MINUTE_US, rng())
    gaps = np.diff(times)
    assert len(times) == pytest.approx(300_000, rel=0.01)
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.02)


def test_gamma_gaps_have_a_cv_of_one_over_the_root_of_the_shape() -> None:
    gaps = np.diff(arrivals.gamma_us(500, 10 * MINUTE_US, 0.25, rng()))
    assert gaps.mean() == pytest.approx(2_000, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(2, rel=0.03)


def test_same_seed_gives_the_same_instants_and_another_seed_others() -> None:
    first = arrivals.gamma_us(100, MINUTE_US, 0.3, rng(7))
    assert np.array_equal(first, arrivals.gamma_us(100, MINUTE_US, 0.3, rng(7)))
    assert not np.array_equal(first, arrivals.gamma_us(100, MINUTE_US, 0.3, rng(8)))


def test_deterministic_is_evenly_spaced_from_zero() -> None:
    assert arrivals.deterministic_us(4, US_PER_S).tolist() == [0, 250_000, 500_000, 750_000]


@pytest.mark.parametrize("shape", [0.05, 0.3, 1.0])
def test_all_instants_lie_in_the_duration_and_in_order(shape: float) -> None:
    times = arrivals.gamma_us(30, MINUTE_US, shape, rng())
    assert times[0] >= 0
    assert times[-1] < MINUTE_US
    assert np.all(np.diff(times) >= 0)


def test_no_rate_or_no_time_offers_nothing() -> None:
    assert len(arrivals.poisson_us(0, MINUTE_US, rng())) == 0
    assert len(arrivals.deterministic_us(5, 0)) == 0


@pytest.mark.parametrize("rate_rps", [-1.0, float("inf"), float("nan")])
def test_what_is_no_rate_is_named(rate_rps: float) -> None:
    with pytest.raises(InputError, match=f"rate {rate_rps} is not a number of requests"):
        arrivals.poisson_us(rate_rps, MINUTE_US, rng())


def test_replay_keeps_the_pattern_and_gives_the_rate() -> None:
    times = arrivals.replay_us(np.array([5, 6, 16, 17, 27]), 4, US_PER_S)
    assert len(times) == 4
    gaps = np.diff(times)
    assert gaps[1] == pytest.approx(10 * gaps[0], rel=0.01)


@pytest.mark.parametrize(("rate_rps", "instants"), [(2.0, [0, 0]), (0.4, [])])
def test_replay_of_requests_of_one_instant_is_of_one_instant(
    rate_rps: float, instants: list[int]
) -> None:
    """Times in whole seconds, and fewer requests than the first second has."""
    trace_us = np.array([0, 0, 0, US_PER_S, US_PER_S])
    assert arrivals.replay_us(trace_us, rate_rps, US_PER_S).tolist() == instants


def test_replay_starts_over_when_the_trace_is_short() -> None:
    times = arrivals.replay_us(np.array([0, 1, 3]), 6, US_PER_S)
    gaps = np.diff(times)
    assert gaps[1] == pytest.approx(2 * gaps[0], rel=0.01)
    assert gaps[2] == pytest.approx(gaps[0], rel=0.01)


def test_stated_gaps_are_looped() -> None:
    assert arrivals.gaps_us(np.array([10.0, 20.0]), 70).tolist() == [0, 10, 30, 40, 60]


def test_counts_follow_their_steps() -> None:
    counts = np.array([1_000.0, 0.0, 3_000.0])
    times = arrivals.counts_us(counts, US_PER_S, 3 * US_PER_S, rng())
    got = np.histogram(times, bins=3, range=(0, 3 * US_PER_S))[0]
    assert got[0] == pytest.approx(1_000, rel=0.15)
    assert got[1] == 0
    assert got[2] == pytest.approx(3_000, rel=0.1)


def test_an_interval_of_counts_may_be_a_microsecond() -> None:
    times = arrivals.counts_us(np.array([0.0, 50.0]), 1, 3, rng())
    assert set(times.tolist()) == {1}


def test_scaled_counts_have_the_mean_rate() -> None:
    scaled = arrivals.scaled_counts(np.array([1.0, 3.0]), 60 * US_PER_S, 10)
    assert scaled.tolist() == [300, 900]


@pytest.mark.parametrize(
    "call",
    [
        lambda: arrivals.poisson_us(float("nan"), 1, rng()),
        lambda: arrivals.poisson_us(-1, 1, rng()),
        lambda: arrivals.gamma_us(1, 1, 0, rng()),
        lambda: arrivals.replay_us(np.array([3]), 1, US_PER_S),
        lambda: arrivals.gaps_us(np.array([0.0]), 1),
        lambda: arrivals.counts_us(np.empty(0), 1, 1, rng()),
        lambda: arrivals.scaled_counts(np.zeros(3), 1, 1),
        lambda: arrivals.gamma_us(1, 1, float("inf"), rng()),
        lambda: arrivals.poisson_us(1e300, US_PER_S, rng()),
        lambda: arrivals.deterministic_us(1e9, US_PER_S),
        lambda: arrivals.replay_us(np.array([3, 5]), 1e9, US_PER_S),
        lambda: arrivals.gaps_us(np.array([1e-9]), US_PER_S),
        lambda: arrivals.gaps_us(np.full(1_000, 0.01), US_PER_S),
        lambda: arrivals.counts_us(np.array([1e300]), 1, 1, rng()),
        lambda: arrivals.counts_us(np.array([1.0]), 1, 10**15, rng()),
        lambda: arrivals.counts_us(np.array([0.0]), 1, 10**15, rng()),
        lambda: arrivals.gamma_us(1, US_PER_S, 1e-300, rng()),
    ],
    ids=[
        "no number",
        "negative",
        "shape",
        "one request",
        "no time",
        "no counts",
        "all zero",
        "endless shape",
        *(f"too many: {name}" for name in ("random", "even", "replayed", "gap", "gaps", "counts")),
        *(f"too many: {name}" for name in ("rounds", "intervals", "likely gaps")),
    ],
)
def test_what_cannot_be_offered_is_the_callers_fault(call: Callable[[], object]) -> None:
    with pytest.raises(InputError):
        call()


def test_gaps_that_are_nearly_all_zero_end_in_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "MOST_REQUESTS", 10_000)
    with pytest.raises(InputError, match="more than 10,000"):
        arrivals.gamma_us(1, US_PER_S, 1e-6, rng())


REQUESTS = ["t_s,service,tokens", "2.5,code,1", "1.0,conv,2", "1.5,code,3"]
COUNTS = ["minute,a,b", "0,1,5", "1,0,2"]


def test_requests_start_at_zero_and_are_sorted_per_model() -> None:
    series = arrivals.parse_requests(REQUESTS, time_column="t_s", model_column="service")
    assert {name: times.tolist() for name, times in series.items()} == {
        "code": [500_000, 1_500_000],
        "conv": [0],
    }


def test_without_a_model_column_there_is_one_series() -> None:
    series = arrivals.parse_requests(REQUESTS, time_column="t_s")
    assert series[arrivals.ANY_MODEL].tolist() == [0, 500_000, 1_500_000]


def test_a_map_renames_and_leaves_out() -> None:
    series = arrivals.parse_requests(
        REQUESTS, time_column="t_s", model_column="service", names={"code": "resnet"}
    )
    assert list(series) == ["resnet"]
    counts = arrivals.parse_counts(COUNTS, names={"b": "resnet"})
    assert counts["resnet"].tolist() == [5, 2]


def test_counts_take_every_column_but_the_first() -> None:
    counts = arrivals.parse_counts(COUNTS)
    assert {name: values.tolist() for name, values in counts.items()} == {"a": [1, 0], "b": [5, 2]}


def test_counts_of_several_columns_of_one_model_add_up() -> None:
    counts = arrivals.parse_counts(COUNTS, names={"a": "resnet", "b": "resnet"})
    assert counts["resnet"].tolist() == [6, 2]


def test_intervals_are_told_from_tables_by_the_first_line() -> None:
    assert arrivals.is_intervals("1000\n")
    assert not arrivals.is_intervals("arrival_s\n")
    assert np.array_equal(arrivals.parse_intervals(["10\n", "20\n", "\n"]), [10, 20])


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: arrivals.parse_requests(REQUESTS), "no column 'arrival_s'"),
        (lambda: arrivals.parse_requests(["arrival_s"]), "no requests"),
        (lambda: arrivals.parse_requests(["arrival_s", "x"]), "trace line 2"),
        (lambda: arrivals.parse_counts(COUNTS, names={"z": "m"}), "no column 'z'"),
        (lambda: arrivals.parse_counts(COUNTS, names={"minute": "m"}), "no column 'minute'"),
        (lambda: arrivals.parse_counts(["minute,a,a", "0,1,2"]), "column 'a' is there twice"),
        (lambda: arrivals.parse_counts(["minute,a"]), "needs a header"),
        (lambda: arrivals.parse_counts(["minute,a", "0,nan"]), "not a number"),
        (lambda: arrivals.parse_counts(["minute,a", "", "0,-1"]), "line 3: a '-1' is no count"),
        (lambda: arrivals.parse_counts(["minute,a,b", "0,1"]), "line 2: 2 columns, not 3"),
        (lambda: arrivals.parse_counts(["minute,a", "x" * 200_000]), "not CSV: field larger"),
        (lambda: arrivals.parse_requests(["x" * 200_000]), "trace: not CSV: field"),
        (lambda: arrivals.parse_stated(["x" * 200_000]), "not CSV: field larger than"),
        (lambda: arrivals.parse_requests(["arrival_s", "1e300"]), "line 2: arrival_s '1e300'"),
        (lambda: arrivals.parse_requests([]), "it has none at all"),
        (lambda: arrivals.parse_intervals(["5", "-1"]), "0 or more"),
        (lambda: arrivals.parse_stated(["arrival_s", "-1"]), "line 2: arrival_s -1.0 is before"),
        (lambda: arrivals.parse_stated(["arrival_s,samples", "1,1.5"]), "samples 1.5 is no number"),
        (lambda: arrivals.parse_stated(["arrival_s,deadline_ms", "1,0"]), "0.0 is not positive"),
        (lambda: arrivals.parse_stated(["arrival_s,model"], model_column="m"), "no column 'm'"),
    ],
)
def test_faults_are_named(call: Callable[[], object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        call()


def test_a_deadline_of_one_microsecond_is_one() -> None:
    stated = arrivals.parse_stated(["arrival_s,deadline_ms", "1,0.001"])
    assert stated.deadline_us.tolist() == [1]
