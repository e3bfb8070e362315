"""The closed form: batches and GPUs of a rate, against the definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.planning.subclusters.gathering import curves

tables = st.lists(st.integers(1, 400), min_size=1, max_size=12).map(
    lambda steps: np.cumsum(steps).astype(float) * 10
)


@given(table=tables, slo_us=st.integers(10, 20_000), rate_rps=st.floats(0.1, 20_000))
def test_gpus_are_the_fewest_of_all_batches_that_meet_the_slo(
    table: np.ndarray, slo_us: int, rate_rps: float
) -> None:
    wanted = np.inf
    for batch, latency_us in enumerate(table.tolist(), start=1):
        wait_us = 0.0 if batch == 1 else batch / rate_rps * 1e6
        if latency_us + wait_us <= slo_us:
            wanted = min(wanted, rate_rps * latency_us / batch / 1e6)
    curve = curves(table[None, :], np.array([float(slo_us)]))
    rates = np.array([rate_rps], dtype=np.float64)
    found = float(curve.gpus(rates)[0])
    assert found == pytest.approx(wanted, rel=1e-9)
    assert bool(curve.possible[0]) == np.isfinite(wanted)
    if np.isfinite(wanted):
        batch = int(curve.batches(rates)[0])
        assert rate_rps * table[batch - 1] / batch / 1e6 == pytest.approx(wanted)
        higher = np.geomspace(rate_rps, 1e6, 300)
        least = float(curve.least_gpus(rates)[0])
        assert least <= min(float(curve.gpus(np.array([r]))[0]) for r in higher) * (1 + 1e-9)
        assert float(curve.least_gpus(2.0 * rates)[0]) >= least * (1 - 1e-12)


def test_a_latency_that_falls_with_the_batch_counts_as_its_running_maximum() -> None:
    curve = curves(np.array([[1_000.0, 900.0, 3_000.0]]), np.array([5_000.0]))
    assert curve.starts_rps[0, 1] == pytest.approx(2e6 / 4_000)


def test_batches_that_were_not_measured_are_not_planned() -> None:
    curve = curves(np.array([[1_000.0, np.inf], [9_000.0, np.inf]]), np.array([5_000.0, 5_000.0]))
    assert curve.possible.tolist() == [True, False]
    assert curve.batches(np.array([1e9, 1e9])).tolist()[0] == 1
    assert np.isinf(curve.gpus(np.array([1.0, 1.0]))[1])
