"""Inputs of gpulets' planners as arrays.

Parts a GPU may be cut into, and every model alone on each. Here: parts, cells with their pressures,
and whether every model can take turns. Not here: reading prices, memory and limits (`inputs`);
which models take turns on a part (`parts`), which parts make a GPU (`patterns`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement

import numpy as np

from flows.planning.inputs import (
    gpu_gib,
    gpu_price,
    limits_us,
    model_bytes,
    part_gib,
    profile_of,
    without_gpus,
)
from flows.planning.registry import Inputs
from flows.planning.solver.arrays import Floats, Ints
from triton_backend.contract.cluster import GpuClass
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import BYTES_PER_GIB
from triton_backend.contract.profiles import InterferenceModel, ModelProfile
from triton_backend.contract.shares import (
    PER_PERCENT,
    SOLO,
    WHOLE_GPU,
    MigCell,
    mig_share,
    share_text,
)
from triton_backend.contract.units import us_to_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One model, whole, alone on a part of a GPU.

    Attributes:
        batches: [n] batches measured, rising.
        latency_us: [n] of one run, alone.
        turn_us: [n] the longest run of a batch up to that one, alone.
        susceptibility, pressure: [n] in the interference model's terms; 0 where none is planned
            with.
    """

    batches: Ints
    latency_us: Ints
    turn_us: Ints
    susceptibility: Floats
    pressure: Floats

    def take(self, which: Ints) -> "Cell":
        """Some of the batches."""
        return Cell(**{name: getattr(self, name)[which] for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTable:
    """One GPU class.

    Attributes:
        partitions: every multiset of shares (300ths, rising) that parts in use of a GPU may have.
        cells: by share, then by model number; where a model was not measured or may not run, none.
        memory_gib: of a GPU; infinite where not stated.
        part_memory_gib: by share: of one part; infinite where parts share what the GPU has.
        slices: whether parts are those of MIG slices, which share nothing (`mig`).
        inflation: reserve on every factor beside neighbours.
        interference: whether neighbours slow each other down.
    """

    name: str
    gpus: int
    partitions: tuple[tuple[int, ...], ...]
    cells: Mapping[int, Mapping[int, Cell]]
    memory_gib: float
    part_memory_gib: Mapping[int, float]
    process_gib: float
    inflation: float
    interference: bool
    price: float = 1.0
    slices: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The problem.

    Attributes:
        limit_us: [model] SLO less margin.
        static_gib, dynamic_gib: [model] weights; workspace.
        most_models: that may take turns on one part.
    """

    models: tuple[str, ...]
    classes: tuple[ClassTable, ...]
    limit_us: Floats
    static_gib: Floats
    dynamic_gib: Floats
    most_models: int

    @property
    def gpus(self) -> Ints:
        """[class] GPUs there are."""
        return np.array([c.gpus for c in self.classes], dtype=np.int64)

    @property
    def prices(self) -> Floats:
        """[class] what a GPU counts in an objective that is minimised."""
        return np.array([c.price for c in self.classes])


def read_tables(inputs: Inputs, *, reachable: bool = True) -> Tables:
    """The problem of a planner of this family; `reachable` asks that every model can take turns.

    Raises:
        InputError: a model has no profile or is measured nowhere, or a price is missing.
        InfeasibleError: a model misses its SLO wherever it may run.
    """
    demands = inputs.workload.models
    profiles = [profile_of(inputs.profiles, demand.name) for demand in demands]
    static_bytes, dynamic_bytes = model_bytes(profiles)
    tables = Tables(
        models=tuple(demand.name for demand in demands),
        classes=tuple(
            _class_table(inputs, profiles, gpu_class) for gpu_class in inputs.cluster.gpu_classes
        ),
        limit_us=limits_us(demands, inputs.options),
        static_gib=static_bytes / BYTES_PER_GIB,
        dynamic_gib=dynamic_bytes / BYTES_PER_GIB,
        most_models=inputs.options.own["max_models_per_vgpu"],
    )
    if reachable:
        _check_reachable(inputs, profiles, tables)
    return tables


def _class_table(inputs: Inputs, profiles: list[ModelProfile], gpu_class: GpuClass) -> ClassTable:
    model, options = None, inputs.options
    if options.own.get("interference") == "planned" and gpu_class.mig is None:
        model = inputs.interference.get(gpu_class.name)
    parts = partitions_of(gpu_class)
    shares = sorted({share for partition in parts for share in partition})
    if gpu_class.mig is not None:
        shares = sorted(gpu_class.shares)
    cells = {
        share: {
            number: cell
            for number, profile in enumerate(profiles)
            if options.class_allowed(profile.name, gpu_class.name)
            and (cell := _cell(profile, gpu_class.name, share, model)) is not None
        }
        for share in shares
    }
    return ClassTable(
        name=gpu_class.name,
        gpus=inputs.cluster.gpus(gpu_class.name),
        partitions=parts,
        cells=cells,
        memory_gib=gpu_gib(gpu_class),
        part_memory_gib={share: part_gib(gpu_class, share) for share in shares},
        process_gib=gpu_class.process_memory_gib or 0.0,
        inflation=1.0 if model is None else model.inflation(options.own["interference_quantile"]),
        interference=model is not None,
        price=gpu_price(gpu_class, options.objective),
        slices=gpu_class.mig is not None,
    )


def partitions_of(gpu_class: GpuClass) -> tuple[tuple[int, ...], ...]:
    """Every multiset of shares, rising, that the parts in use of one GPU may have.

    Of MIG: every division into slices to which none can be added, with one process in each.
    """
    if gpu_class.mig is not None:
        return tuple(
            tuple(mig_share(MigCell(compute, 1)) for compute in cut) for cut in gpu_class.mig.cuts
        )
    if gpu_class.partitions:
        listed = {
            tuple(sorted(part * PER_PERCENT for part in kept))
            for cut in gpu_class.partitions
            for count in range(1, len(cut) + 1)
            for kept in combinations(cut, count)
        }
        return tuple(sorted(listed))
    shares = sorted(set(gpu_class.shares))
    found = [
        cut
        for count in range(1, gpu_class.most_vgpus + 1)
        for cut in combinations_with_replacement(shares, count)
        if sum(cut) <= WHOLE_GPU
    ]
    return tuple(found)


def _cell(
    profile: ModelProfile, gpu_class: str, share: int, model: InterferenceModel | None
) -> Cell | None:
    table = profile.table(gpu_class, share, SOLO)
    if table is None:
        return None
    latency = table.stage_latency_us((0, profile.blocks))
    susceptibility = pressure = np.zeros(len(latency))
    if model is not None:
        used = utilisation(profile, gpu_class, share)
        susceptibility, pressure = model.susceptibility(*used), model.pressure(*used)
    return Cell(
        batches=np.arange(1, len(latency) + 1, dtype=np.int64),
        latency_us=latency,
        turn_us=np.maximum.accumulate(latency),
        susceptibility=susceptibility,
        pressure=pressure,
    )


def utilisation(profile: ModelProfile, gpu_class: str, share: int) -> tuple[Floats, Floats]:
    """The use that a model makes of a part, [batch] each, as interference models ask.

    Raises:
        InputError: it was not measured.
    """
    used = profile.utilisation(gpu_class, share)
    if used is None:
        where = f"profile of {profile.name!r} on {share_text(share)} of {gpu_class}"
        reason = "has no utilisation, which interference needs (or plan without)"
        raise InputError(where, reason)
    return used


def _check_reachable(inputs: Inputs, profiles: Sequence[ModelProfile], tables: Tables) -> None:
    """Every model can take turns with itself somewhere: twice its least turn fits its limit."""
    for number, (name, profile) in enumerate(zip(tables.models, profiles, strict=True)):
        least = [
            int(cell.turn_us[0])
            for table in tables.classes
            for cells in table.cells.values()
            if (cell := cells.get(number)) is not None and table.gpus
        ]
        where = f"workload model {name!r}"
        if not least:
            reason = "not measured on any part of a GPU that it may use"
            raise without_gpus(inputs, profile) or InputError(where, reason)
        limit = float(tables.limit_us[number])
        if 2 * min(least) > limit:
            reason = (
                "waiting for its turn and the turn take at least "
                f"{us_to_ms(2 * min(least)):.3f} ms "
                f"where SLO less margin allow {us_to_ms(limit):.3f} ms"
            )
            raise InfeasibleError(where, reason)
