"""The paper's heuristics: merging, grouping by similarity, re-alignment."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.entries.groups import GroupingProblem, items_of
from flows.planning.entries.similar import merged, realigned, similar_groups
from flows.planning.entries.tables import ModelTable, read_tables
from tests.flows.planning.entries.entry_cases import case, entry, inputs_of, made, profile
from triton_backend.contract.entries import Entry
from triton_backend.contract.errors import InputError

GROUPING: dict[str, Any] = {"size": 3, "weights": (1.0, 1.0, 1.0), "distance": False, "seed": 0}


def table_of(*entries: Entry) -> ModelTable:
    return read_tables(inputs_of(made(profile(7), entries)))[0]


def test_no_entries_make_no_groups() -> None:
    assert similar_groups([], **GROUPING) == []


def test_uniform_entries_merge_until_little_rate_is_spare() -> None:
    table = table_of(*(entry(f"c{n}", 1, 40.2 + n / 10, 2 + n) for n in range(6)))
    assert [item.members for item in merged(table, -math.inf)] == [(5, 4, 3, 2, 1, 0)]
    assert len(merged(table, math.inf)) == 6
    some = merged(table, 0.2)
    assert 1 <= len(some) <= 6
    assert sorted(m for item in some for m in item.members) == list(range(6))


def test_another_start_another_ms_or_another_type_is_not_uniform() -> None:
    plain = entry("a", 1, 40, 5)
    half = Entry(name="d", block=1, budget_us=40_000, rate_rps=5, dtype="fp16")
    table = table_of(plain, entry("b", 2, 40, 5), entry("c", 1, 41, 5), half)
    assert len(merged(table, -math.inf)) == 4


def test_similar_entries_meet_and_dissimilar_ones_by_the_formula_as_printed() -> None:
    table = table_of(*(entry(f"c{n}", 2 * (n % 2), 30 + 40 * (n % 2), 5) for n in range(6)))
    items = items_of(table)

    def pure(distance: bool) -> float:
        grouped = [
            group
            for seed in range(20)
            for group in similar_groups(
                items, size=3, weights=(1, 1, 1), distance=distance, seed=seed
            )
        ]
        assert {len(group) for group in grouped} == {3}
        entries = [[items[n].members[0] for n in group] for group in grouped]
        return sum(len({n % 2 for n in group}) == 1 for group in entries) / len(entries)

    assert pure(distance=False) > pure(distance=True)


def test_groups_of_equal_size_hold_everybody_once() -> None:
    table = table_of(*(entry(f"c{n}", n % 3, 30 + n, 5) for n in range(8)))
    groups = similar_groups(items_of(table), **GROUPING)
    assert sorted(map(len, groups)) == [2, 3, 3]
    assert sorted(n for group in groups for n in group) == list(range(8))


@pytest.mark.parametrize("seed", range(5))
def test_re_alignment_is_between_everyone_alone_and_the_best_of_all_groups(seed: int) -> None:
    table = read_tables(inputs_of(case(seed, 5)))[0]
    field = GroupingProblem(table, items_of(table))
    groups = realigned(field, range(5))
    assert sorted(i for g in groups for i in g.items) == list(range(5))
    value = sum(group.cost for group in groups)
    assert value <= sum(field.best([i]).cost for i in range(5))
    assert value <= field.best(range(5)).cost


def test_groups_form_by_what_the_factor_weights_count() -> None:
    entries = (entry(f"c{n}", 2 * (n % 2), 30 + 40 * (n // 2 % 2), 5) for n in range(8))
    items = items_of(table_of(*entries))

    def pure(weights: tuple[float, float, float], kind: Callable[[int], int]) -> float:
        grouped = [
            group
            for seed in range(20)
            for group in similar_groups(items, size=4, weights=weights, distance=False, seed=seed)
        ]
        kinds = [{kind(items[n].members[0]) for n in group} for group in grouped]
        return sum(len(found) == 1 for found in kinds) / len(kinds)

    by_start, by_budget = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)
    assert pure(by_start, lambda n: n % 2) > pure(by_budget, lambda n: n % 2)
    assert pure(by_budget, lambda n: n // 2 % 2) > pure(by_start, lambda n: n // 2 % 2)


@pytest.mark.parametrize(
    ("weights", "said"), [("1,1", "is not three numbers"), ("1,-1,1", "one is negative")]
)
def test_factor_weights_of_another_form_are_refused(weights: str, said: str) -> None:
    problem = made(profile(7), (entry("a", 1, 40, 5),))
    asked = PlanOptions(planner="graft", objective="share", own={"factor_weights": weights})
    with pytest.raises(InputError, match=f"option factor_weights: .*{said}"):
        make_plan(problem.profiles, problem.cluster, problem.workload, asked)


def test_a_group_has_no_more_fragments_than_are_asked_for() -> None:
    items = items_of(table_of(*(entry(f"c{n}", 2 * (n % 2), 60, 5) for n in range(7))))
    for size in (1, 2, 7):
        groups = similar_groups(items, size=size, weights=(1, 1, 1), distance=False, seed=0)
        assert max(map(len, groups)) <= size
        assert sorted(n for group in groups for n in group) == list(range(7))
