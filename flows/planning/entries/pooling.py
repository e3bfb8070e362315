"""Groups to pools of vGPUs.

Equal stages become one pool, alignment stages of one start join where that costs less. Pools that
run the same blocks on the same share with the same batch carry their rates together: never dearer.
Beside the shared stage of a group, entries of one start may share alignment stages (space `pools`):
sorted by the time that is left, neighbours share one whose batch fits the tightest of them, cut
where the sum is least.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from flows.planning.engine.columns import undominated
from flows.planning.entries.groups import EntryClass, Group, GroupingProblem
from flows.planning.entries.options import Options, vgpus_for
from flows.planning.entries.seats import Key, SeatRoute, Step, steps_of
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.tolerances import ROUNDING
from triton_backend.scheduler.compiled import entry as kernel_entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """How an item is served: its alignment stage, where it has one, and its shared stage.

    Attributes:
        pools: numbers of those that run them.
    """

    item: EntryClass
    steps: tuple[Step, ...]
    pools: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """Every item of a model with the pools that it passes.

    Attributes:
        pools: blocks, size and batch of each, with its vGPUs.
    """

    chains: tuple[Chain, ...]
    pools: tuple[tuple[Key, int], ...]
    cost: float


def pooled(
    field: GroupingProblem, groups: Sequence[Group], *, joined: bool = False, apart: bool = False
) -> Pooled:
    """Pools of groups as they are, with joined alignment stages, or all stages apart."""
    parts, steps = count(), dict[int, tuple[Step, ...]]()
    for group in groups:
        root = next(parts)
        for way, members in _bundles(field, group, joined=joined):
            steps |= dict.fromkeys(members, steps_of(field, way, root, next(parts)))
    items = (item for group in groups for item in group.items)
    served = [(field.items[item], steps[item]) for item in items]
    return _pools(served, 0 if apart else field.table.most)


def pooled_ways(field: GroupingProblem, ways: Sequence[SeatRoute]) -> Pooled:
    """Pools of items that come to their stages so, a way for each item."""
    parts = dict[SeatRoute | int, int]()
    served: list[tuple[EntryClass, tuple[Step, ...]]] = []
    for item, way in zip(field.items, ways, strict=True):
        root, part = (parts.setdefault(one, len(parts)) for one in (way.root, way))
        served.append((item, steps_of(field, way, root, part)))
    return _pools(served, field.table.most)


def _pools(served: Sequence[tuple[EntryClass, tuple[Step, ...]]], most: int) -> Pooled:
    """Equal stages in one pool, unless that has more than `most` vGPUs: then one for each part."""
    loads: dict[Step, list[float]] = {}
    for item, steps in served:
        for step in steps:
            loads.setdefault(step, []).append(item.rate_rps)
    whole: dict[tuple[Key, float], list[float]] = {}
    for step, rates in loads.items():
        whole.setdefault((step.key, step.work), []).extend(rates)
    numbers: dict[tuple[Key, float, int], int] = {}
    pools: list[tuple[Key, int]] = []
    cost = 0.0
    for step, rates in loads.items():
        vgpus = _vgpus(whole[step.key, step.work], step)
        place = (step.key, step.work, -1)
        if vgpus > most:
            vgpus, place = _vgpus(rates, step), (step.key, step.work, step.part)
        if place not in numbers:
            numbers[place] = len(pools)
            pools.append((step.key, vgpus))
            cost += step.price * vgpus
        numbers[step.key, step.work, step.part] = numbers[place]
    chains = tuple(
        Chain(item=item, steps=own, pools=tuple(numbers[s.key, s.work, s.part] for s in own))
        for item, own in served
    )
    return Pooled(chains=chains, pools=tuple(pools), cost=cost)


def _vgpus(rates: Sequence[float], step: Step) -> int:
    return int(vgpus_for(math.fsum(rates), np.array([step.work]))[0])


def ways_of(field: GroupingProblem, groups: Sequence[Group]) -> set[SeatRoute]:
    """Ways of items of groups to their shared stages, alignment stages joined."""
    return {way for group in groups for way, _ in _bundles(field, group, joined=True)}


def _bundles(
    field: GroupingProblem, group: Group, *, joined: bool
) -> Iterator[tuple[SeatRoute, list[int]]]:
    """Ways to a group's shared stage, and the items that take each.

    One alignment stage for each item, or joined where that costs less.
    """
    junction, time = int(field.root_junction[group.root]), float(field.root_time[group.root])
    least = float(field.limit[list(group.items)].min()) if field.group_budget else math.inf
    starts: dict[int, list[int]] = {}
    for item in sorted(group.items, key=lambda i: float(field.limit[i])):
        starts.setdefault(int(field.block[item]), []).append(item)
    for first, items in starts.items():
        if first == junction:
            yield SeatRoute(group.root, junction, -1), items
            continue
        options = field.aligning(first, group.root)
        for some in [items] if joined else [[item] for item in items]:
            left = np.minimum(field.limit[some], least) - time
            for members, row in _neighbours(options, left, field.rate[some], field.table.most):
                yield SeatRoute(group.root, first, row), [some[m] for m in members]


def _neighbours(
    options: Options, left: Floats, rates: Floats, most: int
) -> list[tuple[Sequence[int], int]]:
    """Neighbours that share a stage, and its option, at the least cost; times left rise."""
    best, total = np.zeros(len(rates) + 1), np.concatenate([[0.0], np.cumsum(rates)])
    before, row = np.zeros((2, len(rates) + 1), dtype=np.int64)
    neighbours(left, total, (options.time_us, options.price, options.work), most, best, before, row)
    found: list[tuple[Sequence[int], int]] = []
    at = len(rates)
    while at:
        first = int(before[at])
        found.append((range(first, at), int(row[at])))
        at = first
    return found


@kernel_entry
def neighbours(
    left: Floats,
    total: Floats,
    options: tuple[Floats, Floats, Floats],
    most: float,
    best: Floats,
    before: Ints,
    row: Ints,
) -> None:
    """Fill in how entries of a start share alignment stages at the least cost, as neighbours.

    Args:
        left: [entries] time for the stage, rising.
        total: [entries + 1] rate of so many entries.
        options: time, rising; price; work.
        most: vGPUs of a stage.
        best: [entries + 1] room.
        before: [entries + 1] how many come before the bundle that ends with this one.
        row: [entries + 1] the option of that bundle.
    """
    times, price, work = options
    best[0], best[1:] = 0.0, np.inf
    for a in range(len(left)):
        in_time = np.searchsorted(times, left[a], side="right")
        for b in range(a + 1, len(left) + 1):
            load = (total[b] - total[a]) * (1 - ROUNDING)
            for option in range(in_time):
                vgpus = max(1.0, np.ceil(load * work[option]))
                value = best[a] + price[option] * vgpus
                if vgpus <= most and value < best[b]:
                    best[b], before[b], row[b] = value, a, option


def ways_to(field: GroupingProblem, root: int) -> set[SeatRoute]:
    """Ways to a shared stage, but for alignment stages that others replace.

    An option replaces another one if as many items are in time with it, and up to their rate it
    costs no more.
    """
    found: set[SeatRoute] = set()
    junction, kind = int(field.root_junction[root]), int(field.root_kind[root])
    for block in np.unique(field.block[field.block <= junction]).tolist():
        if block == junction:
            found.add(SeatRoute(root, block, -1))
            continue
        items = np.flatnonzero(field.block == block)
        if not field.table.chains or field.rate[items].max() > field.link_rps[kind, junction]:
            continue
        options = field.aligning(block, root)
        able = options.time_us[:, None] <= field.limit[items] - field.root_time[root]
        most = able @ field.rate[items]
        loads = field.unit * np.arange(1, math.ceil(field.rate[items].sum() / field.unit) + 1)
        cost = options.price[:, None] * vgpus_for(loads, options.work[:, None])
        cost = np.where(loads > most[:, None] * (1 + ROUNDING), 2 * cost.max(initial=0.0), cost)
        rows = np.flatnonzero((most > 0) & undominated(-cost))
        found |= {SeatRoute(root, block, row) for row in rows.tolist()}
    return found
