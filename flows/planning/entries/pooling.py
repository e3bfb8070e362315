"""Groups to pools of vGPUs.

Equal stages become one pool, alignment stages of one start join where that costs less. Pools that
run the same blocks on the same share with the same batch carry their rates together: never dearer.
Beside the shared stage of a group, entries of one start may share alignment stages (space `pools`):
sorted by the time that is left, neighbours share one whose batch fits the tightest of them, cut
where the sum is least.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from flows.planning.entries.bundles import neighbours
from flows.planning.entries.groups import EntryClass, Group, GroupingProblem
from flows.planning.entries.partition import cheapest_cut, members_of
from flows.planning.entries.seats import SeatRoute
from flows.planning.entries.tables import Options, vgpus_for
from flows.planning.solver.arrays import FAR, Floats
from flows.planning.solver.tolerances import SOLVED

MOST_JOINED = 40  # groups, of which pairs are tried
MOST_BUNDLED = 8  # entries of one start of which every way to share is looked at

Key = tuple[int, int, int, int]  # first block, last block, size, batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A stage that an item passes.

    Attributes:
        key: what it is.
        part: number of those that must share a pool at least: a shared stage, a joined alignment
            stage.
        price, work: of a vGPU; vGPUs per sample/s. Stages of other waits, which need others, are
            other pools.
        time_us: of a budget that the stage takes.
    """

    key: Key
    part: int
    price: float
    work: float
    time_us: float

    @property
    def batch(self) -> int:
        """Requests of a full batch."""
        return self.key[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """How an item is served: its alignment stage, where it has one, and its shared stage."""

    item: EntryClass
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """Every item of a model with the pools that it passes.

    Attributes:
        pools: blocks, size and batch of each, with its vGPUs.
        passes: by chain the numbers of its pools.
        most: vGPUs of a pool of equal stages; 0: these are apart.
    """

    chains: tuple[Chain, ...]
    pools: tuple[tuple[Key, int], ...]
    passes: tuple[tuple[int, ...], ...]
    cost: float
    most: int


def pooled(
    field: GroupingProblem, groups: Sequence[Group], *, joined: bool = False, apart: bool = False
) -> Pooled:
    """Pools of groups as they are, with joined alignment stages, or all stages apart."""
    parts, steps = count(), dict[int, tuple[Step, ...]]()
    for group in groups:
        root = next(parts)
        for way, members in _bundles(field, group, joined=joined):
            steps |= dict.fromkeys(members, _steps(field, way, root, next(parts)))
    items = (item for group in groups for item in group.items)
    chains = [Chain(item=field.items[item], steps=steps[item]) for item in items]
    return pools_of(chains, 0 if apart else field.table.most)


def pooled_ways(field: GroupingProblem, ways: Sequence[SeatRoute]) -> Pooled:
    """Pools of items that come to their stages so, a way for each item."""
    parts = dict[SeatRoute | int, int]()
    chains: list[Chain] = []
    for item, way in zip(field.items, ways, strict=True):
        root, part = (parts.setdefault(one, len(parts)) for one in (way.root, way))
        chains.append(Chain(item=item, steps=_steps(field, way, root, part)))
    return pools_of(chains, field.table.most)


def pools_of(chains: Sequence[Chain], most: int) -> Pooled:
    """Equal stages in one pool, unless that has more than `most` vGPUs: then one for each part."""
    loads: dict[Step, list[float]] = {}
    for chain in chains:
        for step in chain.steps:
            loads.setdefault(step, []).append(chain.item.rate_rps)
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
    passes = tuple(tuple(numbers[s.key, s.work, s.part] for s in chain.steps) for chain in chains)
    return Pooled(chains=tuple(chains), pools=tuple(pools), passes=passes, cost=cost, most=most)


def _vgpus(rates: Sequence[float], step: Step) -> int:
    return int(vgpus_for(math.fsum(rates), np.array([step.work]))[0])


def _steps(field: GroupingProblem, way: SeatRoute, root: int, part: int) -> tuple[Step, ...]:
    """The stages of a way, with the parts of its shared stage and its alignment stage."""
    junction, kind = int(field.root_junction[way.root]), int(field.root_kind[way.root])
    row = way.root - int(field.root_start[junction])
    last = step_of(field.root_options[junction], (junction, field.table.blocks), row, root)
    if way.row < 0:
        return (last,)
    options = field.table.options(way.start, junction, kind)
    return step_of(options, (way.start, junction), way.row, part), last


def step_of(options: Options, blocks: tuple[int, int], row: int, part: int) -> Step:
    """The stage of these blocks by an option."""
    return Step(
        key=(*blocks, int(options.size[row]), int(options.batch[row])),
        part=part,
        price=float(options.price[row]),
        work=float(options.work[row]),
        time_us=float(options.time_us[row]),
    )


def ways_of(field: GroupingProblem, groups: Sequence[Group]) -> set[SeatRoute]:
    """Ways of items of groups to their shared stages, alignment stages joined."""
    return {way for group in groups for way, _ in _bundles(field, group, joined=True)}


def _bundles(
    field: GroupingProblem, group: Group, *, joined: bool
) -> Iterator[tuple[SeatRoute, list[int]]]:
    """Ways to a group's shared stage, and the items that take each.

    One alignment stage for each item, or joined where that costs less.
    """
    junction = int(field.root_junction[group.root])
    kind, time = int(field.root_kind[group.root]), float(field.root_time[group.root])
    least = float(field.limit[list(group.items)].min()) if field.group_budget else math.inf
    starts: dict[int, list[int]] = {}
    for item in sorted(group.items, key=lambda i: float(field.limit[i])):
        starts.setdefault(int(field.block[item]), []).append(item)
    for first, items in starts.items():
        if first == junction:
            yield SeatRoute(group.root, junction, -1), items
            continue
        options = field.table.options(first, junction, kind)
        for some in [items] if joined else [[item] for item in items]:
            left = np.minimum(field.limit[some], least) - time
            for members, row in _cuts(options, left, field.rate[some], field.table.most):
                yield SeatRoute(group.root, first, row), [some[m] for m in members]


def _cuts(
    options: Options, left: Floats, rates: Floats, most: int
) -> list[tuple[Sequence[int], int]]:
    """Items that share a stage, and its option, at the least cost; times left rise.

    Exact for few items, and for equal rates: then neighbours share.
    """
    if len(rates) > MOST_BUNDLED:
        return _neighbours(options, left, rates, most)
    size = 1 << len(rates)
    cost, row = np.full(size, np.inf), np.zeros(size, dtype=np.int64)
    for subset in range(1, size):
        members = [i for i in range(len(rates)) if subset >> i & 1]
        fits = int(np.searchsorted(options.time_us, left[members[0]], "right"))
        own = options.cost(float(rates[members].sum()), most)[:fits]
        row[subset] = own.argmin()
        cost[subset] = own[row[subset]]
    found = cheapest_cut(np.where(np.isfinite(cost), cost, FAR))
    return [(members_of(s), int(row[s])) for s in found]


def _neighbours(
    options: Options, left: Floats, rates: Floats, most: int
) -> list[tuple[Sequence[int], int]]:
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


def best_joined(field: GroupingProblem, groups: Sequence[Group]) -> Pooled:
    """Groups with joined alignment stages, at other junctions and together where that pays."""
    chosen = [_cheapest(field, group) for group in groups]
    a = 0
    while a < len(chosen) <= MOST_JOINED:
        for b in range(a + 1, len(chosen)):
            both = _cheapest(field, field.best((*chosen[a].items, *chosen[b].items)))
            if both.cost < chosen[a].cost + chosen[b].cost - SOLVED:
                chosen[a] = both
                del chosen[b]
                break
        else:
            a += 1
    return pooled(field, chosen, joined=True)


def _cheapest(field: GroupingProblem, group: Group) -> Group:
    """The group at the junction where it costs least with joined alignment stages."""
    last = max(int(field.block[i]) for i in group.items)
    tried = [field.at(group.items, junction) for junction in range(last, field.table.blocks)]
    able = [
        replace(g, cost=pooled(field, [g], joined=True).cost)
        for g in (group, *tried)
        if g.root >= 0
    ]
    return min(able, key=lambda g: g.cost, default=group)
