"""Pools of a plan: vGPUs of one class and size, their places, and their neighbours' effect."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import (
    LONGEST_NAME,
    About,
    FieldForm,
    Fields,
    Form,
    check_form,
    check_name,
    form_to_dict,
    read_form,
)
from triton_backend.contract.shares import (
    MAX_PERCENT,
    check_share,
    divisor_of,
    read_share,
    share_to_dict,
)

EXPAND_UP_TO = 512  # vGPUs of one pool listed one by one in a file; above, as ranges
_SHARES = (
    FieldForm("vgpu_divisor", "integer", "Each vGPU is 1/n of a GPU.", 2, required=False),
    FieldForm(
        "vgpu_percent", "integer", "Each vGPU is this percentage of a GPU.", 40, required=False
    ),
    FieldForm(
        "vgpu_mig", "text", "Each vGPU is this MIG slice, or part of one.", "1g/2", required=False
    ),
)


class Slot(NamedTuple):
    """One vGPU: slot `slot` (0 .. divisor - 1) of GPU `gpu` of node number `node`."""

    node: int
    gpu: int
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRun:
    """A block of vGPUs: every (node, gpu, slot) of three ranges, in lexicographic order."""

    node: int
    gpu: int
    slot: int
    nodes: int = 1
    gpus: int = 1
    slots: int = 1

    @property
    def vgpus(self) -> int:
        """Number of vGPUs in the block."""
        return self.nodes * self.gpus * self.slots

    def expand(self) -> Iterator[Slot]:
        """The vGPUs one by one."""
        for node in range(self.node, self.node + self.nodes):
            for gpu in range(self.gpu, self.gpu + self.gpus):
                for slot in range(self.slot, self.slot + self.slots):
                    yield Slot(node, gpu, slot)


def placement_to_dicts(runs: tuple[PlacementRun, ...], cluster: Cluster) -> list[dict[str, Any]]:
    """One entry per vGPU; where there are many, one per run with the counts `nodes/gpus/slots`."""
    if sum(run.vgpus for run in runs) <= EXPAND_UP_TO:
        return [
            {"node": cluster.node_name(slot.node), "gpu": slot.gpu, "slot": slot.slot}
            for run in runs
            for slot in run.expand()
        ]
    return [
        {
            "node": cluster.node_name(run.node),
            "gpu": run.gpu,
            "slot": run.slot,
            "nodes": run.nodes,
            "gpus": run.gpus,
            "slots": run.slots,
        }
        for run in runs
    ]


def read_run(fields: Fields, cluster: Cluster) -> PlacementRun:
    """Inverse of one entry of `placement_to_dicts`.

    Raises:
        InputError: a field cannot be used, or it lies outside the cluster.
    """
    node = cluster.node_index(fields.text("node"))
    counts = {n: fields.integer(n, least=1) for n in ("nodes", "gpus", "slots") if fields.has(n)}
    run = PlacementRun(node=node, gpu=fields.integer("gpu"), slot=fields.integer("slot"), **counts)
    if run.node + run.nodes > cluster.node_count:
        raise fields.wrong("nodes", f"{run.nodes} from node {node} on, of {cluster.node_count}")
    most = max(group.gpus for group in cluster.nodes)
    if run.gpu + run.gpus > most:
        raise fields.wrong("gpu", f"GPU {run.gpu + run.gpus - 1} on a node of at most {most}")
    if run.slot + run.slots > MAX_PERCENT:
        raise fields.wrong("slot", f"slot {run.slot + run.slots - 1} of at most {MAX_PERCENT}")
    return run


def slot_table(runs: Sequence[PlacementRun]) -> NDArray[np.int64]:
    """Node, GPU and slot of every vGPU, in placement order: an array [vGPUs, 3]."""
    blocks = [
        np.stack(
            np.meshgrid(
                np.arange(run.node, run.node + run.nodes),
                np.arange(run.gpu, run.gpu + run.gpus),
                np.arange(run.slot, run.slot + run.slots),
                indexing="ij",
            ),
            axis=-1,
        ).reshape(-1, 3)
        for run in runs
    ]
    return np.concatenate(blocks) if blocks else np.zeros((0, 3), dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class VGpu:
    """One vGPU of a plan: its number, the number of its pool, and where it sits."""

    index: int
    pool: int
    slot: Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatInterference(Form):
    """One stage on a vGPU: what it suffers, presses, and the factor its latencies contain."""

    susceptibility: Annotated[float, About("Slow-down of the stage per unit of pressure.", 0.4)]
    pressure: Annotated[float, About("Pressure that the stage exerts.", 0.3, least=0)]
    factor: Annotated[float, About("Factor that its latencies contain.", 1.1, least=1)]

    def __post_init__(self) -> None:
        if not (self.pressure >= 0 and self.factor >= 1):
            reason = f"pressure {self.pressure} or factor {self.factor} is too small"
            raise InputError("interference, seats", reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolInterference(Form):
    """Pressure and sensitivity of a pool's vGPUs."""

    pressure: Annotated[
        float, About("Pressure on other vGPUs of the GPU: the largest of its stages.", 0.3, least=0)
    ]
    felt: Annotated[float, About("Sum of the pressures of the other vGPUs.", 0.25, least=0)]
    inflation: Annotated[
        float, About("Reserve factor for what the model does not see.", 1.05, least=1)
    ]
    seats: Annotated[
        tuple[SeatInterference, ...],
        About("One per stage on the pool, in the order of rows.", [], kind="seat[]"),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """vGPUs of one class and one share, in 300ths of a GPU (`shares`), that hold the same stages.

    It starts anywhere where any tail of its model may run at once (clients that just moved their
    cut).
    """

    name: Annotated[str, About("Name of the pool.", "l4-0")]
    gpu_class: Annotated[str, About("Its GPU class.", "L4")]
    share: Annotated[
        int, About("Part of a GPU.", 2, read=read_share, write=share_to_dict, parts=_SHARES)
    ]
    vgpus: Annotated[int, About("Number of vGPUs.", 4, least=1)]
    placement: Annotated[
        tuple[PlacementRun, ...],
        About("Where the vGPUs are, in order.", [], kind="placement[]"),
    ]
    starts_anywhere: Annotated[
        bool, About("Any tail of its model may start here at once.", example=True)
    ] = False
    interference: Annotated[
        PoolInterference | None,
        About("Slow-down by neighbours on the GPU.", {"felt": 0.1}, kind="interference"),
    ] = None

    def __post_init__(self) -> None:
        check_name("pools.name", self.name)
        where = f"pool {self.name!r}"
        check_share(where, self.share)
        check_form(where, self)
        placed = sum(run.vgpus for run in self.placement)
        if placed != self.vgpus:
            raise InputError(f"{where}, placement", f"{self.vgpus} vGPUs but {placed} placed")

    @property
    def divisor(self) -> int | None:
        """v where its vGPUs are 1/v of a GPU, else None."""
        return divisor_of(self.share)

    def slots(self) -> tuple[Slot, ...]:
        """Every vGPU of the pool, in placement order (the order of ties)."""
        return tuple(slot for run in self.placement for slot in run.expand())

    def to_dict(self, cluster: Cluster) -> dict[str, Any]:
        """Plain form, as in `plan.json`."""
        return form_to_dict(self, placement=placement_to_dicts(self.placement, cluster))

    @classmethod
    def read(cls, fields: Fields, cluster: Cluster) -> Self:
        """Inverse of `to_dict`."""
        placement = tuple(read_run(run, cluster) for run in fields.items("placement"))
        return cls(**read_form(cls, fields, placement=placement))


def next_pool_name(gpu_class: str, counts: dict[str, int]) -> str:
    """The class in lower case and a number from 0; `counts` remembers how many have been named."""
    stem = gpu_class.lower()[: LONGEST_NAME - len("-10000000")]
    number = counts.get(stem, 0)
    counts[stem] = number + 1
    return f"{stem}-{number}"
