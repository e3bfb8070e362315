"""Checks of the GPUs that pools are placed on: sizes, slots, partitions, memory."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.cluster import Cluster, GpuClass
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan.memory import TOLERANCE, pool_memory_gib
from triton_backend.contract.plan.pools import Pool, slot_table
from triton_backend.contract.plan.stages import Stage
from triton_backend.contract.shares import PER_PERCENT, WHOLE_GPU, percent_of, share_text


def check_sizes(cluster: Cluster, pools: Sequence[Pool]) -> None:
    """Every pool's class exists and may be cut so."""
    for pool in pools:
        gpu_class = cluster.gpu_class(pool.gpu_class)
        known = gpu_class.shares if gpu_class.mig else (WHOLE_GPU, *gpu_class.shares)
        if pool.share not in known:
            listed = ", ".join(share_text(share) for share in gpu_class.shares)
            raise InputError(
                f"pool {pool.name!r}",
                f"vGPUs of {share_text(pool.share)}, but class {pool.gpu_class} lists {listed}",
            )


def check_gpus(cluster: Cluster, pools: Sequence[Pool], stages: Sequence[Sequence[Stage]]) -> None:
    """Slots exist and stand in one pool; what a GPU is cut into fits it, in shares and in memory.

    `stages` are those of every pool. Works on arrays, because plans have up to 10^5 vGPUs: `slots`
    [vGPU, (node, GPU, slot)], `owner` [vGPU] the number of its pool, `gpu` [vGPU] the number of its
    GPU among those used, `at` [GPU] one vGPU of each.
    """
    if not pools:
        return
    tables = [slot_table(pool.placement) for pool in pools]
    slots = np.concatenate(tables)
    owner = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    _check_slots(cluster, pools, slots, owner)
    _, at, gpu = np.unique(
        slots[:, 0] * (int(slots[:, 1].max()) + 1) + slots[:, 1],
        return_index=True,
        return_inverse=True,
    )
    classes = [cluster.gpu_class(pool.gpu_class) for pool in pools]

    def complain(bad: NDArray[np.bool_], what: str, reason: Callable[[int], str]) -> None:
        if bad.any():
            number = int(np.flatnonzero(bad)[0])
            node, index = (int(v) for v in slots[at[number], :2])
            raise InputError(f"node {cluster.node_name(node)}, GPU {index}, {what}", reason(number))

    share = np.array([pool.share for pool in pools])[owner]
    taken = np.bincount(gpu, weights=share)
    complain(
        taken > WHOLE_GPU,
        "share",
        lambda g: f"its vGPUs take {percent_of(int(taken[g])):g} % of it",
    )
    count = np.bincount(gpu)
    most = np.array([c.most_vgpus for c in classes])[owner[at]]
    complain(
        count > most,
        "max_vgpus_per_gpu",
        lambda g: f"{count[g]} vGPUs, its class allows {most[g]}",
    )
    _check_partitions(classes, (share, owner, gpu, at), complain)
    parts = zip(classes, pools, stages, strict=True)
    needed = np.array([pool_memory_gib(*each) for each in parts])
    held = np.bincount(gpu, weights=needed[owner])
    room = np.array([c.usable_gib or np.inf for c in classes])[owner[at]]
    complain(
        held > room * (1 + TOLERANCE),
        "memory",
        lambda g: f"{held[g]:.3f} GiB needed, it has {room[g]:g}",
    )


def _check_slots(
    cluster: Cluster, pools: Sequence[Pool], slots: NDArray[np.int64], owner: NDArray[np.int64]
) -> None:
    """Every slot exists on a GPU of its pool's class, and stands once."""
    names = {c.name: number for number, c in enumerate(cluster.gpu_classes)}
    counts = [group.count for group in cluster.nodes]
    node_class = np.repeat([names[group.gpu_class] for group in cluster.nodes], counts)
    node_gpus = np.repeat([group.gpus for group in cluster.nodes], counts)
    wanted = np.array([names[pool.gpu_class] for pool in pools])[owner]
    most = np.array([cluster.gpu_classes[c].most_vgpus for c in range(len(names))])[wanted]
    node = slots[:, 0]
    known = (node >= 0) & (node < len(node_class))
    known[known] &= node_class[node[known]] == wanted[known]
    known[known] &= slots[known, 1] < node_gpus[node[known]]
    for bad, reason in (
        (~known, "no such GPU of class"),
        (slots[:, 2] >= most, "no such slot on a GPU of class"),
    ):
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            pool = pools[owner[row]]
            where = f"pool {pool.name!r}, placement"
            raise InputError(where, f"{tuple(map(int, slots[row]))}: {reason} {pool.gpu_class}")
    order = np.lexsort(slots.T)
    again = np.flatnonzero((np.diff(slots[order], axis=0) == 0).all(axis=1))
    if len(again):
        first, second = (int(row) for row in order[again[0] : again[0] + 2])
        both = " and ".join(repr(pools[int(owner[row])].name) for row in (first, second))
        node, index, slot = (int(v) for v in slots[first])
        where = f"node {cluster.node_name(node)}, GPU {index}, slot {slot}"
        raise InputError(where, f"stands in pools {both}")


def _check_partitions(
    classes: Sequence[GpuClass],
    cut: tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    complain: Callable[[NDArray[np.bool_], str, Callable[[int], str]], None],
) -> None:
    """Where a class lists its partitions, every GPU of it is cut into parts of one of them.

    Slices of MIG must fit the card together.
    """
    share, owner, gpu, at = cut
    for number, vgpu in enumerate(at.tolist()):
        gpu_class = classes[int(owner[vgpu])]
        allowed = gpu_class.partitions
        if gpu_class.mig is not None:
            shown = gpu_class.mig.refuses(share[gpu == number].tolist())
            if shown is not None:
                complain(np.arange(len(at)) == number, "slices", lambda _, text=shown: text)
            continue
        if not allowed:
            continue
        parts = sorted((share[gpu == number] // PER_PERCENT).tolist())
        if not any(_is_part_of(parts, partition) for partition in allowed):
            shown = f"cut into {parts}, its class allows {[list(p) for p in allowed]}"
            complain(np.arange(len(at)) == number, "partitions", lambda _, text=shown: text)


def _is_part_of(parts: Sequence[int], partition: Sequence[int]) -> bool:
    left = list(partition)
    for part in parts:
        if part not in left:
            return False
        left.remove(part)
    return True
