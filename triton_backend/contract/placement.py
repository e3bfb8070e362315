"""Where the vGPUs of a stage sit: single slots, and runs of them in plain form.

Here: vGPUs by node, GPU and slot. Not here: who sits where (`flows/planning/place`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.cluster import Cluster
from triton_backend.contract.fields import Fields
from triton_backend.contract.shares import MAX_PERCENT

EXPAND_UP_TO = 512  # vGPUs of one stage listed one by one in a file; above, as ranges


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
    counts = {n: fields.whole(n, least=1) for n in ("nodes", "gpus", "slots") if fields.has(n)}
    run = PlacementRun(node=node, gpu=fields.whole("gpu"), slot=fields.whole("slot"), **counts)
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
