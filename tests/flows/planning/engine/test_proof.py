"""Proofs against a second solver.

Bounds that never pass the optimum, and meet it where nothing limits them.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.planning.engine.columns import Columns, Pool
from flows.planning.engine.cover import Relaxed, bound_at, relax
from flows.planning.engine.master import Cover
from flows.planning.engine.pricing import Duals, Priced
from flows.planning.engine.proof import Parts, by_slack
from flows.planning.engine.rounding import Incumbent, Rung, Tools, dive
from flows.planning.solver.arrays import Floats
from flows.planning.watch import Watch
from tests.flows.planning.engine.problems import Knapsacks, Problem, meets, some, some_duals

numbers, seeds = st.integers(0, 39), st.integers(0, 10**6)
ALL = Rung(columns=100_000, nodes=100_000)


def started(problem: Problem, rounds: int = 100) -> tuple[Pool, Relaxed, Incumbent]:
    """A relaxation, and the plan of a dive where it is one."""
    pool, incumbent = Pool(), Incumbent()
    relaxed = relax(problem.cover, problem.pricer, pool, Watch(), rounds=rounds)
    columns, counts = dive(problem.cover, problem.pricer, pool, Watch())
    if meets(problem.cover, columns, counts):
        incumbent.offer(columns, counts)
    return pool, relaxed, incumbent


@settings(deadline=None, max_examples=60)
@given(numbers)
def test_the_last_rung_settles_it(number: int) -> None:
    problem = some(number)
    pool, relaxed, incumbent = started(problem)
    rungs, tools = [Rung(columns=20, nodes=50), ALL], Tools(gap=0.0)
    bound = by_slack(problem.cover, problem.pricer, pool, relaxed, incumbent, rungs, tools, Watch())
    assert incumbent.cost == pytest.approx(problem.best)
    assert bound == pytest.approx(problem.best)
    if np.isfinite(problem.best):
        assert meets(problem.cover, incumbent.columns, incumbent.counts)


@settings(deadline=None, max_examples=100)
@given(numbers, st.integers(0, 8), st.integers(1, 40), st.booleans())
def test_a_bound_by_slack_is_never_above_the_optimum(
    number: int, rounds: int, columns: int, dived: bool
) -> None:
    problem = some(number)
    pool, relaxed, incumbent = started(problem, rounds)
    if not dived:
        incumbent = Incumbent()
    bound = by_slack(
        problem.cover,
        problem.pricer,
        pool,
        relaxed,
        incumbent,
        [Rung(columns=columns, nodes=5), Rung(columns=2 * columns, nodes=5)],
        Tools(gap=1e-4),
        Watch(),
    )
    assert bound <= problem.best * (1 + 1e-6)
    assert incumbent.cost >= problem.best * (1 - 1e-6)
    assert bound >= relaxed.bound - 1e-9 * abs(relaxed.bound)


@settings(deadline=None, max_examples=100)
@given(numbers, seeds, st.integers(1, 40), st.booleans())
def test_a_bound_by_slack_holds_at_any_prices(
    number: int, seed: int, columns: int, pooled: bool
) -> None:
    problem, pool, incumbent = some(number), Pool(), Incumbent()
    cover, pricer, duals = problem.cover, problem.pricer, some_duals(some(number), seed)
    if pooled:
        pool.add(pricer.all())
    priced = pricer.price(duals, cover.cap)
    proven, duals = bound_at(cover, pricer, duals, priced)
    relaxed = Relaxed(value=np.inf, bound=proven, duals=duals, mixed=None)
    rungs = [Rung(columns=columns, nodes=5), Rung(columns=2 * columns, nodes=5)]
    bound = by_slack(cover, pricer, pool, relaxed, incumbent, rungs, Tools(), Watch())
    assert bound <= problem.best * (1 + 1e-6) + 1e-6
    assert incumbent.cost >= problem.best * (1 - 1e-6)


class Generous(Knapsacks):
    """Finds more columns than asked for."""

    def within(self, duals: Duals, cap: Floats, slack: Floats, most: int) -> Priced:
        return Knapsacks.within(self, duals, cap, slack, 10 * most)


def test_a_group_that_a_plan_needs_is_not_called_dear() -> None:
    """Its columns cost 10, which the bound counts already; the best plan costs 11."""
    pricer = Generous(
        weight=np.array([[2], [1]]),
        room=np.array([3, 3]),
        fixed=np.array([10.0, 1.0]),
        item=np.zeros((2, 1)),
        own=np.array([[1.0], [0.0]]),
        use=np.zeros((2, 0)),
        copies=3,
        fewest=np.array([1.0, 0.0]),
        most=np.full(2, np.inf),
        cheapest=np.array([10.0, 1.0]),
    )
    need = np.array([3.0, 1.0])
    cover = Cover(need=need, capacity=np.zeros(0), cap=need, missed=np.full(2, 100.0))
    pool = Pool()
    pool.add(pricer.all())
    relaxed = Relaxed(value=np.inf, bound=10.0, duals=Duals.zero(2, 0), mixed=None)
    rungs = [Rung(columns=4, nodes=100)]  # as many as the other group has
    incumbent = Incumbent()
    bound = by_slack(cover, pricer, pool, relaxed, incumbent, rungs, Tools(gap=0.0), Watch())
    assert bound <= 11.0
    assert incumbent.cost >= 11.0


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 4))
def test_costs_in_whole_steps_raise_the_bound_to_the_next(number: int) -> None:
    problem = some(8 * number)
    pool, relaxed, incumbent = started(problem)
    tools = Tools(gap=0.0, whole_costs=1.0)
    bound = by_slack(problem.cover, problem.pricer, pool, relaxed, incumbent, [ALL], tools, Watch())
    assert (incumbent.cost, bound) == (problem.best, problem.best)


def test_a_run_that_is_over_keeps_the_bound_of_the_relaxation() -> None:
    problem = some(3)
    pool, relaxed, incumbent = started(problem)
    watch = Watch()
    watch.stop()
    bound = by_slack(problem.cover, problem.pricer, pool, relaxed, incumbent, [ALL], Tools(), watch)
    assert bound == min(relaxed.bound, incumbent.cost)


def parts(problem: Problem, seed: int, *, known: Columns) -> Parts:
    """Parts at any prices, of what is known."""
    duals = some_duals(problem, seed)
    groups = len(problem.pricer.room)
    upper = np.full(groups, np.inf)
    np.minimum.at(upper, known.group, duals.reduced(known.capped(problem.cover.caps)))
    return Parts(
        cover=problem.cover,
        pricer=problem.pricer,
        duals=duals,
        lower=problem.pricer.floor(duals),
        upper=upper,
        step=np.zeros(groups),
    )


@settings(deadline=None, max_examples=100)
@given(numbers, seeds, st.floats(-2.0, 2.0), st.booleans())
def test_parts_claim_no_target_that_a_plan_beats(
    number: int, seed: int, share: float, pooled: bool
) -> None:
    problem, pool = some(number), Pool()
    if pooled:
        relax(problem.cover, problem.pricer, pool, Watch(), rounds=3)
    some_parts = parts(problem, seed, known=pool.columns)
    exact = some_parts.value(
        problem.pricer.price(some_parts.duals, np.full(len(problem.cover.need), np.inf)).least
    )
    target = exact + share * max(1.0, abs(exact)) if np.isfinite(exact) else share
    with ThreadPoolExecutor(2) as executor:
        claimed = some_parts.raise_to(target, pool, executor, lambda: False)
    close = 1e-6 * max(1.0, abs(target))
    if claimed:
        assert target - close <= problem.best
        assert target <= exact + close
    elif np.isfinite(exact):
        assert target >= exact - close


def test_parts_that_are_over_claim_nothing_new() -> None:
    problem, pool = some(3), Pool()
    some_parts = parts(problem, 5, known=Columns.none())
    weak = some_parts.value(some_parts.lower)
    with ThreadPoolExecutor(1) as executor:
        assert some_parts.raise_to(weak - 1.0, pool, executor, lambda: True)
        assert not some_parts.raise_to(weak + 1.0, pool, executor, lambda: True)
    assert some_parts.effort == 0


def test_what_steps_find_goes_to_the_pool() -> None:
    problem, pool = some(3), Pool()
    some_parts = parts(problem, 5, known=Columns.none())
    with ThreadPoolExecutor(1) as executor:
        assert not some_parts.raise_to(
            some_parts.value(some_parts.upper), pool, executor, lambda: False
        )
    assert some_parts.effort == len(problem.pricer.room) == len(pool)
    assert np.allclose(some_parts.upper, some_parts.lower)
