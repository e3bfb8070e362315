"""GPUs and time handed out by relaxations of lines, against all GPUs and times one by one."""

from itertools import product
from math import inf

import numpy as np
import pytest
from scipy.optimize import linprog

from flows.planning.applications.lines import lines_to_plan
from flows.planning.pool.applications.line_bounds import LineLowerBounds, hand_out
from flows.planning.watch import Watch
from triton_backend.contract.workload import Workload

GPUS, PRICE = np.array([3, 4]), np.array([2.0, 0.7])
LIMIT_US = 30_000
LINES = lines_to_plan(
    Workload.from_dict(
        {
            "applications": [
                {
                    "name": "app",
                    "slo_ms": LIMIT_US / 1e3,
                    "rate_rps": 1.0,
                    "modules": [
                        {"name": "one", "model": "a"},
                        {"name": "two", "model": "b", "after": ["one"]},
                    ],
                }
            ]
        }
    ),
    "cost",
    {"app": 0.0},
)


def drawn(seed: int) -> list[LineLowerBounds]:
    draw = np.random.default_rng(seed)
    line_bounds: list[LineLowerBounds] = []
    for _ in range(len(LINES)):
        times = np.sort(draw.integers(2_000, 25_000, 6)).astype(float)
        usage = draw.uniform(0.1, 4.0, (6, 2)) * (draw.random((6, 2)) < 0.7)
        usage[usage.sum(axis=1) == 0] = 2.5
        line_bounds.append(LineLowerBounds(times, usage))
    return line_bounds


def suffices(line_bound: LineLowerBounds, budget_us: float, gpus: tuple[int, ...]) -> bool:
    usage = line_bound.usage[line_bound.times <= budget_us]
    found = linprog(
        np.zeros(len(usage)), A_ub=usage.T, b_ub=gpus, A_eq=np.ones((1, len(usage))), b_eq=[1]
    )
    return found.status == 0


def least(line_bounds: list[LineLowerBounds]) -> float:
    every = list(product(*(range(count + 1) for count in GPUS)))
    ways = [
        [
            (time, gpus)
            for time in line_bound.times
            for gpus in every
            if suffices(line_bound, time, gpus)
        ]
        for line_bound in line_bounds
    ]
    return min(
        (
            float(PRICE @ np.add(one[1], two[1]))
            for one, two in product(*ways)
            if one[0] + two[0] <= LIMIT_US and np.all(np.add(one[1], two[1]) <= GPUS)
        ),
        default=inf,
    )


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_is_the_least_cost_of_gpus_that_suffice(seed: int) -> None:
    """Every line gets GPUs for some mix of configurations within its time, ignoring vGPUs."""
    line_bounds = drawn(seed)
    expected = least(line_bounds)
    found = hand_out(LINES, GPUS, PRICE, line_bounds, Watch(), cutoff=100.0)
    assert found.bound == pytest.approx(min(expected, 100.0), rel=1e-4)
    assert (found.times is None) == (expected == inf)
    if found.times is not None:
        assert LINES.fit(found.times)


def test_nothing_below_a_cutoff_bounds_by_the_cutoff() -> None:
    """Where no plan of interest is left, what is known is as cheap as any."""
    cheapest = least(drawn(0))
    found = hand_out(LINES, GPUS, PRICE, drawn(0), Watch(), cutoff=0.9 * cheapest)
    assert found.bound == pytest.approx(0.9 * cheapest)
