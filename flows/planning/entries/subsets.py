"""All subsets of few entries of a start: what their alignment stages cost."""

import numpy as np
from numpy.typing import NDArray

from flows.planning.entries.groups import GroupingProblem
from flows.planning.solver.arrays import FAR, Floats, Ints
from triton_backend.scheduler.compiled import entry as kernel_entry

MOST_TOGETHER = 10  # items of one start of which every subset is looked at


def aligned_subsets(field: GroupingProblem, items: Ints) -> Floats:
    """[R, subsets of items of one start] the least cost of their alignment stages; `FAR`: none."""
    taken = members_in(len(items))[1:]
    cost = field.aligned(
        np.full(len(taken), field.block[items[0]]),
        np.where(taken, field.limit[items], np.inf).min(axis=1),
        np.where(taken, field.rate[items], 0.0).sum(axis=1),
        largest=np.where(taken, field.rate[items], 0.0).max(axis=1),
    )
    together = np.column_stack([np.zeros(len(cost)), np.minimum(cost, FAR)])
    shared, last = np.zeros(together.shape), np.zeros(together.shape[1], dtype=np.int64)
    for root in range(len(shared)):
        cheapest_partition(together[root], shared[root], last)
    return shared


def members_in(count: int) -> NDArray[np.bool_]:
    """[subsets, count] whether a subset has an item, by its bits."""
    return (np.arange(1 << count)[:, None] >> np.arange(count) & 1).astype(np.bool_)


def members_of(subset: int) -> tuple[int, ...]:
    """Items of a subset, by its bits."""
    return tuple(item for item in range(subset.bit_length()) if subset >> item & 1)


@kernel_entry
def cheapest_partition(cost: Floats, total: Floats, last: Ints) -> None:
    """Fill in the least total of every subset cut into groups, and its first item's group."""
    total[0] = 0.0
    for subset in range(1, len(cost)):
        first = subset & -subset
        rest = subset ^ first
        total[subset], last[subset] = FAR, subset
        part = rest
        while True:  # every subset of the rest beside the first item
            group = part | first
            if cost[group] < FAR:
                value = cost[group] + total[subset ^ group]
                if value < total[subset]:
                    total[subset], last[subset] = value, group
            if part == 0:
                break
            part = (part - 1) & rest
