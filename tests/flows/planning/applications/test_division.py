"""Division of time against every combination of steps."""

from itertools import product
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.planning.applications.division import Separate, Stair, Staircase, divide
from tests.flows.planning.applications.paper import application

SHAPES = {
    "chain": (("a", "A", 1, ()), ("b", "B", 1, ("a",)), ("c", "C", 1, ("b",))),
    "fork of unequal depth": (
        ("a", "A", 1, ()),
        ("b", "B", 1, ("a",)),
        ("c", "C", 1, ("a",)),
        ("d", "D", 1, ("c",)),
    ),
    "diamond": (
        ("a", "A", 1, ()),
        ("b", "B", 1, ("a",)),
        ("c", "C", 1, ("a",)),
        ("d", "D", 1, ("b", "c")),
    ),
    "two sources": (("a", "A", 1, ()), ("b", "B", 1, ()), ("c", "C", 1, ("a", "b"))),
    "a model twice": (("a", "A", 1, ()), ("b", "B", 1, ("a",)), ("c", "A", 1, ("b",))),
}
PATHS = {
    "chain": ("ABC",),
    "fork of unequal depth": ("AB", "ACD"),
    "diamond": ("ABD", "ACD"),
    "two sources": ("AC", "BC"),
    "a model twice": ("ABA",),
}
STAIRS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 50)), min_size=1, max_size=4)


def steps_of(stairs: list[tuple[int, int]]) -> Staircase[Stair]:
    def ask(budget_us: int, *_: object) -> Stair:
        open_steps = [(cost, time) for time, cost in stairs if time * 1000 <= budget_us]
        if not open_steps:
            return Stair(least=inf, cost=inf, used_us=budget_us)
        cost, time = min(open_steps)
        return Stair(least=cost, cost=cost, used_us=time * 1000)

    return Staircase(ask)


@pytest.mark.parametrize("shape", list(SHAPES))
@settings(max_examples=60, deadline=None)
@given(st.lists(STAIRS, min_size=4, max_size=4), st.integers(5, 70))
def test_the_cheapest_division_is_found(
    shape: str, stairs: list[list[tuple[int, int]]], slo_ms: int
) -> None:
    lines = application(slo_ms, *SHAPES[shape])
    names = [demand.name for demand in lines.demands]
    expected = inf
    for choice in product(*(stairs[number] for number in range(len(names)))):
        time = {name: step[0] for name, step in zip(names, choice, strict=True)}
        if all(sum(time[name] for name in path) <= slo_ms for path in PATHS[shape]):
            expected = min(expected, sum(step[1] for step in choice))
    found = divide(lines, Separate([steps_of(s) for s in stairs[: len(names)]]), 0.0)
    assert (inf if found is None else found.cost) == expected
    if found is not None:
        assert lines.fit(found.times)
        assert found.bound == pytest.approx(found.cost)


def test_budgets_may_be_multiples_of_a_quantum() -> None:
    lines = application(90, *SHAPES["chain"])
    steps = [steps_of([(10, 9), (34, 2)]) for _ in range(3)]
    free = divide(lines, Separate(steps))
    coarse = divide(
        lines,
        Separate([Staircase(step.ask, 20_000) for step in map(steps_of, [[(10, 9), (34, 2)]] * 3)]),
    )
    assert free is not None
    assert free.cost == 13
    assert coarse is not None
    assert coarse.cost == 20


def test_filled_budgets_keep_every_path() -> None:
    lines = application(100, *SHAPES["fork of unequal depth"])
    budgets = lines.filled([10_000, 5_000, 20_000, 10_000])
    assert budgets == [25_000, 33_333, 50_000, 25_000]
    assert lines.fit(budgets)
