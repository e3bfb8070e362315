"""When requests come: arrival instants of one model, drawn from an explicit generator.

Here: the arrival processes the simulator and the load generator share, so that both can offer the
very same load. All functions return sorted int64 microseconds in [0, duration_us), and raise
`InputError` for a rate, shape or trace that cannot be offered.
Not here: reading trace files (`traces` parses their text), rates of a plan.
"""

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError
from triton_backend.contract.units import US_PER_S

Instants = NDArray[np.int64]
MOST_REQUESTS = 50_000_000  # of one model in one run: 4 GB of records


def poisson_us(rate_rps: float, duration_us: int, rng: np.random.Generator) -> Instants:
    """A Poisson process of `rate_rps`."""
    return gamma_us(rate_rps, duration_us, 1.0, rng)


def gamma_us(rate_rps: float, duration_us: int, shape: float, rng: np.random.Generator) -> Instants:
    """Gamma-distributed gaps of mean 1 / rate; their CV is 1 / sqrt(shape).

    Shape 1 is Poisson, below 1 is burstier. The first request comes one gap after 0.
    """
    if not 0 < shape < float("inf"):
        raise InputError("arrivals", f"gamma shape {shape} is not a positive number")
    if not _offers(rate_rps, duration_us):
        return _none()
    mean_gap_us = US_PER_S / rate_rps
    expected = duration_us / mean_gap_us
    draw = int(expected + 6 * np.sqrt(expected / shape)) + 16
    times = np.cumsum(rng.gamma(shape, mean_gap_us / shape, draw))
    while times[-1] < duration_us:
        more = np.cumsum(rng.gamma(shape, mean_gap_us / shape, draw))
        times = np.concatenate([times, times[-1] + more])
    return times[times < duration_us].astype(np.int64)


def deterministic_us(rate_rps: float, duration_us: int) -> Instants:
    """One request every 1 / rate, the first at 0."""
    if not _offers(rate_rps, duration_us):
        return _none()
    gap_us = US_PER_S / rate_rps
    count = int(np.ceil(duration_us / gap_us))
    times = (np.arange(count) * gap_us).astype(np.int64)
    return times[times < duration_us]


def replay_us(trace_us: Instants, rate_rps: float, duration_us: int) -> Instants:
    """A trace's own bursts at a stated mean rate.

    Takes the first `rate x duration` requests (the trace starts over where it is shorter) and
    stretches their time so that they fill the duration: the count is right whatever the trace's
    own rate, the pattern of gaps is the trace's.
    """
    if not _offers(rate_rps, duration_us):
        return _none()
    count = round(rate_rps * duration_us / US_PER_S)
    gaps = np.diff(np.asarray(trace_us, dtype=np.float64))
    if len(gaps) == 0 or gaps.sum() <= 0:
        raise InputError("arrivals", f"a trace of {len(trace_us)} requests spans no time")
    times = np.concatenate([[0.0], np.cumsum(np.resize(gaps, count))])
    return (times[:count] * (duration_us / times[count])).astype(np.int64)


def gaps_us(gaps: NDArray[np.float64], duration_us: int) -> Instants:
    """Stated gaps, over and over: the first request at 0, the next after `gaps[0]`."""
    total = float(gaps.sum())
    if len(gaps) == 0 or gaps.min() < 0 or total <= 0:
        raise InputError("arrivals", f"{len(gaps)} gaps that last {total} µs together")
    rounds = int(duration_us // total) + 1
    _check_count(rounds * len(gaps))
    times = np.concatenate([[0.0], np.cumsum(np.tile(gaps, rounds))])
    return times[times < duration_us].astype(np.int64)


def counts_us(
    counts: NDArray[np.float64], interval_us: int, duration_us: int, rng: np.random.Generator
) -> Instants:
    """A Poisson process whose rate steps: `counts[i]` requests expected in interval i.

    The counts start over where they are shorter than the duration.
    """
    if len(counts) == 0 or interval_us < 1:
        raise InputError("arrivals", f"{len(counts)} counts of {interval_us} µs each")
    intervals = -(-duration_us // interval_us)
    expected = np.resize(counts, intervals)
    _check_count(float(expected.sum()))
    drawn = rng.poisson(expected)
    starts = np.repeat(np.arange(intervals) * interval_us, drawn)
    times = np.sort(starts + rng.random(len(starts)) * interval_us).astype(np.int64)
    return times[times < duration_us]


def scaled_counts(
    counts: NDArray[np.float64], interval_us: int, rate_rps: float
) -> NDArray[np.float64]:
    """Counts with the same shape over time and a mean rate of `rate_rps`."""
    mean = float(counts.mean()) if len(counts) else 0.0
    if mean <= 0:
        raise InputError("arrivals", "a trace without requests cannot be scaled to a rate")
    return counts * (rate_rps * interval_us / US_PER_S / mean)


def _offers(rate_rps: float, duration_us: int) -> bool:
    if not 0 <= rate_rps < float("inf"):
        raise InputError("arrivals", f"rate {rate_rps} is not a number of requests per second")
    _check_count(rate_rps * duration_us / US_PER_S)
    return rate_rps > 0 and duration_us > 0


def _check_count(expected: float) -> None:
    if not expected <= MOST_REQUESTS:
        raise InputError("arrivals", f"{expected:.3g} requests, more than {MOST_REQUESTS:,}")


def _none() -> Instants:
    return np.empty(0, dtype=np.int64)
