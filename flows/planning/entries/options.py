"""Options of a range of blocks: a share of a GPU of a class and a batch, at a price.

    alignment stage             shared stage ("root")
    [start, junction)     ->    [junction, blocks)

Here: options, and arrays of those of all ranges. Not here: how they are found (`tables`).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.tolerances import ROUNDING
from triton_backend.contract.profiles import ProfileTable

ANY_NUMBER = 1 << 30  # of vGPUs
Range = tuple[int, int, float]
"""The first block, the one after the last, and the rate of the NIC that receives (Gbit/s)."""
Stage = tuple[int, int, float, int]
"""A range and the batch of the stage that receives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A share of a GPU of a class, with the model's latencies on it.

    Attributes:
        price: of one vGPU in the objective.
        link_rps: [blocks + 1] samples/s that its part of the NIC carries over the boundary before
            block i; infinite at both ends, and for percents, where the sum over a node counts.
        room_gib: for the stages of one vGPU beside its process; infinite where not stated.
        table: of the model on that share.
    """

    gpu_class: str
    share: int
    price: float
    nic_gbps: float
    link_rps: tuple[float, ...]
    room_gib: float
    table: ProfileTable


class Kind(NamedTuple):
    """A shared stage, as its senders know it: the NIC's rate, one vGPU's part of it, the batch."""

    nic_gbps: float
    link_rps: tuple[float, ...]
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Places to run a range of blocks, by rising time, then price, then work.

    Attributes:
        time_us: [n] of a batch, with its move.
        price: [n] of one vGPU.
        work: [n] vGPUs per sample/s.
        size, batch: [n] which.
    """

    time_us: Floats
    price: Floats
    work: Floats
    size: Ints
    batch: Ints

    def __len__(self) -> int:
        return len(self.time_us)

    def cost(self, rate_rps: float | Floats, most: int = ANY_NUMBER) -> Floats:
        """[n] what it costs to carry a rate; infinite with more than `most` vGPUs."""
        vgpus = vgpus_for(rate_rps, self.work)
        return np.where(vgpus > most, np.inf, self.price * vgpus)


NO_OPTIONS = Options(
    time_us=np.zeros(0),
    price=np.zeros(0),
    work=np.zeros(0),
    size=np.zeros(0, dtype=np.int64),
    batch=np.zeros(0, dtype=np.int64),
)


def vgpus_for(rate_rps: float | Floats, work: Floats) -> Floats:
    """Whole vGPUs that carry a rate, at least one."""
    return np.maximum(1.0, np.ceil(rate_rps * work * (1 - ROUNDING)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Options of every range that entries can use: of shared stages ("roots"), then before them.

    R roots by junction and rising time; M options of alignment stages, one range after the other.

    Attributes:
        root_start: [blocks + 1] the first root of each junction.
        root_junction, root_time, root_work, root_kind, root_size: [R].
        options_from: [blocks, blocks, kinds, 2] the options from a start to a junction and kind.
        time, work, size: [M].
    """

    root_start: Ints
    root_junction: Ints
    root_time: Floats
    root_work: Floats
    root_kind: Ints
    root_size: Ints
    options_from: Ints
    time: Floats
    work: Floats
    size: Ints


@dataclass(slots=True)
class Found:
    """Options that were found; of each, its price is that of the table that found it."""

    options: dict[Stage, Options] = field(default_factory=dict[Stage, Options])
    rows: dict[Range, Floats] = field(default_factory=dict[Range, Floats])
    layouts: dict[tuple[int, ...], Layout] = field(default_factory=dict[tuple[int, ...], Layout])
