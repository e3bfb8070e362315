"""Column generation against a second solver.

Bounds at any prices, screening, an end at any time.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.planning.engine.columns import Columns, Pool
from flows.planning.engine.cover import (
    Generation,
    bound_at,
    raised,
    relax,
    restarted,
    screened,
)
from flows.planning.engine.master import Cover, Master, whole_program
from flows.planning.engine.pricing import Duals, Priced
from flows.planning.solver.arrays import Floats
from flows.planning.solver.solve import Limits, solve_integer
from flows.planning.watch import Watch
from tests.flows.planning.engine.problems import (
    Knapsacks,
    Problem,
    cutgen1,
    cutting_stock,
    some,
    some_duals,
)

CLOSE = 1e-6
EXACT = Limits(relative_gap=0.0, nodes=100_000)
numbers, seeds = st.integers(0, 39), st.integers(0, 10**6)


def above(bound: float, best: float) -> bool:
    """True if a bound claims more than the optimum costs."""
    return bound > best + CLOSE * max(1.0, abs(best))


def whole(problem: Problem, columns: Columns, fixed: int | None = None) -> float:
    """The least cost of a plan of these columns; with a fixed one among them."""
    if not len(columns):
        return np.inf
    most = np.full(len(columns), problem.cover.need.max())
    program = whole_program(problem.cover, columns, most)
    if fixed is not None:
        program.lower[fixed] = 1.0
    answer = solve_integer(program, EXACT)
    return np.inf if answer.values is None else -answer.bound


@settings(deadline=None, max_examples=200)
@given(numbers, seeds)
def test_any_prices_prove_a_bound_that_is_not_above_the_optimum(number: int, seed: int) -> None:
    problem = some(number)
    duals = some_duals(problem, seed)
    priced = problem.pricer.price(duals, problem.cover.cap)
    bound, proving = bound_at(problem.cover, problem.pricer, duals, priced)
    assert not above(bound, problem.best)
    again = problem.pricer.price(proving, problem.cover.cap)
    assert not np.isnan(bound)
    assert not above(bound_at(problem.cover, problem.pricer, proving, again)[0], problem.best)


@settings(deadline=None, max_examples=40)
@given(numbers)
def test_the_relaxation_ends_where_all_columns_together_do(number: int) -> None:
    problem = some(number)
    relaxed = relax(problem.cover, problem.pricer, Pool(), Watch())
    master = Master(problem.cover)
    master.add(problem.pricer.all())
    mixed = master.solve()
    assert mixed is not None
    assert relaxed.value == pytest.approx(mixed.value, rel=1e-6)
    assert relaxed.bound == pytest.approx(mixed.value, rel=1e-6)
    assert not above(relaxed.bound, problem.best)


@settings(deadline=None, max_examples=60)
@given(numbers, seeds, st.integers(1, 60), st.floats(0.0, 0.2))
def test_what_screening_leaves_out_costs_what_it_says(
    number: int, seed: int, most: int, above_best: float
) -> None:
    problem = some(number)
    pool = Pool()
    relaxed = relax(problem.cover, problem.pricer, pool, Watch(), rounds=seed % 6)
    known = problem.best * (1 + above_best)
    screen = screened(problem.cover, problem.pricer, relaxed.duals, known, most)
    inside = whole(problem, screen.columns)
    assert not above(min(inside, screen.outside), problem.best)
    assert not np.isnan(screen.outside)
    every = problem.pricer.all()
    with_each = screen.at_least(problem.cover, every)
    for n in np.argsort(-with_each)[:3].tolist():
        assert not above(float(with_each[n]), whole(problem, every, fixed=n))


@settings(deadline=None, max_examples=60)
@given(numbers, st.floats(0.001, 0.2))
def test_screening_with_room_for_all_keeps_every_better_plan(
    number: int, above_best: float
) -> None:
    problem = some(number)
    if np.isinf(problem.best):
        return
    relaxed = relax(problem.cover, problem.pricer, Pool(), Watch())
    known = problem.best * (1 + above_best)
    screen = screened(problem.cover, problem.pricer, relaxed.duals, known, 10**6)
    assert screen.outside >= known * (1 - 1e-9)
    assert whole(problem, screen.columns) == pytest.approx(problem.best)


class Unlucky(Knapsacks):
    """Answers whose least is 0 but for rounding."""

    def price(self, duals: Duals, cap: Floats) -> Priced:
        priced = Knapsacks.price(self, duals, cap)
        return replace(priced, least=priced.least - 1e-17)


def test_a_least_that_rounding_puts_below_zero_still_proves_a_bound() -> None:
    sizes, demand = np.array([50, 30]), np.array([2.0, 3.0])
    problem = cutting_stock(100, sizes, demand)
    values = {name: getattr(problem.pricer, name) for name in Knapsacks.__dataclass_fields__}
    duals = Duals(demand=np.array([0.4, 0.2]), resource=np.zeros(0))
    priced = replace(problem.pricer.price(duals, problem.cover.cap), least=np.array([-1e-17]))
    assert bound_at(problem.cover, Unlucky(**values), duals, priced)[0] == pytest.approx(1.4)


def test_a_group_without_columns_adds_nothing_unless_a_plan_needs_one() -> None:
    problem = some(3)  # agents that have one column at most
    duals = Duals.zero(len(problem.cover.need), len(problem.cover.capacity))
    priced = Priced(columns=Columns.none(), least=np.full(3, np.inf))
    assert bound_at(problem.cover, problem.pricer, duals, priced)[0] == 0.0
    needed = replace(problem.pricer, fewest=np.ones(3))
    assert bound_at(problem.cover, needed, duals, priced)[0] == np.inf


def test_an_infeasible_cover_costs_more_than_any_plan() -> None:
    problem = some(4)
    assert np.isinf(problem.best)
    demand = np.array([4.0, 4.0])
    few = cutting_stock(100, np.array([60, 70]), demand, stocks=5)
    assert np.isinf(few.best)
    relaxed = relax(few.cover, few.pricer, Pool(), Watch())
    assert relaxed.mixed is not None
    assert relaxed.mixed.missed.sum() == pytest.approx(3.0)
    assert relaxed.bound > 5.0


def test_columns_that_miss_a_demand_which_nothing_else_meets_have_no_relaxation() -> None:
    problem = some(0)
    cover = replace(problem.cover, missed=np.full(len(problem.cover.need), np.inf))
    relaxed = relax(cover, problem.pricer, Pool(), Watch())
    assert (relaxed.value, relaxed.bound, relaxed.mixed) == (np.inf, -np.inf, None)


def test_nothing_needed_costs_nothing() -> None:
    problem = some(0)
    nothing = restarted(problem.cover, np.zeros(len(problem.cover.need)), np.zeros(0))
    relaxed = relax(nothing, problem.pricer, Pool(), Watch())
    assert (relaxed.value, relaxed.bound) == (0.0, 0.0)


class StopsAfter(Knapsacks):
    """A pricer that ends the run at its n-th answer."""

    def price(self, duals: Duals, cap: Floats) -> Priced:
        left.append(0)
        if len(left) == stop_at[0]:
            watch[0].stop()
        return Knapsacks.price(self, duals, cap)


left: list[int] = []
stop_at, watch = [0], [Watch()]


@settings(deadline=None, max_examples=60)
@given(numbers, st.integers(0, 12))
def test_a_run_that_ends_at_any_time_leaves_a_valid_bound(number: int, answers: int) -> None:
    problem = some(number)
    left.clear()
    stop_at[0], watch[0] = answers, Watch()
    if not answers:
        watch[0].stop()
    values = {name: getattr(problem.pricer, name) for name in Knapsacks.__dataclass_fields__}
    pool = Pool()
    relaxed = relax(problem.cover, StopsAfter(**values), pool, watch[0])
    assert not above(relaxed.bound, problem.best)
    priced = problem.pricer.price(relaxed.duals, problem.cover.cap)
    proven = bound_at(problem.cover, problem.pricer, relaxed.duals, priced)[0]
    assert relaxed.bound <= proven + CLOSE * max(1.0, abs(proven))


def test_a_bound_that_is_enough_ends_the_run() -> None:
    problem = cutting_stock(60, np.array([35, 24, 14]), np.array([3.0, 5.0, 7.0]))
    full = relax(problem.cover, problem.pricer, Pool(), Watch())
    pool, enough = Pool(), full.bound / 2
    early = Generation(problem.cover, problem.pricer, pool, Watch(), enough=enough).run()
    assert enough <= early.bound <= full.bound + 1e-9
    assert early.value > full.value


def test_costs_are_raised_to_the_next_multiple() -> None:
    assert raised(2.1, 1.0) == 3.0
    assert raised(2.0000000001, 1.0) == 2.0
    assert raised(-0.5, 1.0) == 0.0
    assert raised(2.1, 0.0) == 2.1
    assert raised(-np.inf, 1.0) == -np.inf


@settings(deadline=None, max_examples=40)
@given(seeds)
def test_halves_raise_the_bound_of_scarce_demands_but_never_above_the_optimum(seed: int) -> None:
    length, sizes, _ = cutgen1(seed)
    demand = np.random.default_rng(seed).integers(1, 3, len(sizes)).astype(np.float64)
    problem = cutting_stock(length, sizes, demand)
    cover = replace(problem.cover, halves=True)
    plain = relax(problem.cover, problem.pricer, Pool(), Watch())
    halves = relax(cover, problem.pricer, Pool(), Watch())
    assert halves.bound >= plain.bound - CLOSE
    assert not above(halves.bound, problem.best)
    assert halves.value == pytest.approx(halves.bound)
    every = problem.pricer.all()
    assert whole(replace(problem, cover=cover), every) == pytest.approx(problem.best)
    kept = cover.undominated(every)
    assert whole(replace(problem, cover=cover), kept) == pytest.approx(problem.best)
    duals = halves.duals
    assert duals.reduced(cover.counted(every)).min() >= -CLOSE
    screen = screened(cover, problem.pricer, duals, problem.best + 0.5, 10**6)
    assert whole(replace(problem, cover=cover), screen.columns) == pytest.approx(problem.best)


def test_two_columns_that_supply_some_or_one_that_supplies_all_meet_halves() -> None:
    """Of columns that supply 0.7 of one demand each, two are needed, not 1 / 0.7."""
    some_of_each = Columns.dense(
        np.ones(3), 0.7 * np.eye(3), np.zeros((3, 0)), np.zeros(3, np.int64), range(3)
    )
    cover = Cover(
        need=np.ones(3), capacity=np.zeros(0), cap=np.ones(3), missed=np.full(3, 10.0), halves=True
    )
    counted = cover.counted(some_of_each).matrix(6)
    assert np.array_equal(counted, np.hstack([0.7 * np.eye(3), 0.5 * np.eye(3)]))
    for halves, value in ((False, 3 / 0.7), (True, 6.0)):
        master = Master(replace(cover, halves=halves))
        master.add(some_of_each)
        mixed = master.solve()
        assert mixed is not None
        assert mixed.value == pytest.approx(value)


def test_a_pricer_that_is_not_quick_is_asked_at_the_prices_of_the_program_only() -> None:
    problem = cutting_stock(60, np.array([35, 24, 14]), np.array([3.0, 5.0, 7.0]))
    asked: list[Duals] = []

    class Noted(Knapsacks):
        def price(self, duals: Duals, cap: Floats) -> Priced:
            asked.append(duals)
            return Knapsacks.price(self, duals, cap)

    values = {name: getattr(problem.pricer, name) for name in Knapsacks.__dataclass_fields__}
    answers: dict[bool, tuple[float, int]] = {}
    for quick in (False, True):
        asked.clear()
        pricer = replace(Noted(**values), quick=quick)
        relaxed = relax(problem.cover, pricer, Pool(), Watch())
        answers[quick] = relaxed.bound, len(asked)
    assert answers[False][0] == pytest.approx(answers[True][0])
    assert answers[False][1] < answers[True][1]


def test_a_run_whose_first_prices_prove_enough_solves_no_program() -> None:
    problem = some(9)
    known = relax(problem.cover, problem.pricer, Pool(), Watch())
    pool = Pool()
    run = Generation(
        problem.cover, problem.pricer, pool, Watch(), enough=known.bound - CLOSE
    )  # fmt: skip
    again = run.run(known.duals)
    assert again.bound >= known.bound - CLOSE
    assert again.mixed is None
    assert len(pool) > 0


def test_prices_of_a_cover_start_another() -> None:
    problem = some(9)
    pool = Pool()
    first = relax(problem.cover, problem.pricer, pool, Watch())
    harder: Cover = replace(problem.cover, need=problem.cover.need * 2)
    known = len(pool)
    again = relax(harder, problem.pricer, pool, Watch(), start=first.duals)
    assert again.bound == pytest.approx(2 * first.bound)
    assert len(pool) <= known + 1
