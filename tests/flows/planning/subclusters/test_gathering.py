"""The closed form: batches and GPUs of a rate, against the definition and the paper's table 2."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.planning.subclusters.gathering import curves, staggered, uncoordinated


def affine_us(alpha_us: float, beta_us: float, batches: int = 64) -> np.ndarray:
    return alpha_us * np.arange(1, batches + 1) + beta_us


@pytest.mark.parametrize(
    ("alpha_us", "beta_us", "slo_us", "together", "apart"),
    [
        (1_053, 5_072, 25_000, (16, 5_839), (7, 4_501)),  # ResNet50
        (5_090, 18_368, 70_000, (8, 1_083), (3, 713)),  # InceptionResNetV2
    ],
)
def test_the_analytic_figures_of_the_paper_on_eight_gpus(
    alpha_us: float,
    beta_us: float,
    slo_us: float,
    together: tuple[int, int],
    apart: tuple[int, int],
) -> None:
    table = affine_us(alpha_us, beta_us)
    for found, paper in (
        (staggered(table, slo_us, 8), together),
        (uncoordinated(table, slo_us, 8), apart),
    ):
        assert (found.batch, round(found.rate_rps)) == paper
    assert staggered(table, 100.0, 8) == (0, 0.0)


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
