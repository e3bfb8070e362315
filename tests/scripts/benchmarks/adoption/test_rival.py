"""Figures of Triton's batcher beside ours, both served."""

from argparse import Namespace
from typing import Any

import pytest

from scripts.benchmarks.adoption.rival import (
    FEWEST,
    LEAST_SLO_US,
    OURS,
    Problem,
    figures_of,
    goodput,
    lasts,
    rising,
    simulated,
    stretch_of,
)
from scripts.benchmarks.served import small_plan
from scripts.paper.tuning import Configuration
from triton_backend.simulator.papers.triton import TRITON
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions


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
    plan = small_plan("slow", stage_us=16_000)
    rates = sum(model.throughput_rps for model in plan.models)
    assert stretch_of(plan, 2 * rates) == pytest.approx(LEAST_SLO_US / 80_000)
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


def test_a_side_that_never_answers_99_percent_is_the_least() -> None:
    """Left out of the mean it would flatter the others."""
    figures = figures_of(
        [
            *rows("a", TRITON, (0.5, 1.0), (1.0, 0.8)),
            *rows("a", OURS, (0.5, 0.98), (1.0, 1.0)),
            *rows("b", TRITON, (0.5, 1.0), (1.0, 0.8)),
            *rows("b", OURS, (0.5, 1.0), (1.0, 1.0)),
        ]
    )
    values = {figure.name: figure.value for figure in figures}
    assert values["PoolPipe / Triton, 99% in time, least"] == 0
    assert values["PoolPipe / Triton, 99% in time, mean of ratios"] == 0


def test_a_load_lasts_until_one_late_request_is_less_than_a_percent() -> None:
    plan = small_plan("slow", stage_us=16_000)
    problem = Problem(name="one", reference=plan, sides={}, stretch=3.0)
    rate_rps = min(model.throughput_rps for model in plan.models)
    assert lasts(problem, 0.1, 1e-3) == pytest.approx(FEWEST / (0.1 * rate_rps))
    assert lasts(problem, 1.0, 1e4) == 3e4


def test_a_row_states_all_requests_where_the_search_had_enough() -> None:
    plan = small_plan("overloaded")
    whole = SimOptions(reference=plan, load_factor=2.0, seed=1, duration_s=20.0)
    searched = SimOptions(duration_s=5.0, give_up_below=0.99)
    sides = {OURS: Configuration(name="as planned", plan=plan, options=searched)}
    problem = Problem(name="one", reference=plan, sides=sides)
    asked = Namespace(seed=1, seconds=20.0)
    assert lasts(problem, 2.0, 20.0) == 20.0
    share = simulated(problem, OURS, 2.0, asked)
    assert share == simulate(plan, whole).least_attainment
    assert 0 < share < 0.99
