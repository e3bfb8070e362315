"""Figures of Triton's batcher beside ours, both served."""

from typing import Any

import pytest

from scripts.benchmarks.adoption.rival import (
    LEAST_SLO_US,
    OURS,
    figures_of,
    goodput,
    rising,
    stretch_of,
)
from scripts.benchmarks.served import small_plan
from triton_backend.simulator.papers.triton import TRITON


def test_loads_rise_in_turns_until_a_side_has_had_enough() -> None:
    shares = {
        TRITON: {0.5: 1.0, 1.0: 0.89},
        OURS: {0.5: 1.0, 1.0: 0.995, 1.5: 0.93, 2.0: 0.89},
    }
    found = list(rising(lambda side, load: shares[side][load], (TRITON, OURS), 0.5))
    assert [(side, load) for side, load, _ in found] == [
        (TRITON, 0.5),
        (OURS, 0.5),
        (TRITON, 1.0),
        (OURS, 1.0),
        (OURS, 1.5),
        (OURS, 2.0),
    ]
    assert all(share == shares[side][load] for side, load, share in found)
    points = [*shares[OURS].items()]
    assert goodput(points) == 1.0
    assert goodput(points, 0.93) == 1.5
    assert goodput([(0.5, 0.98), (1.0, 1.0)]) == 0.0


def test_a_plan_is_slowed_down_as_far_as_its_rates_and_slos_need() -> None:
    plan = small_plan("slow", stage_us=15_000)
    rates = sum(model.throughput_rps for model in plan.models)
    assert stretch_of(plan, 2 * rates) == pytest.approx(LEAST_SLO_US / 75_000)
    assert stretch_of(plan, rates / 10) == pytest.approx(10, abs=0.11)
    assert stretch_of(small_plan("slow", stage_us=80_000), 1e6) == 1.0


def rows(problem: str, side: str, *points: tuple[float, float]) -> list[dict[str, Any]]:
    return [
        {
            "problem": problem,
            "side": side,
            "load": load,
            "rate_rps": 100 * load,
            "attainment": share,
            "simulated": 1.0,
        }
        for load, share in points
    ]


def test_ratios_are_of_the_highest_rates_in_time() -> None:
    figures = figures_of(
        [
            *rows("a", TRITON, (0.5, 1.0), (1.0, 0.8)),
            *rows("a", OURS, (0.5, 1.0), (1.0, 0.99), (1.5, 0.7)),
            *rows("b", TRITON, (0.5, 0.5)),
            *rows("b", OURS, (0.5, 1.0), (1.0, 0.95), (1.5, 0.7)),
        ]
    )
    values = {figure.name: figure.value for figure in figures}
    assert values[f"a: {TRITON}, 99% in time"] == 50
    assert values["a: PoolPipe / Triton, 99% in time"] == 2
    assert values["a: PoolPipe / Triton, 95% in time"] == 2
    assert values["b: PoolPipe / Triton, 99% in time"] is None
    assert values[f"b: {OURS}, 95% in time"] == 100
    assert "PoolPipe / Triton, 99% in time, least" not in values
    apart = values["served less simulated attainment, most, where 90 % are in time"]
    assert apart == pytest.approx(5)
