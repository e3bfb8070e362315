"""Placement of pools on GPUs and nodes.

GPUs of a class are numbered across nodes first: GPU 0 of every node, then GPU 1 of every node that
has one, and so on. Each group (model, vGPU size) takes the next whole GPUs in that order, so a
pool that moves much data spreads over as many nodes, and as many NICs, as it has GPUs; groups with
the most traffic per GPU come first. The planner charges every vGPU with its share of the fullest
node's NIC, so no placement can exceed a NIC; spreading only keeps the load even. vGPUs of one GPU
belong to one model and one divisor. All work is on ranges: its time does not grow with GPUs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from triton_backend.core.cluster import Cluster
from triton_backend.core.errors import InvariantError
from triton_backend.core.plan import PlacementRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What is to be placed: `vgpus` vGPUs of one stage; `traffic` bytes/s over NICs per vGPU."""

    model: int
    gpu_class: str
    divisor: int
    vgpus: int
    traffic: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Strip:
    """GPU number `gpu` of `count` nodes from `node` on."""

    node: int
    count: int
    gpu: int


def place(cluster: Cluster, pools: Sequence[Pool]) -> list[tuple[PlacementRun, ...]]:
    """Placement runs of every pool, in the order given.

    Raises:
        InvariantError: the pools need more GPUs of a class than there are.
    """
    placed: dict[int, tuple[PlacementRun, ...]] = {}
    order = sorted(range(len(pools)), key=lambda i: _group(pools[i]))
    heat: dict[tuple[str, int, int], float] = {}
    for key, members in groupby(order, key=lambda i: _group(pools[i])):
        inside = [pools[i] for i in members]
        gpus = -(-sum(p.vgpus for p in inside) // key[2])
        heat[key] = sum(p.vgpus * p.traffic for p in inside) / gpus
    taken: dict[str, int] = {}
    order.sort(key=lambda i: (pools[i].gpu_class, -heat[_group(pools[i])], _group(pools[i]), i))
    for key, members in groupby(order, key=lambda i: _group(pools[i])):
        gpu_class, _, divisor = key
        strips = _strips(cluster, gpu_class)
        first = taken.get(gpu_class, 0)
        at = 0
        for i in members:
            placed[i] = tuple(_runs(strips, first, divisor, (at, at + pools[i].vgpus)))
            at += pools[i].vgpus
        taken[gpu_class] = first + -(-at // divisor)
        if taken[gpu_class] > cluster.gpus(gpu_class):
            raise InvariantError(
                f"{taken[gpu_class]} GPUs of class {gpu_class} planned, "
                f"{cluster.gpus(gpu_class)} exist"
            )
    return [placed[i] for i in range(len(pools))]


def _group(pool: Pool) -> tuple[str, int, int]:
    return (pool.gpu_class, pool.model, pool.divisor)


def _strips(cluster: Cluster, gpu_class: str) -> list[_Strip]:
    strips: list[_Strip] = []
    for gpu in range(cluster.max_gpus_per_node(gpu_class)):
        node = 0
        for group in cluster.nodes:
            if group.gpu_class == gpu_class and group.gpus > gpu:
                strips.append(_Strip(node=node, count=group.count, gpu=gpu))
            node += group.count
    return strips


def _runs(
    strips: list[_Strip], first_gpu: int, divisor: int, span: tuple[int, int]
) -> list[PlacementRun]:
    """vGPUs [begin, end) of a group whose GPUs start at number `first_gpu` of the class."""
    begin, end = span
    runs: list[PlacementRun] = []
    while begin < end:
        slot = begin % divisor
        gpu = first_gpu + begin // divisor
        node, room, index = _locate(strips, gpu)
        if slot or end - begin < divisor:
            slots = min(divisor - slot, end - begin)
            runs.append(PlacementRun(node=node, gpu=index, slot=slot, slots=slots))
            begin += slots
            continue
        nodes = min(room, (end - begin) // divisor)
        runs.append(PlacementRun(node=node, gpu=index, slot=0, nodes=nodes, slots=divisor))
        begin += nodes * divisor
    return runs


def _locate(strips: list[_Strip], gpu: int) -> tuple[int, int, int]:
    """Node of a GPU number, how many GPUs of its strip follow from there, and its index."""
    for strip in strips:
        if gpu < strip.count:
            return strip.node + gpu, strip.count - gpu, strip.gpu
        gpu -= strip.count
    raise InvariantError(f"GPU number {gpu} beyond the class")
