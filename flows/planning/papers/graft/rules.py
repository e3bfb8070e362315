"""Rules for entries that the Graft paper compares with (section 5.1).

`gslice`: every entry, or every class of uniform entries, alone on the cheapest share and batch of
the whole tail. `every_grouping`: the paper's Optimal, all groupings of the fragments that merging
leaves.
"""

import math

import numpy as np

from flows.planning.entries.groups import Group, GroupingProblem, items_of
from flows.planning.entries.plan import Solved, by_rule, fragments, require_reachable
from flows.planning.entries.subsets import cheapest_partition, members_of
from flows.planning.entries.tables import ModelTable
from flows.planning.registry import Inputs
from flows.planning.solver.arrays import FAR, Floats
from triton_backend.contract.errors import InputError

_MOST_FRAGMENTS = 12  # of which every grouping is looked at


def gslice(table: ModelTable, inputs: Inputs, *, merge: bool) -> Solved:
    """Every entry alone; with `merge`, uniform entries together.

    Raises:
        InfeasibleError: an entry cannot keep its budget alone.
    """
    if merge:
        field = fragments(table, inputs.options, -math.inf, chains=False)
    else:
        field = GroupingProblem(
            table, items_of(table), group_budget=inputs.options.own["budget_rule"] == "group"
        )
        require_reachable(field, chains=False)
    alone = [field.at([item], int(field.block[item])) for item in range(len(field.items))]
    return by_rule(table, field, alone)


def every_grouping(table: ModelTable, inputs: Inputs) -> Solved:
    """Merged; then every grouping is looked at (the paper's Optimal).

    Raises:
        InputError: there are too many fragments.
        InfeasibleError: an entry cannot keep its budget.
    """
    field = fragments(table, inputs.options, inputs.options.own["merge_threshold"])
    if len(field.items) > _MOST_FRAGMENTS:
        reason = (
            f"{len(field.items)} fragments after merging;"
            f" every grouping is looked at up to {_MOST_FRAGMENTS}"
        )
        raise InputError(f"workload model {table.name!r}", reason)
    return by_rule(table, field, cheapest_groups(field))


def cheapest_groups(field: GroupingProblem) -> list[Group]:
    """The cheapest grouping of few items, each with an alignment stage of its own."""
    groups = [field.best(members_of(subset)) for subset in range(1, 1 << len(field.items))]
    cost = np.array([FAR, *(group.cost for group in groups)])
    return [groups[subset - 1] for subset in cheapest_cut(cost)]


def cheapest_cut(cost: Floats) -> list[int]:
    """Subsets of the cheapest partition, given the cost of every subset by its bits."""
    total, last = np.zeros(len(cost)), np.zeros(len(cost), dtype=np.int64)
    cheapest_partition(cost, total, last)
    found: list[int] = []
    left = len(cost) - 1
    while left:
        found.append(int(last[left]))
        left ^= found[-1]
    return found
