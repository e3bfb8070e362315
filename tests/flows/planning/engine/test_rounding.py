"""Whole plans and the bounds of restricted programs, against a second solver."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.planning.engine.columns import Columns, Pool
from flows.planning.engine.cover import relax, restarted
from flows.planning.engine.master import Cover, Free
from flows.planning.engine.rounding import Incumbent, Tools, dive, restricted
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.solve import Limits
from flows.planning.watch import Watch
from tests.flows.planning.engine.problems import meets, some

EXACT = Limits(relative_gap=0.0, nodes=100_000)
numbers = st.integers(0, 39)


@settings(deadline=None, max_examples=60)
@given(numbers, st.integers(0, 6))
def test_a_restricted_program_over_what_pricing_found_gives_plans(number: int, rounds: int) -> None:
    problem, pool = some(number), Pool()
    relax(problem.cover, problem.pricer, pool, Watch(), rounds=rounds)
    incumbent = Incumbent()
    proven = restricted(problem.cover, pool.columns, incumbent, EXACT, Tools(gap=0.0))
    assert proven == pytest.approx(incumbent.cost)
    assert incumbent.cost >= problem.best * (1 - 1e-6)
    if np.isfinite(incumbent.cost):
        assert meets(problem.cover, incumbent.columns, incumbent.counts)
        assert incumbent.columns.cost @ incumbent.counts == pytest.approx(incumbent.cost)


@settings(deadline=None, max_examples=40)
@given(numbers)
def test_a_restricted_program_over_all_columns_has_the_optimum(number: int) -> None:
    problem, incumbent = some(number), Incumbent()
    proven = restricted(problem.cover, problem.pricer.all(), incumbent, EXACT, Tools(gap=0.0))
    assert incumbent.cost == pytest.approx(problem.best)
    assert proven == pytest.approx(problem.best)


def test_a_plan_that_is_not_better_is_not_taken() -> None:
    problem, incumbent = some(0), Incumbent()
    restricted(problem.cover, problem.pricer.all(), incumbent, EXACT, Tools(gap=0.0))
    best = incumbent.counts
    assert not incumbent.offer(incumbent.columns, best)
    assert not incumbent.offer(incumbent.columns, best + 1)
    assert incumbent.cost == problem.best


def test_a_judge_says_what_plans_cost() -> None:
    def judge(columns: Columns, counts: Ints, free: Floats) -> float:
        assert not len(free)
        return np.inf if counts.max() > 1 else float(len(columns))

    incumbent, columns = Incumbent(judge=judge), some(0).pricer.all()
    assert not incumbent.offer(columns, np.full(len(columns), 2))
    counts = np.zeros(len(columns), dtype=np.int64)
    counts[[0, 3]] = 1
    assert incumbent.offer(columns, counts)
    assert (incumbent.cost, len(incumbent.columns)) == (2.0, 2)


def test_without_a_plan_nothing_is_settled() -> None:
    assert not Incumbent().settled(0.0, 0.1)
    assert Incumbent(cost=1.05).settled(1.0, 0.1)
    assert not Incumbent(cost=1.2).settled(1.0, 0.1)
    assert Incumbent(cost=0.0).settled(0.0, 0.0)


def test_no_columns_are_a_plan_only_where_nothing_is_needed() -> None:
    cover, incumbent = some(0).cover, Incumbent()
    assert restricted(cover, Columns.none(), incumbent, EXACT, Tools()) == np.inf
    assert incumbent.cost == np.inf
    nothing = restarted(cover, np.zeros(len(cover.need)), np.zeros(0))
    assert restricted(nothing, Columns.none(), incumbent, EXACT, Tools()) == 0.0
    assert incumbent.cost == 0.0


def test_a_column_is_taken_as_often_as_lent_resources_allow() -> None:
    lent = Columns.dense(
        np.array([5.0]), np.zeros((1, 1)), -np.ones((1, 1)), np.zeros(1, np.int64), [""]
    )
    one = Columns.dense(np.ones(1), np.ones((1, 1)), np.ones((1, 1)), np.zeros(1, np.int64), [""])
    cover = Cover(
        need=np.array([4.0]),
        capacity=np.array([1.0]),
        free=Free(columns=lent, upper=np.array([3.0])),
        cap=np.array([4.0]),
        missed=np.array([np.inf]),
    )
    incumbent = Incumbent()
    assert restricted(cover, one, incumbent, EXACT, Tools(gap=0.0)) == pytest.approx(4 + 15)
    assert incumbent.counts.tolist() == [4]


def lending(*, whole: bool) -> Cover:
    """Four are asked for; a stock that lends a half of what one takes costs 5."""
    lent = Columns.dense(
        np.array([5.0]), np.zeros((1, 1)), np.full((1, 1), -1.5), np.zeros(1, np.int64), [""]
    )
    return Cover(
        need=np.array([4.0]),
        capacity=np.array([0.0]),
        free=Free(columns=lent, upper=np.array([9.0]), whole=np.array([whole])),
        cap=np.array([4.0]),
        missed=np.array([np.inf]),
    )


def test_free_columns_that_are_whole_are_so_in_whole_programs_and_known_to_the_plan() -> None:
    one = Columns.dense(np.ones(1), np.ones((1, 1)), np.ones((1, 1)), np.zeros(1, np.int64), [""])

    def judge(columns: Columns, counts: Ints, free: Floats) -> float:
        return float(columns.cost @ counts) + 5 * float(free.sum())

    for whole, stocks in ((False, 4 / 1.5), (True, 3.0)):
        plan = Incumbent(judge=judge)
        proven = restricted(lending(whole=whole), one, plan, EXACT, Tools(gap=0.0))
        assert proven == pytest.approx(4 + 5 * stocks)
        assert plan.free.tolist() == pytest.approx([stocks])
        assert plan.cost == pytest.approx(proven)


@settings(deadline=None, max_examples=30)
@given(numbers)
def test_a_program_that_begins_with_the_best_plan_ends_as_without(number: int) -> None:
    problem, begun, pool = some(number), Incumbent(), Pool()
    relax(problem.cover, problem.pricer, pool, Watch())
    restricted(problem.cover, pool.columns, begun, EXACT, Tools(gap=0.0))
    every, first = problem.pricer.all(), begun.cost
    counts = begun.among(every)
    if np.isinf(first):
        assert counts is None
    else:
        assert counts is not None
        assert every.cost @ counts == pytest.approx(first)
        assert meets(problem.cover, every, counts)
    tools = Tools(gap=0.0, begin=True)
    assert restricted(problem.cover, every, begun, EXACT, tools) == pytest.approx(problem.best)
    assert begun.cost == pytest.approx(problem.best)
    assert Incumbent().among(every) is None


@settings(deadline=None, max_examples=60)
@given(numbers)
def test_what_a_dive_takes_is_within_the_resources_and_a_plan_where_nothing_is_scarce(
    number: int,
) -> None:
    problem, pool = some(number), Pool()
    columns, counts = dive(problem.cover, problem.pricer, pool, Watch())
    total, demands = counts @ columns.matrix(problem.cover.rows), len(problem.cover.need)
    assert (total[demands:] <= problem.cover.capacity + 1e-9).all()
    assert counts.min(initial=0) >= 0
    if not len(problem.cover.capacity):
        assert meets(problem.cover, columns, counts)
        assert columns.cost @ counts <= problem.best + 2


def test_a_dive_that_needs_nothing_or_is_over_ends() -> None:
    problem, over = some(0), Watch()
    over.stop()
    nothing = restarted(problem.cover, np.zeros(len(problem.cover.need)), np.zeros(0))
    _, counts = dive(nothing, problem.pricer, Pool(), Watch())
    assert counts.sum() == 0
    _, counts = dive(problem.cover, problem.pricer, Pool(), over)
    assert counts.sum() <= problem.best
