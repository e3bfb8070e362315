"""Runs side by side on one GPU, from what the gateway logs.

Which batch ran beside which, and for how long. Only GPUs of classes cut into percents that hold two
vGPUs, and whole models. A run counts beside another where its neighbour was busy nearly all of its
time with batches of one model and size. It is judged when the neighbour's run that spans its end
has ended, because only then all of the neighbour's time is known.

Here: which runs lie beside which. Not here: counting them (`minute_stats`).
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from triton_backend.contract.plan import Plan

BUSY = 0.9  # of a run's time its neighbour ran at least
MOST_HELD = 64  # runs of one vGPU: one that ran before so many others overlaps nothing to come


class Run(NamedTuple):
    """A batch of a whole model on a vGPU, in µs of the host's clock."""

    vgpu: int
    model: str
    samples: int
    start_us: int
    end_us: int


@dataclass(slots=True)
class Neighbours:
    """Runs that may still turn out to lie beside others.

    Attributes:
        beside: by vGPU, the only other one of its GPU.
        whole: models whose requests all enter at the first block.
        runs: by vGPU, the newest last.
    """

    beside: Mapping[int, int] = field(default_factory=dict[int, int])
    whole: frozenset[str] = frozenset()
    runs: dict[int, deque[Run]] = field(default_factory=dict[int, deque[Run]])

    def use(self, plan: Plan | None) -> None:
        """From here on under this plan; runs under another one have other vGPUs."""
        self.runs.clear()
        self.beside, self.whole = {}, frozenset()
        if plan is None:
            return
        by_gpu: dict[tuple[int, int], list[int]] = {}
        for vgpu in plan.vgpus():
            gpu_class = plan.cluster.gpu_class(plan.pools[vgpu.pool].gpu_class)
            if gpu_class.vgpu_percents:
                by_gpu.setdefault((vgpu.slot.node, vgpu.slot.gpu), []).append(vgpu.index)
        two = [held for held in by_gpu.values() if len(held) == 2]  # noqa: PLR2004
        self.beside = {one: other for pair in two for one, other in (pair, pair[::-1])}
        self.whole = frozenset(model.name for model in plan.models if not model.entries)

    def ended(self, run: Run) -> Iterable[tuple[Run, Run]]:
        """Runs that are now known to lie beside another: (run, one that ran beside it)."""
        other = self.beside.get(run.vgpu)
        if other is None or run.model not in self.whole:
            return
        mine = self.runs.setdefault(run.vgpu, deque(maxlen=MOST_HELD))
        mine.append(run)
        for judged in self.runs.get(other, ()):
            if run.start_us < judged.end_us <= run.end_us and _beside(judged, mine):
                yield judged, run


def _beside(run: Run, neighbours: Iterable[Run]) -> bool:
    """True if batches of one kind kept a vGPU busy during a run on another."""
    busy_us, kinds = 0, set[tuple[str, int]]()
    for near in neighbours:
        both_us = min(run.end_us, near.end_us) - max(run.start_us, near.start_us)
        if both_us > 0:
            busy_us += both_us
            kinds.add((near.model, near.samples))
    return len(kinds) == 1 and busy_us >= BUSY * (run.end_us - run.start_us)
