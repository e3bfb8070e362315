"""Choosing GPUs for pools so that few change hands against the plan in force.

A GPU stays where it is when the same model keeps it at the same size; it need not even load
anything when it also keeps the same blocks. Every group (model, size) first keeps GPUs it has,
those with fitting blocks before others, then takes free ones, unused before released. Order is
that of the cluster's GPUs throughout, so the choice is deterministic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan

Gpu = tuple[int, int]  # node, index on the node
Blocks = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a group needs: GPUs, and which blocks run alone on which of them.

    `blocks[i]` is what GPU number i of the group runs; None where several pools meet.
    """

    model: str
    divisor: int
    blocks: tuple[Blocks | None, ...]


@dataclass(slots=True)
class Use:
    """What one GPU did in the plan in force."""

    model: str
    divisor: int
    blocks: set[Blocks] = field(default_factory=set[Blocks])


def uses_of(plan: Plan, cluster: Cluster) -> dict[Gpu, Use]:
    """GPUs of a plan in force by what they do; nodes that are gone are left out."""
    known: dict[int, int | None] = {}
    uses: dict[Gpu, Use] = {}
    for model in plan.models:
        for stage in (s for p in model.pipelines for s in p.stages):
            for slot in stage.slots():
                if slot.node not in known:
                    known[slot.node] = _same_node(plan.cluster, cluster, slot.node)
                node = known[slot.node]
                if node is not None:
                    use = uses.setdefault((node, slot.gpu), Use(model.name, stage.vgpu_divisor))
                    use.blocks.add(stage.blocks)
    return uses


def _same_node(before: Cluster, now: Cluster, node: int) -> int | None:
    try:
        return now.node_index(before.node_name(node))
    except InputError:
        return None


def choose(
    shares: Sequence[Share], gpus: Sequence[Gpu], uses: Mapping[Gpu, Use]
) -> list[list[Gpu]]:
    """GPUs of every share, one class; in the order of `Share.blocks`."""
    taken: set[Gpu] = set()
    kept: list[list[Gpu]] = []
    for share in shares:
        mine = [g for g in gpus if g in uses and _belongs(uses[g], share)]
        wanted = {blocks for blocks in share.blocks if blocks is not None}
        mine.sort(key=lambda g: not uses[g].blocks <= wanted)
        kept.append(mine[: len(share.blocks)])
        taken.update(kept[-1])
    free = [g for g in gpus if g not in taken]
    free.sort(key=lambda g: g in uses)
    spare = iter(free)
    return [
        _ordered(share, [*mine, *(next(spare) for _ in range(len(share.blocks) - len(mine)))], uses)
        for share, mine in zip(shares, kept, strict=True)
    ]


def _belongs(use: Use, share: Share) -> bool:
    return (use.model, use.divisor) == (share.model, share.divisor)


def _ordered(share: Share, mine: list[Gpu], uses: Mapping[Gpu, Use]) -> list[Gpu]:
    """Put GPUs where they find the blocks they had."""
    by_blocks: dict[Blocks, list[Gpu]] = {}
    rest: list[Gpu] = []
    for gpu in mine:
        use = uses.get(gpu)
        if use is not None and _belongs(use, share) and len(use.blocks) == 1:
            by_blocks.setdefault(next(iter(use.blocks)), []).append(gpu)
        else:
            rest.append(gpu)
    placed = [
        by_blocks[blocks].pop(0) if blocks is not None and by_blocks.get(blocks) else None
        for blocks in share.blocks
    ]
    rest += [gpu for left in by_blocks.values() for gpu in left]
    spare = iter(sorted(rest))
    return [gpu if gpu is not None else next(spare) for gpu in placed]


def running(uses: Mapping[Gpu, Use], cluster: Cluster) -> dict[tuple[str, str, int, Blocks], int]:
    """How many GPUs run one stage alone, by model, class, divisor and blocks."""
    counts: dict[tuple[str, str, int, Blocks], int] = {}
    for (node, _), use in uses.items():
        if len(use.blocks) == 1:
            gpu_class = cluster.node_group_of(node).gpu_class
            key = (use.model, gpu_class, use.divisor, next(iter(use.blocks)))
            counts[key] = counts.get(key, 0) + 1
    return counts


def moved(before: Mapping[Gpu, Use], after: Mapping[Gpu, Use]) -> int:
    """GPUs in use after that did something else, or nothing, before."""
    return sum(
        gpu not in before
        or (before[gpu].model, before[gpu].divisor, before[gpu].blocks)
        != (use.model, use.divisor, use.blocks)
        for gpu, use in after.items()
    )
