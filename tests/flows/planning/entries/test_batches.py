"""Alignment stages fill the shared batches they come to."""

from collections.abc import Iterator

import pytest

from flows.planning.entries.batches import filled
from flows.planning.entries.groups import GroupingProblem, items_of
from flows.planning.entries.partition import by_subsets
from flows.planning.entries.pooling import Pooled, pooled
from flows.planning.entries.tables import ModelTable, read_tables
from flows.planning.registry import Inputs
from tests.flows.planning.entries.entry_cases import EVEN, Case, case


def problem_of(seed: int) -> Case:
    return case(seed, 12, rates=(40.0, 160.0), blocks=4, loose=10)


def searched(seed: int) -> tuple[Pooled, ModelTable]:
    """A plan as the search for groups leaves it."""
    problem = problem_of(seed)
    inputs = Inputs(profiles=problem.profiles, cluster=problem.cluster, workload=problem.workload)
    (table,) = read_tables(inputs, EVEN)
    field = GroupingProblem(table, items_of(table))
    return pooled(field, by_subsets(field)[1].groups, joined=True), table


def unfilled(plan: Pooled) -> Iterator[tuple[int, int]]:
    """Batches of an alignment stage and its shared stage that leave seats empty."""
    for chain in plan.chains:
        if chain.steps[-1].batch % chain.steps[0].batch:
            yield chain.steps[0].batch, chain.steps[-1].batch


@pytest.mark.parametrize("seed", range(6))
def test_every_batch_fills_the_shared_batch_that_it_boards(seed: int) -> None:
    plan, table = searched(seed)
    mended = filled(plan, table)
    assert not list(unfilled(mended))
    assert [c.item for c in mended.chains] == [c.item for c in plan.chains]
    assert mended.cost >= plan.cost - 1e-9
    for chain in mended.chains:
        assert sum(step.time_us for step in chain.steps) <= chain.item.limit_us
    if not list(unfilled(plan)):
        assert mended == plan


def test_some_plans_of_the_search_need_it() -> None:
    assert any(list(unfilled(searched(seed)[0])) for seed in range(6))
