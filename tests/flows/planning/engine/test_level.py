"""The highest level.

Halving of what rises, and the bound of the relaxation against brute force.
"""

from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flows.planning.engine.columns import Pool
from flows.planning.engine.level import halved, highest, last, level_cover
from flows.planning.solver.arrays import Floats
from flows.planning.watch import Watch
from tests.flows.planning.engine.problems import Knapsacks


@given(st.floats(0.0, 1.0), st.floats(0.1, 1e3), st.integers(0, 60))
def test_halving_keeps_a_level_that_fits_below_one_that_does_not(
    share: float, high: float, halvings: int
) -> None:
    edge = share * high * 0.999
    low, above = halved(lambda level: level <= edge, 0.0, high, halvings)
    assert low <= edge < above <= high
    assert above - low <= high * (0.5**halvings + 1e-15)


@given(st.floats(0.01, 1.0), st.sampled_from((0.3, 1e-3, 1e-6)))
def test_halving_ends_as_close_as_is_asked(edge: float, close: float) -> None:
    looks: list[float] = []

    def fits(level: float) -> bool:
        looks.append(level)
        return level <= edge

    low, above = halved(fits, 0.0, 2.0, close=close)
    assert low <= edge < above
    assert above - low <= close * above
    assert 2.0 * 0.5 ** (len(looks) - 1) > close * edge


@given(st.integers(0, 50), st.integers(1, 50))
def test_the_last_whole_number_that_fits_is_found_in_few_looks(edge: int, more: int) -> None:
    looks: list[int] = []

    def fits(number: int) -> bool:
        looks.append(number)
        return number <= edge

    assert last(fits, 0, edge + more) == edge
    assert 2 ** (len(looks) - 1) <= edge + more


def two_machines(seed: int) -> tuple[Floats, Floats, Knapsacks]:
    """Two demands, machines of two kinds with whole batches of each: weights, machines, pricer."""
    draw = np.random.default_rng(seed)
    machines = draw.integers(0, 3, 2).astype(np.float64)
    pricer = Knapsacks(
        weight=draw.integers(2, 6, (2, 2)),
        room=draw.integers(6, 11, 2),
        fixed=np.zeros(2),
        item=np.zeros((2, 2)),
        own=np.zeros((2, 0)),
        use=np.eye(2),
        copies=5,
        fewest=np.zeros(2),
        most=np.full(2, 3.0),
        cheapest=np.zeros(2),
    )
    return draw.uniform(0.5, 2.0, 2), machines, pricer


def best_level(weight: Floats, capacity: Floats, pricer: Knapsacks) -> float:
    """The highest level of any whole plan."""
    columns = pricer.all()
    supply = columns.matrix(4)[:, :2]
    choices = [
        np.array(list({tuple(sum_) for sum_ in combined(supply[columns.group == g], int(n))}))
        for g, n in enumerate(capacity.tolist())
    ]
    return max(float(((a + b) / weight).min()) for a, b in product(*choices))


def combined(supply: Floats, count: int) -> list[Floats]:
    """Sums of so many rows, repeated ones too."""
    sums = [np.zeros(2)]
    for _ in range(count):
        sums = list({tuple(one + row): one + row for one in sums for row in supply}.values())
    return sums


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6))
@example(3046)  # where rounding leaves the level a reduced cost of -1e-16
def test_the_bound_is_not_below_the_best_level_with_capped_columns(seed: int) -> None:
    weight, capacity, pricer = two_machines(seed)
    best = best_level(weight, capacity, pricer)
    cover, relaxed = highest(level_cover(weight, capacity), weight, pricer, Pool(), Watch())
    assert -relaxed.bound >= best * (1 - 1e-6)
    assert relaxed.value == pytest.approx(relaxed.bound, abs=1e-6)
    # The cap: no column counts for more than a level that was proven out of reach.
    assert (cover.cap >= best * weight * (1 - 1e-6)).all()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6))
def test_a_level_that_is_enough_is_not_exceeded(seed: int) -> None:
    weight, capacity, pricer = two_machines(seed)
    best = best_level(weight, capacity, pricer)
    _, relaxed = highest(
        level_cover(weight, capacity, best / 2 + 0.1), weight, pricer, Pool(), Watch()
    )
    assert best / 2 * (1 - 1e-6) <= -relaxed.bound or best == 0
    assert -relaxed.bound <= (best / 2 + 0.1) * (1 + 1e-6)


def test_no_resources_leave_the_level_0() -> None:
    weight, _, pricer = two_machines(1)
    _, relaxed = highest(level_cover(weight, np.zeros(2)), weight, pricer, Pool(), Watch())
    assert relaxed.value == pytest.approx(0.0)
    assert relaxed.bound == pytest.approx(0.0)


def test_a_run_that_is_over_leaves_a_valid_bound() -> None:
    weight, _, pricer = two_machines(3)
    capacity, watch = np.array([2.0, 1.0]), Watch()
    watch.stop()
    _, relaxed = highest(level_cover(weight, capacity), weight, pricer, Pool(), watch)
    assert -relaxed.bound >= best_level(weight, capacity, pricer)


def test_a_demand_without_weight_asks_nothing() -> None:
    assert level_cover(np.array([0.0, 2.0]), np.ones(1)).cap.tolist() == [0.0, np.inf]
    assert level_cover(np.array([0.0, 2.0]), np.ones(1), 3.0).cap.tolist() == [0.0, 6.0]
    _, capacity, pricer = two_machines(3)
    weight = np.array([0.0, 1.0])
    _, relaxed = highest(level_cover(weight, capacity + 1), weight, pricer, Pool(), Watch())
    assert -relaxed.bound > 0
