"""GPU memory of a plan's workers: pinned stages, and room for those loaded on demand."""

import math
from collections.abc import Sequence
from dataclasses import replace

from triton_backend.contract.cluster import GpuClass
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan.pools import Pool
from triton_backend.contract.plan.stages import Stage, StageMemory
from triton_backend.contract.shares import WHOLE_GPU, divisor_of, share_text
from triton_backend.contract.units import US_PER_S, ms_to_us

TOLERANCE = 1e-6  # of sums of floats
BYTES_PER_GIB = 1 << 30


def worker_memory_gib(gpu_class: GpuClass, held: Sequence[StageMemory | None]) -> float:
    """A worker's GPU memory: every stage's weights, the largest workspace, its process.

    Stages of which nothing is known count nothing.
    """
    known = [memory for memory in held if memory is not None]
    needed = sum(m.static for m in known) + max((m.dynamic for m in known), default=0)
    return (gpu_class.process_memory_gib or 0.0) + needed / BYTES_PER_GIB


# Stages that are loaded on demand
#
#     memory of a vGPU   [ process | weights of pinned stages | room                 | workspace ]
#                                                               loaded on demand, the largest of
#                                                               least recently used   all stages
#                                                               evicted first


def load_time_us(gpu_class: GpuClass, weights: int) -> int | None:
    """Time in which so many bytes of weights are loaded (µs); None where no rate is stated."""
    if gpu_class.load_gib_per_s is None:
        return None
    seconds = weights / BYTES_PER_GIB / gpu_class.load_gib_per_s
    return max(1, math.ceil(seconds * US_PER_S + ms_to_us(gpu_class.load_ms or 0.0)))


def pinned_memory(stage: Stage) -> StageMemory | None:
    """Memory that a stage always holds; its workspace alone where it is loaded on demand."""
    if stage.load_us is None or stage.memory is None:
        return stage.memory
    return replace(stage.memory, static=0)


def room_bytes(gpu_class: GpuClass, share: int, stages: Sequence[Stage]) -> int:
    """Bytes of a vGPU's memory for stages that are loaded on demand.

    The rest of its part of the memory, no more than all of them take; 0 where there are none.

    Raises:
        InputError: the memory of the class is not stated, or the largest of them finds no room.
    """
    weights = [s.memory.static for s in stages if s.load_us is not None and s.memory is not None]
    if not weights:
        return 0
    where = f"pool {stages[0].pool!r}, load_us"
    if gpu_class.mig is not None:
        raise InputError(where, f"class {gpu_class.name} is divided by MIG: all stages are pinned")
    if gpu_class.usable_gib is None:
        raise InputError(where, f"class {gpu_class.name} needs memory_gib, which is shared out")
    part_gib = gpu_class.usable_gib * share / WHOLE_GPU
    kept = worker_memory_gib(gpu_class, [*map(pinned_memory, stages)]) * BYTES_PER_GIB
    room = math.floor(part_gib * BYTES_PER_GIB - kept)
    if room < max(weights):
        reason = (
            f"{max(weights) / BYTES_PER_GIB:.3f} GiB are loaded at once, of {part_gib:.4g} GiB "
            f"{max(room, 0) / BYTES_PER_GIB:.3f} are left beside pinned stages and workspace"
        )
        raise InputError(where, reason)
    return min(room, sum(weights))


def pool_memory_gib(gpu_class: GpuClass, pool: Pool, stages: Sequence[Stage]) -> float:
    """Memory of a pool's vGPU: every stage's weights, the largest workspace, its process.

    Raises:
        InputError: more than a part of 1/v or of a MIG slice has; percents share what the GPU has.
    """
    held = {(s.blocks, s.memory): s.memory for s in stages if s.boards}
    alone = [pinned_memory(stage) for stage in stages if not stage.boards]
    needed = worker_memory_gib(gpu_class, [*held.values(), *alone])
    needed += room_bytes(gpu_class, pool.share, stages) / BYTES_PER_GIB
    if gpu_class.mig is not None:
        room = gpu_class.mig.room_gib(pool.share)
        if needed > room * (1 + TOLERANCE):
            part = share_text(pool.share)
            reason = f"{needed:.3f} GiB needed, {part} of a {gpu_class.mig.card} has {room:.4g}"
            raise InputError(f"pool {pool.name!r}, memory", reason)
    divisor = divisor_of(pool.share) if gpu_class.vgpu_divisors else None
    usable_gib = gpu_class.usable_gib
    if divisor and usable_gib is not None and needed > usable_gib / divisor:
        reason = f"{needed:.3f} GiB needed, 1/{divisor} of {usable_gib:g} GiB is there"
        raise InputError(f"pool {pool.name!r}, memory", reason)
    return needed
