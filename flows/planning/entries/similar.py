"""The heuristics of the Graft paper (sections 4.1 to 4.3), its errors repaired.

Merging: entries of one start and one budget in whole ms are uniform. From the highest rate on they
are absorbed one by one as long as the spare rate of the cheapest way to serve them, (q_able -
q_asked) / q_asked, is above a threshold; the class keeps the least budget of its members. Grouping:
a complete graph over fragments, edges by the weighted distance of (start, budget, rate), each
scaled to [0, 1]; groups of equal size are seeded at random, and every other fragment joins where

    sum over groups of (variance of its inner edges) + sum of edges between groups

grows least. With `similarity` an edge is the largest distance less the distance, as the text wants;
`distance` is formula (1) as printed, which puts the dissimilar together. Re-alignment of a group
(algorithm 1): for every junction those that start at or before it meet there, and the others are
re-aligned in the same way; at the end of the model everyone is alone.
"""

import math
from collections.abc import Sequence

import numpy as np

from flows.planning.entries.groups import EntryClass, Group, GroupingProblem, item_of
from flows.planning.entries.options import Options
from flows.planning.entries.tables import ModelTable
from flows.planning.solver.arrays import FAR, Floats
from triton_backend.contract.units import us_to_ms


def merged(table: ModelTable, threshold: float) -> list[EntryClass]:
    """Uniform entries as one item each, as far as the threshold lets them; -infinity merges all."""
    classes: dict[tuple[int, str | None, int], list[int]] = {}
    for number, entry in enumerate(table.entries):
        key = (entry.block, entry.dtype, int(us_to_ms(entry.budget_us)))
        classes.setdefault(key, []).append(number)
    found: list[EntryClass] = []
    for (block, _, _), members in classes.items():
        members.sort(key=lambda n: (-table.entries[n].rate_rps, table.entries[n].name))
        options = table.options(block, table.blocks)
        while members:
            item = item_of(table, [members.pop(0)])
            while members and _margin(options, item, table.most) > threshold:
                wider = item_of(table, [*item.members, members[0]])
                if _margin(options, wider, table.most) == -math.inf:
                    break
                item = wider
                del members[0]
            found.append(item)
    return sorted(found, key=lambda item: item.members)


def _margin(options: Options, item: EntryClass, most: int) -> float:
    """Spare rate of the cheapest way to serve an item alone, per rate asked.

    None where there is no way.
    """
    cost = np.where(options.time_us <= item.limit_us, options.cost(item.rate_rps, most), np.inf)
    if not len(cost) or not np.isfinite(cost.min()):
        return -np.inf
    row = int(cost.argmin())
    able = cost[row] / options.price[row] / options.work[row]
    return float(able / item.rate_rps - 1)


def similar_groups(
    items: Sequence[EntryClass],
    *,
    size: int,
    weights: tuple[float, float, float],
    distance: bool,
    seed: int,
) -> list[list[int]]:
    """Numbers of the items of every group.

    Args:
        items: to be grouped.
        size: of a group.
        weights: of start, budget and rate in the distance.
        distance: edges are distances, not similarities.
        seed: of the fragments that groups begin with.
    """
    count = len(items)
    groups = -(-count // size)
    if groups <= 1:
        return [list(range(count))] if count else []
    edges = _edges(items, weights, distance=distance)
    most = -(-count // groups)
    random = np.random.default_rng(seed)
    seeds = sorted(random.permutation(count)[:groups].tolist())
    group = np.full(count, -1)
    group[seeds] = np.arange(groups)
    sizes = np.ones(groups)
    inner, squares = np.zeros(groups), np.zeros(groups)  # sums of edges, and of their squares
    for item in range(count):
        if group[item] >= 0:
            continue
        placed = np.flatnonzero(group >= 0)
        own = edges[item, placed]
        joining = np.bincount(group[placed], weights=own, minlength=groups)
        joining_squares = np.bincount(group[placed], weights=own * own, minlength=groups)
        before = _variance(inner, squares, sizes)
        after = _variance(inner + joining, squares + joining_squares, sizes + 1)
        growth = np.where(sizes < most, after - before - joining, np.inf)
        chosen = int(growth.argmin())
        group[item] = chosen
        sizes[chosen] += 1
        inner[chosen] += joining[chosen]
        squares[chosen] += joining_squares[chosen]
    return [np.flatnonzero(group == g).tolist() for g in range(groups)]


def _edges(
    items: Sequence[EntryClass], weights: tuple[float, float, float], *, distance: bool
) -> Floats:
    factors = np.array([[i.block, i.limit_us, i.rate_rps] for i in items], dtype=np.float64)
    spread = np.ptp(factors, axis=0)
    scaled = (factors - factors.min(axis=0)) / np.where(spread > 0, spread, 1.0)
    scaled = scaled * np.sqrt(np.array(weights))
    squares = (scaled * scaled).sum(axis=1)
    apart = np.sqrt(np.maximum(0.0, squares[:, None] + squares - 2 * scaled @ scaled.T))
    return apart if distance else apart.max() - apart


def _variance(total: Floats, squares: Floats, sizes: Floats) -> Floats:
    """Of the inner edges of every group; 0 where there is none."""
    count = np.maximum(1.0, sizes * (sizes - 1) / 2)
    return np.maximum(0.0, squares / count - (total / count) ** 2)


def realigned(field: GroupingProblem, members: Sequence[int]) -> list[Group]:
    """The best plan of a group by algorithm 1."""
    known: dict[tuple[int, ...], tuple[float, list[Group]]] = {(): (0.0, [])}

    def plan(left: tuple[int, ...]) -> tuple[float, list[Group]]:
        if left not in known:
            alone = [field.best([item]) for item in left]
            best = (sum(group.cost for group in alone), alone)
            first = min(int(field.block[i]) for i in left)
            for junction in range(first, field.table.blocks) if len(left) > 1 else ():
                here = [i for i in left if field.block[i] <= junction]
                group = field.at(here, junction)
                if group.cost >= min(best[0], FAR):
                    continue
                cost, groups = plan(tuple(i for i in left if field.block[i] > junction))
                if group.cost + cost < best[0]:
                    best = (group.cost + cost, [group, *groups])
            known[left] = best
        return known[left]

    return plan(tuple(members))[1]
