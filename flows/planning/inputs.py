"""Profiles, cluster and workload as planners read them: prices, memory, links, latencies, limits.

    of a GPU class   gpu_price, gpu_prices         what a GPU counts in an objective
                     gpu_gib, part_gib, room_gib   memory of a GPU, of a part, beside the process
    of a profile     latencies_us                  every stage at every batch, on one share
                     link_rps, moves_us            what a part of a NIC carries; time of a move
                     stage_memory, model_bytes     what a stage takes of its GPU; all models
    of a demand      limits_us                     SLO less margin
    of one name      check_alike                   tensors of its variants, or versions

`build_problem` puts these together for planners of stages: every model on every vGPU type.

Here: core types to arrays, and whether they fit together. Not here: what a family makes of them
(`pool.columns`, `gpulets.tables`, `entries.tables`, `applications.tables`), or solving.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flows.planning.packing import Part, fits_gpu
from flows.planning.registry import Inputs, PlanOptions
from flows.planning.solver.arrays import Floats, Ints
from triton_backend.contract.cluster import Cluster, GpuClass
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import BYTES_PER_GIB, StageMemory
from triton_backend.contract.profiles import ModelProfile, ProfileTable
from triton_backend.contract.shares import PER_PERCENT, WHOLE_GPU, divisor_of
from triton_backend.contract.tensors import check_same_tensors
from triton_backend.contract.units import BITS_PER_BYTE, transfer_us
from triton_backend.contract.workload import ModelDemand, Workload

# Which sizes of classes cut into percents are there.
NO_PERCENTS, ALIKE, EVERY = range(3)

_PRICES = {"cost": "hourly_cost", "power": "power_w"}


# GPU classes


def gpu_price(gpu_class: GpuClass, objective: str) -> float:
    """The weight of a whole GPU: its price or watts, percents for `share`, else 1.

    Raises:
        InputError: the class states no price for the objective.
    """
    if objective == "share":
        return WHOLE_GPU / PER_PERCENT
    if objective not in _PRICES:
        return 1.0
    stated = getattr(gpu_class, _PRICES[objective])
    if stated is None:
        where = f"gpu_classes.{gpu_class.name}.{_PRICES[objective]}"
        raise InputError(where, f"needed for the objective {objective!r}")
    return float(stated)


def gpu_prices(cluster: Cluster, objective: str) -> Floats:
    """[classes] the same of every class of a cluster."""
    return np.array([gpu_price(c, objective) for c in cluster.gpu_classes])


def gpu_gib(gpu_class: GpuClass) -> float:
    """Memory of a GPU that a plan may use; infinite where not stated."""
    return math.inf if gpu_class.usable_gib is None else gpu_class.usable_gib


def part_gib(gpu_class: GpuClass, share: int) -> float:
    """Memory that one part has for itself; infinite where parts share what the GPU has."""
    if gpu_class.mig is not None:
        return gpu_class.mig.room_gib(share)
    divisor = divisor_of(share) if gpu_class.vgpu_divisors else None
    return math.inf if divisor is None else gpu_gib(gpu_class) / divisor


def room_gib(gpu_class: GpuClass, share: int) -> float:
    """Memory that one part may use, less what its process takes; infinite where not stated."""
    room = min(part_gib(gpu_class, share), gpu_gib(gpu_class))
    return room - (gpu_class.process_memory_gib or 0.0)


# Profiles


def profile_of(profiles: Mapping[str, ModelProfile], name: str) -> ModelProfile:
    """The profile of a model of the workload.

    Raises:
        InputError: there is none.
    """
    profile = profiles.get(name)
    if profile is None:
        known = ", ".join(sorted(profiles)) or "none"
        raise InputError(f"workload model {name!r}", f"no profile; known: {known}")
    return profile


def latencies_us(table: ProfileTable) -> Floats:
    """[blocks + 1, blocks + 1, batches] of blocks [i, j) at batch b in entry [i, j, b - 1].

    Infinite at batches that were not measured, though they take no longer than the next larger one:
    only what was measured is planned.
    """
    blocks = len(table.latency_us)
    found = np.full((blocks + 1, blocks + 1, table.largest), np.inf)
    sizes = np.asarray(table.batches) - 1
    for first in range(blocks):
        found[first, first + 1 :][:, sizes] = table.stage_latencies_us(first)[:, sizes]
    return found


def link_rps(
    profile: ModelProfile,
    cluster: Cluster,
    gpu_class: str,
    share: int,
    ends_bytes: tuple[float, float] = (0, 0),
) -> Floats:
    """[blocks + 1] samples/s that one vGPU's part of its NIC carries before block i.

    The vGPUs of that share on a node divide its NIC evenly. Infinite where nothing is moved, as at
    both ends unless these say what comes to the first block and what leaves the last one.
    """
    sharers = cluster.max_gpus_per_node(gpu_class) * WHOLE_GPU / share
    moved = np.array([ends_bytes[0], *profile.boundary_bytes, ends_bytes[1]], dtype=np.float64)
    bits = moved * BITS_PER_BYTE
    found = np.full(len(bits), np.inf)
    np.divide(cluster.nic_gbps(gpu_class) * 1e9 / sharers, bits, out=found, where=bits > 0)
    return found


def moves_us(sample_bytes: int, batches: Iterable[int], rate_gbps: float) -> Floats:
    """[batches] to move so many samples over a link, whole µs rounded up."""
    return np.array([transfer_us(sample_bytes * b, rate_gbps) for b in batches], dtype=np.float64)


def stage_memory(profile: ModelProfile, blocks: tuple[int, int]) -> StageMemory | None:
    """Memory of a stage: all weights and the largest workspace; None if unknown."""
    if not profile.block_memory_bytes and not profile.block_workspace_bytes:
        return None
    first, last = blocks
    return StageMemory(
        static=sum(profile.block_memory_bytes[first:last]),
        dynamic=max(profile.block_workspace_bytes[first:last], default=0),
    )


def whole_memory(profile: ModelProfile) -> StageMemory | None:
    """The same of a whole model."""
    return stage_memory(profile, (0, profile.blocks))


def model_bytes(profiles: Iterable[ModelProfile]) -> tuple[Floats, Floats]:
    """[models] weights and workspace of whole models (bytes); 0 where not known."""
    known = [whole_memory(profile) or StageMemory(static=0, dynamic=0) for profile in profiles]
    return np.array([float(m.static) for m in known]), np.array([float(m.dynamic) for m in known])


# Demands


def limits_us(demands: Sequence[ModelDemand], options: PlanOptions) -> Floats:
    """[models] SLO less margin."""
    return np.array([(1 - options.margin(demand.name)) * demand.slo_us for demand in demands])


def require_rates(workload: Workload, objective: str) -> None:
    """Check that models without entries and applications state rates, as all but throughput need.

    Raises:
        InputError: one states none.
    """
    if objective == "throughput":
        return
    missing = [
        f"workload model {model.name!r}, rate_rps"
        for model in workload.models
        if model.rate_rps is None and not model.entries
    ] + [
        f"application {application.name!r}.rate_rps"
        for application in workload.applications
        if application.rate_rps is None
    ]
    if missing:
        raise InputError(missing[0], f"needed for the objective {objective!r}")


def unlike_weights(workload: Workload, objective: str) -> tuple[str, ...]:
    """A warning where throughput is shared out by rates that only some models state."""
    demands = (*(m for m in workload.models if not m.entries), *workload.applications)
    weightless = [demand for demand in demands if demand.weight is None]
    by_rate = [demand for demand in weightless if demand.rate_rps is not None]
    bare = [demand.name for demand in weightless if demand.rate_rps is None]
    if objective != "throughput" or not bare or not by_rate:
        return ()
    names = f"{', '.join(bare)}: without weight and rate_rps, counts as 1 beside"
    others = f"{by_rate[0].rate_rps:g} of {by_rate[0].name}"
    return (f"{names} {others}: give every model a rate, or each a weight",)


# Models on vGPU types


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
        unlinked: [T] whether the size is no 1/v: a configuration whose rate such a vGPU's share of
            the NIC would bound is left out, because no link bounds it in a plan.
    """

    name: str
    weight: float
    types: Ints
    latency_us: Floats
    link_rps: Floats
    transfer_us: Floats
    limit_us: Floats
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
        types: every (class number, vGPUs of that size on one GPU), class by class: for parts 1/v
            that is v.
        shares: of a GPU in 300ths, by type.
    """

    classes: tuple[str, ...]
    gpus: Ints
    types: tuple[tuple[int, int], ...]
    models: tuple[ModelArrays, ...]
    shares: tuple[int, ...]

    @property
    def type_class(self) -> Ints:
        """[types] class number."""
        return np.array([c for c, _ in self.types], dtype=np.int64)

    @property
    def type_divisor(self) -> Ints:
        """[types] vGPUs of a size on one GPU."""
        return np.array([v for _, v in self.types], dtype=np.int64)

    @property
    def type_numbers(self) -> dict[tuple[str, int], int]:
        """Types by class name and vGPUs of that size on one GPU."""
        return {(self.classes[c], v): number for number, (c, v) in enumerate(self.types)}

    def types_apart(self) -> "Problem":
        """The same with a class for every type, so that each may have a price of its own."""
        types = range(len(self.types))
        return replace(self, classes=tuple(map(str, types)), types=tuple((t, 1) for t in types))


def build_problem(
    inputs: Inputs, *, whole_gpus: bool = False, percents: int = NO_PERCENTS
) -> Problem:
    """Read the inputs into arrays.

    Args:
        inputs: of models alone.
        whole_gpus: leave out every vGPU smaller than a GPU.
        percents: sizes of classes that list percents: `NO_PERCENTS`; of those of which as many fit
            one GPU only the largest (`ALIKE`), which is all that GPUs cut into equal parts need; or
            `EVERY` one.

    Raises:
        InputError: a model of the workload has no profile, or none on a class it may use.
    """
    cluster, demands = inputs.cluster, inputs.workload.models
    classes = tuple(c.name for c in cluster.gpu_classes)
    sized = tuple(
        (number, count, share)
        for number, gpu_class in enumerate(cluster.gpu_classes)
        for count, share in ([(1, WHOLE_GPU)] if whole_gpus else _sizes(gpu_class, percents))
        if cluster.gpus(gpu_class.name)
    )
    _check_names(inputs.options, {m.name for m in demands}, set(classes))
    return Problem(
        classes=classes,
        gpus=np.array([cluster.gpus(name) for name in classes], dtype=np.int64),
        types=tuple((number, count) for number, count, _ in sized),
        models=tuple(_model_arrays(inputs, demand, sized) for demand in demands),
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
    bare = replace(gpu_class, memory_gib=None, taken_gib=None)
    return max(n for n in counts if fits_gpu(bare, [Part(share=share)] * n))


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
                    f"no GPU class {unknown[0]!r} in the cluster; it has "
                    f"{', '.join(sorted(classes))}",
                )
    for model in sorted(models):
        if not any(options.class_allowed(model, name) for name in classes):
            raise InputError(
                "options",
                f"model {model!r} may use no GPU class of the cluster: allowed and excluded ones"
                " leave none",
            )


def _usable_types(
    inputs: Inputs, profile: ModelProfile, sized: tuple[tuple[int, int, int], ...]
) -> dict[int, tuple[int, int, ProfileTable]]:
    """Class, share and table of every type that a model may use, by its number."""
    classes = inputs.cluster.gpu_classes
    usable = {
        number: (c, share, table)
        for number, (c, _, share) in enumerate(sized)
        if (table := profile.table(classes[c].name, share, classes[c].basis))
        and inputs.options.class_allowed(profile.name, classes[c].name)
    }
    if not usable:
        raise without_gpus(inputs, profile) or InputError(
            f"workload model {profile.name!r}",
            "not measured on any GPU class of the cluster that it may use; measured:"
            f" {_measured(profile)}",
        )
    return usable


def without_gpus(inputs: Inputs, profile: ModelProfile) -> InfeasibleError | None:
    """The complaint about a model that was measured on classes without a GPU alone."""
    cluster, allowed = inputs.cluster, inputs.options.class_allowed
    if not any(
        profile.table(one.name, share, one.basis)
        for one in cluster.gpu_classes
        if not cluster.gpus(one.name) and allowed(profile.name, one.name)
        for share in one.shares
    ):
        return None
    reason = "the cluster has no GPU of a class that it may use and was measured on; measured:"
    return InfeasibleError(f"workload model {profile.name!r}", f"{reason} {_measured(profile)}")


def _measured(profile: ModelProfile) -> str:
    return "; ".join(key.text() for key in profile.tables) or "nothing"


def _model_arrays(
    inputs: Inputs, demand: ModelDemand, sized: tuple[tuple[int, int, int], ...]
) -> ModelArrays:
    profile, cluster = profile_of(inputs.profiles, demand.name), inputs.cluster
    usable = _usable_types(inputs, profile, sized)
    batches = max(table.largest for _, _, table in usable.values())
    blocks = profile.blocks
    latency = np.full((len(usable), blocks + 1, blocks + 1, batches), np.inf)
    links = np.empty((len(usable), blocks + 1))
    for row, (number, part, table) in enumerate(usable.values()):
        gpu_class = cluster.gpu_classes[number]
        latency[row, :, :, : table.largest] = latencies_us(table)
        latency[row][_oversize(profile, gpu_class, part)] = np.inf
        links[row] = link_rps(profile, cluster, gpu_class.name, part)
    gathering = np.array([demand.gathering_us(b) for b in range(1, batches + 1)])
    return ModelArrays(
        name=demand.name,
        weight=demand.normaliser(inputs.options.objective),
        types=np.array(list(usable), dtype=np.int64),
        latency_us=latency,
        link_rps=links,
        transfer_us=_transfers(profile, cluster, batches),
        limit_us=limits_us([demand], inputs.options) - gathering,
        unlinked=np.array([divisor_of(part) is None for _, part, _ in usable.values()]),
    )


def _oversize(profile: ModelProfile, gpu_class: GpuClass, share: int) -> NDArray[np.bool_]:
    """[blocks + 1, blocks + 1] whether a stage takes more than the share of its GPU's memory."""
    room = gpu_gib(gpu_class) * share / WHOLE_GPU
    if gpu_class.vgpu_percents:
        room -= gpu_class.process_memory_gib or 0.0
    found = np.zeros((profile.blocks + 1, profile.blocks + 1), dtype=np.bool_)
    if room < np.inf:
        for first in range(profile.blocks):
            for last in range(first + 1, profile.blocks + 1):
                held = profile.stage_memory_bytes((first, last))
                found[first, last] = held > room * BYTES_PER_GIB
    return found


def _transfers(profile: ModelProfile, cluster: Cluster, batches: int) -> Floats:
    """[C, C, blocks + 1, batches] µs at the slower of the two classes' NICs.

    0 where one has none.
    """
    rates = np.array([cluster.nic_gbps(c.name) for c in cluster.gpu_classes])
    slower = np.minimum.outer(rates, rates)
    out = np.zeros((*slower.shape, profile.blocks + 1, batches))
    for rate in np.unique(slower[slower > 0]).tolist():
        for boundary, size in enumerate(profile.boundary_bytes, 1):
            out[slower == rate, boundary] = moves_us(size, range(1, batches + 1), rate)
    return out


def check_alike(
    kind: str, demands: Iterable[ModelDemand], profiles: Mapping[str, ModelProfile]
) -> None:
    """Check that models of one name take and give the same tensors, where profiles name any.

    Args:
        kind: variant or version, for the error.
        demands: models that answer for one name.
        profiles: by model.

    Raises:
        InputError: two differ.
    """
    known = [(one.name, profiles[one.name]) for one in demands if one.name in profiles]
    named = [(name, profile) for name, profile in known if profile.inputs]
    for name, profile in named[1:]:
        first, of = named[0]
        where = f"workload model {name!r}, {kind} of {first!r}"
        check_same_tensors(where, (profile.inputs, profile.outputs), (of.inputs, of.outputs))
