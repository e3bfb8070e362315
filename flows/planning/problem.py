"""The planning problem as arrays: vGPU types, latency tables, links, demands.

Here: reading core types into flat arrays and checking that they fit together.
Not here: enumerating configurations (`columns`) or solving.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flows.planning.packing import Part, fits_gpu
from flows.planning.registry import PlanOptions
from triton_backend.contract.cluster import Cluster, GpuClass
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import StageMemory
from triton_backend.contract.profiles import ModelProfile, ProfileTable
from triton_backend.contract.shares import WHOLE_GPU, divisor_of
from triton_backend.contract.units import BITS_PER_BYTE, transfer_us
from triton_backend.contract.workload import ModelDemand, Workload

GIB = 2**30

# Which sizes of classes cut into percents are there.
NO_PERCENTS, ALIKE, EVERY = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArrays:
    """One model, ready for enumeration.

    Attributes:
        types: number in `Problem.types` of every vGPU type the model may use; T of them.
        latency_us: [T, blocks + 1, blocks + 1, batches] float64; entry [t, i, j, b - 1] is the
            latency of blocks [i, j) at batch b, infinite where not measured or where the stage
            does not fit the memory of the vGPU.
        link_rps: [T, blocks + 1] samples/s that one vGPU's share of its NIC carries over the
            boundary before block i; infinite at both ends, which are free.
        transfer_us: [C, C, blocks + 1, batches] time to move the boundary before block i between
            two classes; 0 at both ends.
        limit_us: [batches] what stages and transfers together may take: SLO less margin and
            gathering time.
        unlinked: [T] whether the size is no 1/v: a configuration whose rate such a vGPU's share of the NIC
            would bound is left out, because no link bounds it in a plan.
    """

    name: str
    weight: float
    types: NDArray[np.int64]
    latency_us: NDArray[np.float64]
    link_rps: NDArray[np.float64]
    transfer_us: NDArray[np.float64]
    limit_us: NDArray[np.float64]
    unlinked: NDArray[np.bool_]

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self.link_rps.shape[1] - 1

    @property
    def batches(self) -> int:
        """Largest batch of any type."""
        return self.limit_us.shape[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Everything the planner reads, as arrays.

    Attributes:
        classes: GPU class names, in cluster order; C of them.
        gpus: [C] GPUs of each class.
        types: every (class number, vGPUs of that size on one GPU), class by class: for parts 1/v that is v.
        shares: of a GPU in 300ths, by type.
    """

    classes: tuple[str, ...]
    gpus: NDArray[np.int64]
    types: tuple[tuple[int, int], ...]
    models: tuple[ModelArrays, ...]
    shares: tuple[int, ...]

    @property
    def type_class(self) -> NDArray[np.int64]:
        """[types] class number."""
        return np.array([c for c, _ in self.types], dtype=np.int64)

    @property
    def type_divisor(self) -> NDArray[np.int64]:
        """[types] vGPUs of a size on one GPU."""
        return np.array([v for _, v in self.types], dtype=np.int64)


def build_problem(
    profiles: Mapping[str, ModelProfile],
    cluster: Cluster,
    workload: Workload,
    options: PlanOptions,
    *,
    whole_gpus: bool = False,
    percents: int = NO_PERCENTS,
) -> Problem:
    """Read the inputs into arrays.

    Args:
        profiles: by model.
        cluster: GPUs and nodes.
        workload: models alone.
        options: how to plan.
        whole_gpus: leave out every vGPU smaller than a GPU.
        percents: sizes of classes that list percents: `NO_PERCENTS`; of those of which as many fit one GPU
            only the largest (`ALIKE`), which is all that GPUs cut into equal parts need; or `EVERY` one.

    Raises:
        InputError: a model of the workload has no profile, or none on a class it may use.
    """
    classes = tuple(c.name for c in cluster.gpu_classes)
    sized = tuple(
        (number, count, share)
        for number, gpu_class in enumerate(cluster.gpu_classes)
        for count, share in ([(1, WHOLE_GPU)] if whole_gpus else _sizes(gpu_class, percents))
        if cluster.gpus(gpu_class.name)
    )
    _check_names(options, {m.name for m in workload.models}, set(classes))
    models = tuple(
        _model_arrays(_profile_of(profiles, demand), demand, cluster, sized, options)
        for demand in workload.models
    )
    gpus = np.array([cluster.gpus(name) for name in classes], dtype=np.int64)
    return Problem(
        classes=classes,
        gpus=gpus,
        types=tuple((number, count) for number, count, _ in sized),
        models=models,
        shares=tuple(share for _, _, share in sized),
    )


def _sizes(gpu_class: GpuClass, percents: int) -> list[tuple[int, int]]:
    """(vGPUs of a size on one GPU, share in 300ths), the largest parts first."""
    if not gpu_class.vgpu_percents:
        return [(divisor, WHOLE_GPU // divisor) for divisor in sorted(gpu_class.vgpu_divisors)]
    if percents == NO_PERCENTS:
        return []
    sizes = [(parts_alike(gpu_class, s), s) for s in sorted(gpu_class.shares, reverse=True)]
    sizes = [size for size in sizes if size[0]]
    if percents == EVERY:
        return sizes
    return [size for at, size in enumerate(sizes) if size[0] not in {s[0] for s in sizes[:at]}]


def parts_alike(gpu_class: GpuClass, share: int) -> int:
    """How many vGPUs of one share a GPU holds."""
    counts = range(min(gpu_class.most_vgpus, WHOLE_GPU // share) + 1)
    bare = replace(gpu_class, memory_gib=None)
    return max(n for n in counts if fits_gpu(bare, [Part(share=share)] * n))


def whole_memory(profile: ModelProfile) -> StageMemory | None:
    """What a whole model takes of a GPU: all weights, the largest workspace; None where not known."""
    return stage_memory(profile, (0, profile.blocks))


def stage_memory(profile: ModelProfile, blocks: tuple[int, int]) -> StageMemory | None:
    """What a stage takes of its GPU; None where that is not known."""
    if not profile.block_memory_bytes and not profile.block_workspace_bytes:
        return None
    first, last = blocks
    return StageMemory(
        static=sum(profile.block_memory_bytes[first:last]),
        dynamic=max(profile.block_workspace_bytes[first:last], default=0),
    )


def _check_names(options: PlanOptions, models: set[str], classes: set[str]) -> None:
    """Options that name what is not there would change nothing, silently."""
    excluded = {name: given for name, given in options.excluded_classes.items() if name != "*"}
    for name in (
        *options.minimum_rps,
        *options.slo_margins,
        *options.allowed_classes,
        *excluded,
    ):
        if name not in models:
            raise InputError("options", f"model {name!r} is not in the workload")
    for option, given in (
        ("allowed_classes", options.allowed_classes),
        ("excluded_classes", options.excluded_classes),
    ):
        for model, names in given.items():
            unknown = sorted(set(names) - classes)
            if unknown:
                raise InputError(
                    f"option {option}.{model}",
                    f"no GPU class {unknown[0]!r} in the cluster; it has {', '.join(sorted(classes))}",
                )


def _profile_of(profiles: Mapping[str, ModelProfile], demand: ModelDemand) -> ModelProfile:
    profile = profiles.get(demand.name)
    if profile is None:
        known = ", ".join(sorted(profiles)) or "none"
        raise InputError(f"workload model {demand.name!r}", f"no profile; known: {known}")
    return profile


def _model_arrays(
    profile: ModelProfile,
    demand: ModelDemand,
    cluster: Cluster,
    sized: tuple[tuple[int, int, int], ...],
    options: PlanOptions,
) -> ModelArrays:
    usable = _usable_types(profile, cluster, sized, options)
    batches = max(table.largest for _, _, table in usable.values())
    blocks = profile.blocks
    latency = np.full((len(usable), blocks + 1, blocks + 1, batches), np.inf)
    links = np.full((len(usable), blocks + 1), np.inf)
    sizes = np.array([0, *profile.boundary_bytes, 0], dtype=np.float64)
    for row, (number, part, table) in enumerate(usable.values()):
        gpu_class = cluster.gpu_classes[number].name
        _fill_latency(latency[row], table)
        _forbid_oversize(latency[row], profile, cluster.gpu_classes[number], part)
        sharers = cluster.max_gpus_per_node(gpu_class) * WHOLE_GPU / part
        bits = sizes * BITS_PER_BYTE
        share = cluster.nic_gbps(gpu_class) * 1e9 / sharers
        np.divide(share, bits, out=links[row], where=bits > 0)
    allowed_us = (1.0 - options.margin(demand.name)) * demand.slo_us
    gathering = np.array([demand.gathering_us(b) for b in range(1, batches + 1)])
    return ModelArrays(
        name=demand.name,
        weight=demand.normaliser(options.objective),
        types=np.array(list(usable), dtype=np.int64),
        latency_us=latency,
        link_rps=links,
        transfer_us=_transfers(profile, cluster, batches),
        limit_us=allowed_us - gathering,
        unlinked=np.array([divisor_of(part) is None for _, part, _ in usable.values()]),
    )


def _usable_types(
    profile: ModelProfile,
    cluster: Cluster,
    sized: tuple[tuple[int, int, int], ...],
    options: PlanOptions,
) -> dict[int, tuple[int, int, ProfileTable]]:
    """Class, share and table of every type that a model may use, by its number."""
    classes = cluster.gpu_classes
    usable = {
        number: (c, share, table)
        for number, (c, _, share) in enumerate(sized)
        if (table := profile.table(classes[c].name, share, classes[c].basis))
        and options.class_allowed(profile.name, cluster.gpu_classes[c].name)
    }
    if not usable:
        measured = "; ".join(key.text() for key in profile.tables) or "nothing"
        raise InputError(
            f"workload model {profile.name!r}",
            f"not measured on any GPU class of the cluster that it may use; measured: {measured}",
        )
    return usable


def _fill_latency(latency_us: NDArray[np.float64], table: ProfileTable) -> None:
    # Only what was measured is planned; a batch between two would take as long as the larger one.
    sizes = np.asarray(table.batches) - 1
    for first in range(len(table.latency_us)):
        latency_us[first, first + 1 :][:, sizes] = table.stage_latencies_us(first)[:, sizes]


def _forbid_oversize(
    table: NDArray[np.float64], profile: ModelProfile, gpu_class: GpuClass, share: int
) -> None:
    if gpu_class.memory_gib is None:
        return
    room = gpu_class.memory_gib * GIB * share / WHOLE_GPU
    if gpu_class.vgpu_percents:
        room -= (gpu_class.process_memory_gib or 0.0) * GIB
    for first in range(profile.blocks):
        for last in range(first + 1, profile.blocks + 1):
            if profile.stage_memory_bytes((first, last)) > room:
                table[first, last, :] = np.inf


def _transfers(profile: ModelProfile, cluster: Cluster, batches: int) -> NDArray[np.float64]:
    """[C, C, blocks + 1, batches] microseconds, at the slower of the two classes' NICs."""
    count = len(cluster.gpu_classes)
    rates = [cluster.nic_gbps(c.name) for c in cluster.gpu_classes]
    out = np.zeros((count, count, profile.blocks + 1, batches))
    by_rate: dict[float, NDArray[np.float64]] = {}
    for sender in range(count):
        for receiver in range(count):
            rate = min(rates[sender], rates[receiver])
            if rate <= 0:
                continue
            if rate not in by_rate:
                by_rate[rate] = np.array(
                    [
                        [transfer_us(size * b, rate) for b in range(1, batches + 1)]
                        for size in profile.boundary_bytes
                    ],
                    dtype=np.float64,
                ).reshape(profile.blocks - 1, batches)
            out[sender, receiver, 1:-1] = by_rate[rate]
    return out
