"""Columns as arrays; a pool that keeps each once."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.planning.engine.columns import Columns, Pool, undominated
from tests.flows.planning.engine.problems import some, some_duals

DEMANDS, RESOURCES = 3, 2
Drawn = list[tuple[float, list[int], list[int], int]]


def drawn() -> st.SearchStrategy[Drawn]:
    one = st.tuples(
        st.floats(0.0, 4.0),
        st.lists(st.integers(0, 2), min_size=DEMANDS, max_size=DEMANDS),
        st.lists(st.integers(0, 2), min_size=RESOURCES, max_size=RESOURCES),
        st.integers(0, 1),
    )
    return st.lists(one, max_size=12)


def made(drawn: Drawn) -> Columns:
    return Columns.dense(
        np.array([cost for cost, *_ in drawn]),
        np.array([supply for _, supply, _, _ in drawn], float).reshape(-1, DEMANDS),
        np.array([use for _, _, use, _ in drawn], float).reshape(-1, RESOURCES),
        np.array([group for *_, group in drawn], dtype=np.int64),
        [str(n) for n in range(len(drawn))],
    )


@settings(deadline=None)
@given(drawn(), st.data())
def test_taken_and_joined_columns_are_what_full_matrices_say(
    drawn: Drawn, data: st.DataObject
) -> None:
    columns = made(drawn)
    full = columns.matrix(DEMANDS + RESOURCES)
    numbers = st.lists(st.integers(0, len(drawn) - 1), max_size=6) if drawn else st.just([])
    which = np.array(data.draw(numbers), dtype=np.int64)
    taken = columns.take(which)
    assert np.array_equal(taken.matrix(DEMANDS + RESOURCES), full[which])
    assert list(taken.source) == [columns.source[n] for n in which]
    both = Columns.joined([taken, Columns.none(), columns])
    assert np.array_equal(both.matrix(DEMANDS + RESOURCES), np.vstack([full[which], full]))
    assert len(both) == len(which) + len(drawn)


@settings(deadline=None)
@given(drawn())
def test_capped_columns_count_for_no_more_and_keep_their_costs(drawn: Drawn) -> None:
    columns, most = made(drawn), np.array([1.0, 0.5, 0.0, np.inf, np.inf])
    capped = columns.capped(most)
    assert np.array_equal(capped.matrix(5), np.minimum(columns.matrix(5), most))
    assert np.array_equal(capped.cost, columns.cost)


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_prices_are_worth_what_the_matrix_says(seed: int) -> None:
    problem = some(seed % 40)
    columns, duals = problem.pricer.all(), some_duals(problem, seed)
    full = columns.matrix(problem.cover.rows)
    demands = len(problem.cover.need)
    worth = full[:, :demands] @ duals.demand - full[:, demands:] @ duals.resource
    assert np.allclose(columns.priced(duals.rows), worth)
    assert np.allclose(duals.reduced(columns), columns.cost - worth)


@settings(deadline=None)
@given(drawn(), drawn())
def test_a_pool_keeps_the_cheapest_of_the_same_entries_and_says_what_is_new(
    first: Drawn, second: Drawn
) -> None:
    pool, cheapest = Pool(), {}
    for part in (first, second):
        fresh = pool.add(made(part))
        expected = 0
        for cost, supply, use, group in part:
            key = (group, *supply, *use)
            if cost < cheapest.get(key, np.inf):
                expected += 1
                cheapest[key] = cost
        assert len(fresh) == expected
    columns = pool.columns
    assert len(columns) == len(pool)
    kept: dict[tuple[int, ...], float] = {}
    rows = columns.matrix(DEMANDS + RESOURCES).astype(int).tolist()
    for cost, group, row in zip(columns.cost.tolist(), columns.group.tolist(), rows, strict=True):
        kept[(group, *row)] = min(cost, kept.get((group, *row), np.inf))
    assert kept == cheapest


def test_an_empty_pool_has_no_columns() -> None:
    assert len(Pool().columns) == 0
    assert Pool().columns.priced(np.ones(3)).shape == (0,)
    assert len(Pool().add(Columns.none())) == 0


def test_columns_keep_their_order_in_a_pool() -> None:
    pool = Pool()
    columns = made([(1.0, [1, 0, 0], [0, 0], 0), (1.0, [0, 1, 0], [0, 0], 0)])
    pool.add(columns.take(np.array([1])))
    pool.add(columns)
    assert list(pool.columns.source) == ["1", "0"]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), max_size=20))
def test_of_rows_that_others_dominate_none_is_kept_and_of_equals_one(rows: list[list[int]]) -> None:
    values = np.array(rows, dtype=np.float64).reshape(-1, 3)
    kept = values[undominated(values)]
    assert len(np.unique(kept, axis=0)) == len(kept)
    assert all((kept >= row).all(axis=1).any() for row in values)
    for n, row in enumerate(kept):
        assert not (np.delete(kept, n, axis=0) >= row).all(axis=1).any()


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(0, 3), min_size=3, max_size=3)),
        max_size=20,
    )
)
def test_rows_of_other_groups_dominate_none(rows: list[tuple[int, list[int]]]) -> None:
    values = np.array([row for _, row in rows], dtype=np.float64).reshape(-1, 3)
    group = np.array([number for number, _ in rows], dtype=np.int64)
    kept = undominated(values, group)
    for number in range(3):
        own = group == number
        assert np.array_equal(kept[own], undominated(values[own]))


def test_entries_in_groups_have_places_for_the_rows_of_their_group() -> None:
    columns = made([
        (1.0, [1, 0, 0], [4, 0], 0),
        (1.0, [2, 0, 3], [0, 0], 0),
        (1.0, [0, 5, 0], [0, 6], 1),
    ])  # fmt: skip
    assert columns.in_groups().tolist() == [[1, 0, 4], [2, 3, 0], [5, 6, 0]]
    assert Columns.none().in_groups().shape == (0, 0)
