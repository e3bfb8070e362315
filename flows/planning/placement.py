"""Placement of pools on GPUs and nodes.

GPUs of a class are numbered across nodes first: GPU 0 of every node, then GPU 1 of every node that
has one, and so on. Each group (model, vGPU size) takes the next whole GPUs in that order, so a
pool that moves much data spreads over as many nodes, and as many NICs, as it has GPUs; groups with
the most traffic per GPU come first. The planner charges every vGPU with its share of the fullest
node's NIC, so no placement can exceed a NIC; spreading only keeps the load even. vGPUs of one GPU
belong to one model and one divisor.

Pools whose shares differ, and that may sit on one GPU whatever their models, are placed by
`place_shares`: first how GPUs are cut (`packing`), then which GPUs those are.

Then few GPUs shall change hands. A GPU stays where it is when the same model keeps it at the same
size; it need not even load anything when it also keeps the same blocks. Every group (model, size)
first keeps GPUs it has, those with fitting blocks before others, then takes free ones, unused
before released. Order is that of the cluster's GPUs throughout, so the choice is deterministic.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, pairwise
from operator import itemgetter

from flows.planning.packing import Part, fits_gpu, pack
from triton_backend.contract.cluster import Cluster, NodeGroup
from triton_backend.contract.errors import InputError, InvariantError
from triton_backend.contract.plan import PlacementRun, Plan, Slot

Gpu = tuple[int, int]  # node, index on the node
Blocks = tuple[int, int]
Span = tuple[int, int, int]  # pool, first and last vGPU + 1 within its group
Need = tuple["PoolToPlace", tuple[Blocks | None, ...]]
"""The first pool of a group, and for each of the group's GPUs the blocks that run alone on it.

None where several pools meet.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolToPlace:
    """A group to place: `vgpus` vGPUs of one pool; `traffic` bytes/s over NICs per vGPU.

    Attributes:
        model: number of the group whose pools may lie on one GPU: the model's; below 0 and
            different for every pool that models share.
        name: of the model; empty where models share the pool.
        blocks: of its stage, of one of them where it is shared.
        continues: pool of the plan in force whose GPUs it keeps; None: those of the same model.
    """

    model: int
    name: str
    blocks: tuple[int, int]
    gpu_class: str
    divisor: int
    vgpus: int
    traffic: float
    continues: str | None = None


@dataclass(slots=True)
class Use:
    """One GPU in the plan in force: `model` is the first of its `models`."""

    model: str
    divisor: int
    pool: str
    blocks: set[Blocks] = field(default_factory=set[Blocks])
    models: set[str] = field(default_factory=set[str])


def place(
    cluster: Cluster, pools: Sequence[PoolToPlace], previous: Plan | None = None
) -> list[tuple[PlacementRun, ...]]:
    """Placement runs of every pool, in the order given; close to those of a plan in force.

    Raises:
        InvariantError: the pools need more GPUs of a class than there are.
    """
    by_class: dict[str, list[list[int]]] = {}
    for group in _groups(pools):
        by_class.setdefault(pools[group[0]].gpu_class, []).append(group)
    uses = {} if previous is None else uses_of(previous, cluster)
    placed: dict[int, tuple[PlacementRun, ...]] = {}
    for gpu_class, groups in by_class.items():
        needed = [_gpus_of(pools, group) for group in groups]
        if sum(needed) > cluster.gpus(gpu_class):
            raise InvariantError(
                f"{sum(needed)} GPUs of class {gpu_class} planned, {cluster.gpus(gpu_class)} exist"
            )
        gpus = gpus_of(cluster, gpu_class)
        starts = list(accumulate(needed, initial=0))
        found = [gpus[start:end] for start, end in pairwise(starts)]
        packed = [
            _packed(pools, group, _alone_before(pools[group[0]], gpus, uses)) for group in groups
        ]
        if uses:
            needs = [
                _need(pools, group, spans) for group, spans in zip(groups, packed, strict=True)
            ]
            found = _choose(needs, gpus, uses)
        for group, own, spans in zip(groups, found, packed, strict=True):
            runs: dict[int, list[PlacementRun]] = {i: [] for i in group}
            for i, begin, end in spans:
                runs[i] += _runs(own, pools[i].divisor, (begin, end))
            placed |= {i: tuple(mine) for i, mine in runs.items()}
    return [placed[i] for i in range(len(pools))]


def gpus_alone(
    vgpus: Mapping[Blocks, int], divisor: int, before: Mapping[Blocks, int]
) -> dict[Blocks, int]:
    """How many GPUs of a group run the same blocks alone, on the fewest GPUs that hold the group.

    GPUs that blocks fill, and others as long as vGPUs are left over to idle beside them: first
    those of blocks that can keep a GPU so, then those that leave the fewest idle.

    Args:
        vgpus: of the group, by blocks.
        divisor: vGPUs of a GPU.
        before: GPUs that run the blocks alone under the plan in force.
    """
    alone = {blocks: count // divisor for blocks, count in vgpus.items()}
    missing = {blocks: -count % divisor for blocks, count in vgpus.items() if count % divisor}
    idle = -sum(vgpus.values()) % divisor

    def rank(blocks: Blocks) -> tuple[bool, int, Blocks]:
        return before.get(blocks, 0) <= alone[blocks], missing[blocks], blocks

    for blocks in sorted(missing, key=rank):
        if missing[blocks] <= idle:
            idle -= missing[blocks]
            alone[blocks] += 1
    return alone


def _packed(
    pools: Sequence[PoolToPlace], group: list[int], before: Mapping[Blocks, int]
) -> list[Span]:
    """Pool, first and last vGPU + 1 within the group: GPUs of the same blocks alone, then the rest.

    So as many GPUs as possible run one stage, and can go on with it under another plan.
    """
    divisor = pools[group[0]].divisor
    vgpus = Counter[Blocks]()
    for i in group:
        vgpus[pools[i].blocks] += pools[i].vgpus
    alone = gpus_alone(vgpus, divisor, before)
    starts = accumulate((alone[blocks] * divisor for blocks in vgpus), initial=0)
    free = dict(zip(vgpus, starts, strict=False))
    rest = divisor * sum(alone.values())
    ends = {blocks: start + alone[blocks] * divisor for blocks, start in free.items()}
    spans: list[Span] = []
    for i in group:
        blocks = pools[i].blocks
        own = min(pools[i].vgpus, ends[blocks] - free[blocks])
        other = pools[i].vgpus - own
        spans += [(i, free[blocks], free[blocks] + own), (i, rest, rest + other)]
        free[blocks] += own
        rest += other
    return [span for span in spans if span[1] < span[2]]


def _groups(pools: Sequence[PoolToPlace]) -> list[list[int]]:
    """Pools that share GPUs, the groups with the most traffic per GPU first."""
    order = sorted(range(len(pools)), key=lambda i: _group(pools[i]))
    groups = [list(members) for _, members in groupby(order, key=lambda i: _group(pools[i]))]

    def heat(group: list[int]) -> float:
        return sum(pools[i].vgpus * pools[i].traffic for i in group) / _gpus_of(pools, group)

    return sorted(groups, key=lambda group: (-heat(group), _group(pools[group[0]])))


def _gpus_of(pools: Sequence[PoolToPlace], group: list[int]) -> int:
    return -(-sum(pools[i].vgpus for i in group) // pools[group[0]].divisor)


def _alone_before(
    pool: PoolToPlace, gpus: Sequence[Gpu], uses: Mapping[Gpu, Use]
) -> Counter[Blocks]:
    """How many GPUs of the plan in force run blocks alone that a group can go on with."""
    mine = (_alone(uses[gpu]) for gpu in gpus if gpu in uses and _belongs(uses[gpu], pool))
    return Counter(blocks for blocks in mine if blocks is not None)


def _need(pools: Sequence[PoolToPlace], group: list[int], spans: Iterable[Span]) -> Need:
    first = pools[group[0]]
    held: list[set[Blocks]] = [set() for _ in range(_gpus_of(pools, group))]
    for i, begin, end in spans:
        for gpu in range(begin // first.divisor, -(-end // first.divisor)):
            held[gpu].add(pools[i].blocks)
    return first, tuple(next(iter(blocks)) if len(blocks) == 1 else None for blocks in held)


def _group(pool: PoolToPlace) -> tuple[str, int, int]:
    return (pool.gpu_class, pool.model, pool.divisor)


def whole_gpus(parts: Iterable[tuple[str, int, int, int]]) -> Counter[str]:
    """By class, whole GPUs of vGPUs that share none across models and divisors.

    Args:
        parts: class, number of the model, divisor and vGPUs.
    """
    vgpus, gpus = Counter[tuple[str, int, int]](), Counter[str]()
    for gpu_class, model, divisor, count in parts:
        vgpus[gpu_class, model, divisor] += count
    for (gpu_class, _, divisor), count in vgpus.items():
        gpus[gpu_class] += -(-count // divisor)
    return gpus


def gpus_of(cluster: Cluster, gpu_class: str) -> list[Gpu]:
    """All GPUs of a class in their order: across nodes first."""
    nodes: list[tuple[int, NodeGroup]] = []
    first = 0
    for group in cluster.nodes:
        nodes.append((first, group))
        first += group.count
    return [
        (node, gpu)
        for gpu in range(cluster.max_gpus_per_node(gpu_class))
        for first, group in nodes
        if group.gpu_class == gpu_class and gpu < group.gpus
        for node in range(first, first + group.count)
    ]


def _runs(gpus: Sequence[Gpu], divisor: int, span: tuple[int, int]) -> list[PlacementRun]:
    """vGPUs [begin, end) of a group whose GPUs these are, in order."""
    begin, end = span
    runs: list[PlacementRun] = []
    while begin < end:
        (node, gpu), slot = gpus[begin // divisor], begin % divisor
        slots = min(divisor - slot, end - begin)
        _append(runs, PlacementRun(node=node, gpu=gpu, slot=slot, slots=slots))
        begin += slots
    return runs


def _append(runs: list[PlacementRun], run: PlacementRun) -> None:
    """Add a run on one node, or lengthen the last one, if that is the same on the nodes before."""
    last = runs[-1] if runs else None
    same = last and (last.gpu, last.slot, last.slots) == (run.gpu, run.slot, run.slots)
    if last and same and last.node + last.nodes == run.node:
        runs[-1] = replace(last, nodes=last.nodes + 1)
    else:
        runs.append(run)


def uses_of(plan: Plan, cluster: Cluster) -> dict[Gpu, Use]:
    """GPUs of a plan in force by what they do; nodes that are gone are left out."""
    known: dict[int, int | None] = {}
    uses: dict[Gpu, Use] = {}
    for model, _, stage, pool in plan.placed_stages():
        for slot in pool.slots():
            if slot.node not in known:
                known[slot.node] = node_now(plan.cluster, cluster, slot.node)
            node = known[slot.node]
            if node is not None:
                new = Use(model.name, pool.divisor or 0, pool.name)
                use = uses.setdefault((node, slot.gpu), new)
                use.blocks.add(stage.blocks)
                use.models.add(model.name)
    return uses


def node_now(before: Cluster, now: Cluster, node: int) -> int | None:
    """The number of a node in a later cluster; None where it is gone."""
    try:
        return now.node_index(before.node_name(node))
    except InputError:
        return None


def _choose(needs: Sequence[Need], gpus: Sequence[Gpu], uses: Mapping[Gpu, Use]) -> list[list[Gpu]]:
    """GPUs of every need, one class; in the order of its blocks."""
    taken: set[Gpu] = set()
    kept: list[list[Gpu]] = []
    for pool, blocks in needs:
        mine = [g for g in gpus if g in uses and _belongs(uses[g], pool)]
        kept.append(_most_alike(mine, blocks, uses)[: len(blocks)])
        taken.update(kept[-1])
    free = [g for g in gpus if g not in taken]
    free.sort(key=lambda g: g in uses)
    spare = iter(free)
    return [
        _ordered(need, [*mine, *(next(spare) for _ in range(len(need[1]) - len(mine)))], uses)
        for need, mine in zip(needs, kept, strict=True)
    ]


def _most_alike(
    mine: list[Gpu], wanted: Sequence[Blocks | None], uses: Mapping[Gpu, Use]
) -> list[Gpu]:
    """GPUs that can go on as they are, then those whose blocks are all wanted, then the others."""
    left, known = Counter(wanted), set(wanted)
    order: list[tuple[int, Gpu]] = []
    for gpu in mine:
        blocks = _alone(uses[gpu])
        goes_on = blocks is not None and left[blocks] > 0
        left[blocks] -= goes_on
        order.append((0 if goes_on else 1 if uses[gpu].blocks <= known else 2, gpu))
    return [gpu for _, gpu in sorted(order, key=itemgetter(0))]


def _alone(use: Use) -> Blocks | None:
    """The blocks that a GPU runs, if they are the only ones."""
    return next(iter(use.blocks)) if len(use.blocks) == 1 else None


def _belongs(use: Use, pool: PoolToPlace) -> bool:
    same = use.model == pool.name if pool.continues is None else use.pool == pool.continues
    return same and use.divisor == pool.divisor


def _ordered(need: Need, mine: list[Gpu], uses: Mapping[Gpu, Use]) -> list[Gpu]:
    """Put GPUs where they find the blocks they had."""
    pool, wanted = need
    by_blocks: dict[Blocks, list[Gpu]] = {}
    rest: list[Gpu] = []
    for gpu in mine:
        use = uses.get(gpu)
        blocks = None if use is None or not _belongs(use, pool) else _alone(use)
        if blocks is not None:
            by_blocks.setdefault(blocks, []).append(gpu)
        else:
            rest.append(gpu)
    placed = [
        by_blocks[blocks].pop(0) if blocks is not None and by_blocks.get(blocks) else None
        for blocks in wanted
    ]
    rest += [gpu for left in by_blocks.values() for gpu in left]
    spare = iter(sorted(rest))
    return [gpu if gpu is not None else next(spare) for gpu in placed]


def running(uses: Mapping[Gpu, Use], cluster: Cluster) -> dict[tuple[str, str, int, Blocks], int]:
    """How many GPUs run one stage alone, by model, class, divisor and blocks."""
    counts: dict[tuple[str, str, int, Blocks], int] = {}
    for (node, _), use in uses.items():
        if len(use.blocks) == len(use.models) == 1:
            gpu_class = cluster.node_group_of(node).gpu_class
            key = (use.model, gpu_class, use.divisor, next(iter(use.blocks)))
            counts[key] = counts.get(key, 0) + 1
    return counts


def moved(before: Mapping[Gpu, Use], after: Mapping[Gpu, Use]) -> int:
    """GPUs in use after that did something else, or nothing, before."""
    return sum(
        gpu not in before
        or (before[gpu].models, before[gpu].divisor, before[gpu].blocks)
        != (use.models, use.divisor, use.blocks)
        for gpu, use in after.items()
    )


# Pools of any shares


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareToPlace:
    """A group to place: `vgpus` vGPUs of one share, each with a process of `memory` GiB.

    `held` are places of workers of the plan in force that could serve it, in order.
    """

    gpu_class: str
    share: int
    vgpus: int
    memory_gib: float = 0.0
    held: tuple[Slot, ...] = ()


def place_shares(cluster: Cluster, pools: Sequence[ShareToPlace]) -> list[tuple[PlacementRun, ...]]:
    """Runs of pools whose shares may differ, in the order given, in the fewest GPUs of every class.

    GPUs are filled as `packing` says, those that hold most first, in the cluster's order of GPUs
    (across nodes first); slots of a GPU are numbered from its largest part on. Where workers are
    held, they stay where they are and the others go beside them, on as many GPUs as that takes;
    where the class has too few for that, all are packed again.

    Raises:
        InputError: a vGPU fits no GPU of its class, or the class has too few; the numbers are
            named.
    """
    runs: list[tuple[PlacementRun, ...]] = [() for _ in pools]
    for gpu_class in dict.fromkeys(pool.gpu_class for pool in pools):
        beside = _beside(cluster, gpu_class, pools)
        if beside is not None:
            for number, placed in _by_pool(beside).items():
                runs[number] = placed
            continue
        owners = [
            i for i, p in enumerate(pools) if p.gpu_class == gpu_class for _ in range(p.vgpus)
        ]
        parts = [Part(share=pools[i].share, memory_gib=pools[i].memory_gib) for i in owners]
        gpus, least = pack(cluster.gpu_class(gpu_class), parts)
        there = cluster.gpus(gpu_class)
        if len(gpus) > there:
            needed = f"{least} GPUs or more"
            if least <= there:
                needed = f"{len(gpus)} GPUs as packed, {least} at least"
            raise InputError(f"class {gpu_class}", f"needs {needed}, the cluster has {there}")
        held = [[owners[part] for part in parts] for parts in gpus]
        for owner, placed in place_cuts(cluster, gpu_class, held).items():
            runs[owner] = placed
    return runs


def gpus_held(placed: Iterable[Sequence[PlacementRun]]) -> set[Gpu]:
    """GPUs on which pools lie."""
    return {(slot.node, slot.gpu) for runs in placed for run in runs for slot in run.expand()}


def place_cuts(
    cluster: Cluster, gpu_class: str, gpus: Sequence[Sequence[int]]
) -> dict[int, tuple[PlacementRun, ...]]:
    """Runs of every pool where it is settled how GPUs of a class are cut.

    Args:
        cluster: where GPUs are.
        gpu_class: the class.
        gpus: the pools (by number) of the parts of each GPU, in the order of slots; in the
            cluster's order of GPUs, across nodes first.
    """
    return _by_pool(
        (pool, Slot(node=node, gpu=index, slot=slot))
        for (node, index), held in zip(gpus_of(cluster, gpu_class), gpus, strict=False)
        for slot, pool in enumerate(held)
    )


def _by_pool(slots: Iterable[tuple[int, Slot]]) -> dict[int, tuple[PlacementRun, ...]]:
    """Runs of every pool from the slots of its vGPUs."""
    found: dict[int, list[PlacementRun]] = {}
    for pool, slot in slots:
        run = PlacementRun(node=slot.node, gpu=slot.gpu, slot=slot.slot)
        found.setdefault(pool, []).append(run)
    return {pool: tuple(joined(own)) for pool, own in found.items()}


def _beside(
    cluster: Cluster, gpu_class: str, pools: Sequence[ShareToPlace]
) -> list[tuple[int, Slot]] | None:
    """Number and slot of every vGPU of a class.

    Held ones as they are, the others where least is left. None: nothing is held, or the rest does
    not fit so.
    """
    mine = [(number, pool) for number, pool in enumerate(pools) if pool.gpu_class == gpu_class]
    if not any(pool.held for _, pool in mine):
        return None
    kind = cluster.gpu_class(gpu_class)
    on_gpu: dict[Gpu, list[tuple[int, Part]]] = {gpu: [] for gpu in gpus_of(cluster, gpu_class)}
    found: list[tuple[int, Slot]] = []
    rest: list[tuple[int, Part]] = []
    for number, pool in mine:
        part = Part(share=pool.share, memory_gib=pool.memory_gib)
        stay = pool.held[: pool.vgpus]
        for slot in stay:
            on_gpu[slot.node, slot.gpu].append((slot.slot, part))
            found.append((number, slot))
        rest += [(number, part)] * (pool.vgpus - len(stay))
    for number, part in sorted(rest, key=lambda one: (-one[1].share, -one[1].memory_gib, one[0])):
        fits = [at for at, held in on_gpu.items() if fits_gpu(kind, [*(p for _, p in held), part])]
        if not fits:
            return None
        node, index = min(fits, key=lambda at: -sum(p.share for _, p in on_gpu[at]))
        taken = {slot for slot, _ in on_gpu[node, index]}
        slot = next(s for s in range(kind.most_vgpus) if s not in taken)
        on_gpu[node, index].append((slot, part))
        found.append((number, Slot(node=node, gpu=index, slot=slot)))
    return found


def joined(runs: list[PlacementRun]) -> list[PlacementRun]:
    """Neighbouring slots of a GPU as one run, then equal runs of consecutive nodes."""
    ordered = sorted(runs, key=lambda run: (run.gpu, run.node, run.slot))
    on_gpus: list[PlacementRun] = []
    for run in ordered:
        last = on_gpus[-1] if on_gpus else None
        if last and (last.node, last.gpu, last.slot + last.slots) == (run.node, run.gpu, run.slot):
            on_gpus[-1] = replace(last, slots=last.slots + 1)
        else:
            on_gpus.append(run)
    out: list[PlacementRun] = []
    for run in sorted(on_gpus, key=lambda run: (run.gpu, run.slot, run.slots, run.node)):
        _append(out, run)
    return out
