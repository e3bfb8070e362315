"""A change made at once: workers that start, end, load and drop, and memory of GPUs meanwhile."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from triton_backend.contract.plan import (
    BYTES_PER_GIB,
    TOLERANCE,
    Plan,
    StageMemory,
    pinned_memory,
    worker_memory_gib,
)
from triton_backend.contract.shares import percent_of
from triton_backend.contract.transition.workers import (
    Inherited,
    Place,
    StageKey,
    contents,
    inherited_vgpus,
    missing,
    on_demand,
    places,
)


class GpuPeak(NamedTuple):
    """Memory of one GPU before, during and after a change (GiB), and its size if known.

    `share` is what its workers may take of it at once, in 300ths of the GPU. It may exceed the
    whole: a new worker runs nothing before the change, one that ends only what it was sent before.
    """

    node: str
    gpu: int
    before_gib: float
    during_gib: float
    after_gib: float
    memory_gib: float | None
    share: int

    @property
    def fits(self) -> bool:
        """True if old and new are there together."""
        return self.memory_gib is None or self.during_gib <= self.memory_gib * (1 + TOLERANCE)

    def to_dict(self) -> dict[str, Any]:
        """Plain form; the share in percents."""
        return {**self._asdict(), "share": percent_of(self.share)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A change from one plan to another, made at once.

    Attributes:
        inherited: workers that go on, by vGPU number before and after.
        starts: vGPUs of the new plan whose worker starts, the largest memory first.
        ends: vGPUs of the old plan whose worker ends when what it was sent has ended.
        loads: stages that a worker that goes on must load before the change, by new vGPU number.
        drops: stages that it no longer needs afterwards, by new vGPU number.
        bytes_loaded: weights that new workers and living ones load, by node; stages of unknown
            memory count nothing.
        gpus: every GPU that either plan uses, by node and number.
    """

    inherited: tuple[Inherited, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    loads: Mapping[int, tuple[StageKey, ...]]
    drops: Mapping[int, tuple[StageKey, ...]]
    bytes_loaded: Mapping[str, int]
    gpus: tuple[GpuPeak, ...]

    @property
    def fits(self) -> bool:
        """True if every GPU holds old and new together."""
        return all(gpu.fits for gpu in self.gpus)

    @property
    def nothing(self) -> bool:
        """True if no worker starts, ends or loads: at most numbers change."""
        return not (self.starts or self.ends or self.loads)

    def to_dict(self) -> dict[str, Any]:
        """Plain form, with counts in place of the workers that go on unchanged."""
        return {
            "stay": len(self.inherited),
            "start": list(self.starts),
            "end": list(self.ends),
            "load": {vgpu: [_key_text(key) for key in keys] for vgpu, keys in self.loads.items()},
            "drop": {vgpu: [_key_text(key) for key in keys] for vgpu, keys in self.drops.items()},
            "bytes_loaded": dict(self.bytes_loaded),
            "gpus": [gpu.to_dict() for gpu in self.gpus],
        }


def _key_text(key: StageKey) -> str:
    return f"{key.model} [{key.blocks[0]}, {key.blocks[1]})"


def transition(before: Plan, after: Plan) -> Transition:
    """Effects of a change on every worker, and memory of GPUs meanwhile."""
    inherited = inherited_vgpus(before, after)
    stay_before = {pair.before for pair in inherited}
    stay_after = {pair.after for pair in inherited}
    had, has = contents(before), contents(after)
    old, new = before.vgpus(), after.vgpus()
    old_places, new_places = places(before), places(after)
    sizes_before, sizes_after = worker_sizes_gib(before), worker_sizes_gib(after)
    starts = [vgpu for vgpu in new if vgpu.index not in stay_after]
    starts.sort(key=lambda vgpu: -sizes_after[vgpu.pool])
    ends = [vgpu for vgpu in old if vgpu.index not in stay_before]
    loads: dict[int, tuple[StageKey, ...]] = {}
    drops: dict[int, tuple[StageKey, ...]] = {}
    bytes_loaded: dict[str, int] = defaultdict(int)
    peaks: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])

    def holds(place: Place, sizes: tuple[float, float, float], *, shares: int = 1) -> None:
        peak = peaks[place.node, place.gpu]
        for k, size in enumerate((*sizes, float(shares * place.share))):
            peak[k] += size

    for one, other in inherited:
        held, wanted = had[old[one].pool], has[new[other].pool]
        size = sizes_before[old[one].pool]
        lacks = missing(held, wanted)
        if lacks and on_demand(wanted):  # its room is the less of both until the change is made
            size = max(size, sizes_after[new[other].pool])
        elif lacks:
            loads[other] = lacks
            memories = [wanted[key].memory for key in lacks]
            bytes_loaded[new_places[other].node] += _static(memories)
            size += _grown(before, old[one].pool, memories)
        left = tuple(key for key in held if key not in wanted or key in lacks)
        if left:
            drops[other] = left
        sizes = sizes_before[old[one].pool], size, sizes_after[new[other].pool]
        holds(new_places[other], sizes)
    for vgpu in starts:
        size = sizes_after[vgpu.pool]
        holds(new_places[vgpu.index], (0.0, size, size))
        memories = [pinned_memory(stage) for stage in after.stages_of(vgpu.pool)]
        bytes_loaded[new_places[vgpu.index].node] += _static(memories)
    for vgpu in ends:
        size = sizes_before[vgpu.pool]
        holds(old_places[vgpu.index], (size, size, 0.0))
    memory = gpu_memories_gib(before) | gpu_memories_gib(after)
    return Transition(
        inherited=inherited,
        starts=tuple(vgpu.index for vgpu in starts),
        ends=tuple(vgpu.index for vgpu in ends),
        loads=loads,
        drops=drops,
        bytes_loaded=dict(bytes_loaded),
        gpus=tuple(
            GpuPeak(node, gpu, was, meanwhile, then, memory[node], round(share))
            for (node, gpu), (was, meanwhile, then, share) in sorted(peaks.items())
        ),
    )


def worker_sizes_gib(plan: Plan) -> list[float]:
    """Memory (GiB) of a worker by its pool's number."""
    return [
        worker_memory_gib(
            plan.cluster.gpu_class(pool.gpu_class),
            [pinned_memory(stage) for stage in plan.stages_of(number)],
        )
        + plan.room_bytes(number) / BYTES_PER_GIB
        for number, pool in enumerate(plan.pools)
    ]


def _grown(plan: Plan, pool: int, more: Sequence[StageMemory | None]) -> float:
    """Additional memory (GiB) of a worker with stages loaded beside its own."""
    gpu_class = plan.cluster.gpu_class(plan.pools[pool].gpu_class)
    held = [stage.memory for stage in plan.stages_of(pool)]
    return worker_memory_gib(gpu_class, [*held, *more]) - worker_memory_gib(gpu_class, held)


def _static(memories: Iterable[StageMemory | None]) -> int:
    return sum(memory.static for memory in memories if memory is not None)


def gpu_memories_gib(plan: Plan) -> dict[str, float | None]:
    """Memory (GiB) of a node's GPUs, by the node's name."""
    cluster = plan.cluster
    return {
        cluster.node_name(node): cluster.gpu_class(cluster.node_group_of(node).gpu_class).usable_gib
        for node in range(cluster.node_count)
    }
