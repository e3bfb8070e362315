"""Models of every class divided into sub-clusters: how many, on how many GPUs each.

The first division that fits is taken, from the least sub-clusters and GPUs on.
"""

from dataclasses import dataclass, replace

import numpy as np

from flows.planning.registry import PlanOptions
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.tolerances import ROUNDING
from flows.planning.subclusters.classes import ToClass
from flows.planning.subclusters.demands import Demands
from flows.planning.subclusters.free import carried, needed
from flows.planning.subclusters.partition import (
    ClusterPartition,
    PartitionProblem,
    divide,
    sums,
)
from flows.planning.subclusters.reach import out_of_reach
from triton_backend.contract.errors import InputError

AUTO = "auto"
TRIES = 8  # more sub-clusters, or GPUs, than the least that may do; scales below a bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Subcluster:
    """One sub-cluster: models by number, GPUs of a class, the pool whose place it takes."""

    kind: int
    models: Ints
    gpus: int
    continues: str | None = None


def wanted_of(options: PlanOptions, models: int) -> int | None:
    """Sub-clusters asked for; None where they are chosen here.

    Raises:
        InputError: the option is no number, or there are not so many models.
    """
    text: str = options.own["subclusters"]
    if text == AUTO:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InputError("option subclusters", f"{text!r} is neither a positive number nor {AUTO}")
    if int(text) > models:
        reason = f"{text} sub-clusters for {models} models: each holds one at least"
        raise InputError("option subclusters", reason)
    return int(text)


def to_class(asked: Demands, load: Floats) -> ToClass:
    """The choice of a class for the models of every name, whose loads are [m, k] GPUs."""
    kinds = np.array([kind for _, kind in asked.pools] or [-1], dtype=np.int64)
    _, first = np.unique(asked.joint, return_index=True)
    before = asked.before[first]
    return ToClass(
        load=np.column_stack([sums(asked.joint, each) for each in load.T]),
        static_bytes=sums(asked.joint, asked.static_bytes),
        room_bytes=asked.room_bytes,
        gpus=asked.problem.gpus,
        price=asked.price,
        utilisation=asked.utilisation,
        before=np.where(before >= 0, kinds[before], -1),
        inputs=asked.inputs,
    )


def divided(
    asked: Demands,
    classes: Ints,
    load: Floats,
    wanted: int | None,
    memory_weight: float | None = None,
) -> tuple[list[Subcluster], list[ClusterPartition]] | None:
    """Sub-clusters of every class that was chosen; None where one is not divided.

    With a weight of memory on all GPUs, as even as can be, whether or not the load fits.

    Raises:
        InputError: as many sub-clusters as asked for cannot hold the models.
        InfeasibleError: the GPUs are too few for the load.
    """
    kinds = classes[asked.joint]
    found: list[Subcluster] = []
    parted: list[ClusterPartition] = []
    for kind, count in _counts(asked, kinds, load, wanted).items():
        models = np.flatnonzero(kinds == kind)
        whole = _to_part(asked, models, kind, load[models, kind])
        need = float(needed(load[models, kind].sum(), asked.utilisation))
        gpus = max(1, int(np.ceil(need - ROUNDING)))
        if memory_weight is not None:
            whole = replace(whole, utilisation=np.inf, memory_weight=memory_weight)
            gpus = whole.gpus
        part = _parted(asked, whole, (count, gpus), fixed=wanted is not None)
        if part is None and memory_weight is None and need > whole.gpus - count:
            raise out_of_reach(asked, f" in {count} sub-clusters")
        if part is None:
            return None
        found += _named(asked, kind, models, part)
        parted.append(part)
    return found, parted


def _counts(asked: Demands, chosen: Ints, load: Floats, wanted: int | None) -> dict[int, int]:
    """Sub-clusters of every class in use: the least that may hold the models, or as asked for.

    Raises:
        InputError: fewer are asked for than classes and memory need, or more than can be.
    """
    used = np.unique(chosen).tolist()
    least: dict[int, int] = {}
    work: dict[int, float] = {}
    for kind in used:
        models = chosen == kind
        room = float(asked.room_bytes[kind])
        held = float(asked.static_bytes[models].sum())
        least[kind] = max(1, int(np.ceil(held / room))) if np.isfinite(room) and held else 1
        work[kind] = float(load[models, kind].sum())
    if wanted is None:
        return least
    if wanted < sum(least.values()):
        names = ", ".join(f"{count} on {asked.problem.classes[k]}" for k, count in least.items())
        reason = f"{wanted} cannot hold the models, which need {names}"
        raise InputError("option subclusters", reason)
    counts = dict(least)
    for _ in range(wanted - sum(least.values())):
        names = {k: len(np.unique(asked.joint[chosen == k])) for k in used}
        most = {k: min(names[k], int(asked.problem.gpus[k])) for k in used}
        room_left = [k for k in used if counts[k] < most[k]]
        if not room_left:
            reason = f"{wanted} are more than there are models, or GPUs of their classes"
            raise InputError("option subclusters", reason)
        counts[max(room_left, key=lambda k: work[k] / counts[k])] += 1
    return counts


def _to_part(asked: Demands, models: Ints, kind: int, load: Floats) -> PartitionProblem:
    """The division on one class; `_parted` fills in parts, GPUs and labels."""
    mine = [number for number, (_, at) in enumerate(asked.pools) if at == kind]
    label = {number: place for place, number in enumerate(mine)}
    _, first, joint = np.unique(asked.joint[models], return_index=True, return_inverse=True)
    before = [label.get(int(number), -1) for number in asked.before[models][first]]
    largest = np.zeros(len(first))
    np.maximum.at(largest, joint, asked.dynamic_bytes[models])
    return PartitionProblem(
        load=sums(joint, load),
        static_bytes=sums(joint, asked.static_bytes[models]),
        dynamic_bytes=largest,
        room_bytes=float(asked.room_bytes[kind]),
        parts=1,
        gpus=int(asked.problem.gpus[kind]),
        utilisation=asked.utilisation,
        before=np.array(before, dtype=np.int64),
    )


def _parted(
    asked: Demands, whole: PartitionProblem, least: tuple[int, int], *, fixed: bool
) -> ClusterPartition | None:
    """The first division that fits, from the least sub-clusters and GPUs on.

    Even ones may take a GPU more for each part; sizes are free where none of them fits.
    """
    parts, gpus = least
    most = parts if fixed else min(len(whole.load), whole.gpus, parts + TRIES)
    for count in range(parts, most + 1):
        before = np.where(whole.before < count, whole.before, -1)  # those that hold most bytes
        numbers = range(max(gpus, count), min(whole.gpus, max(gpus, count) + TRIES) + 1)
        tried = [(True, number) for number in numbers[: count + 1]]
        tried += [(False, number) for number in numbers if count > 1]
        for even, number in tried:
            to_part = replace(whole, parts=count, gpus=number, before=before, even=even)
            if even and count > 1 and whole.load.max() > _share(to_part):
                continue
            options, watch = asked.inputs.options, asked.inputs.watch
            part = divide(to_part, watch, options.solver, options.gap)
            if part is not None:
                return part
    return None


def _share(to_part: PartitionProblem) -> float:
    """Load that the largest of equal parts may have."""
    if np.isfinite(to_part.utilisation):
        return float(carried(to_part.most, to_part.utilisation))
    return float(to_part.load.sum()) / to_part.parts


def _named(asked: Demands, kind: int, models: Ints, part: ClusterPartition) -> list[Subcluster]:
    """Parts as sub-clusters; each goes on with the pool of its label."""
    mine = [name for name, at in asked.pools if at == kind]
    _, joint = np.unique(asked.joint[models], return_inverse=True)
    return [
        Subcluster(
            kind=kind,
            models=models[part.part[joint] == number],
            gpus=int(gpus),
            continues=mine[number] if number < len(mine) else None,
        )
        for number, gpus in enumerate(part.gpus)
    ]
