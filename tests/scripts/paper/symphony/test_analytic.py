"""Batches and rates of eight GPUs are those of the paper's table 2."""

import numpy as np
import pytest

from scripts.paper.symphony.analytic import staggered, uncoordinated


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
