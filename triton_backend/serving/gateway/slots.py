"""Which slots of the workers of one generation are granted to batches.

A slot granted to an aborted batch may still be written by its sender, so it is held back for a
while before it is granted again.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from triton_backend.contract.decisions import Hop
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.shared_memory import SlotPool


class _HeldBack(NamedTuple):
    until_us: int
    slots: Sequence[tuple[int, int]]


class WorkerSlots:
    """The slots of every worker of a generation."""

    def __init__(self, deployment: Deployment) -> None:
        self._pools = [SlotPool(deployment.worker_slots(v.index)) for v in deployment.vgpus]
        self._held_back: deque[_HeldBack] = deque()

    def grant(self, hops: Sequence[Hop], now_us: int) -> list[int] | None:
        """A slot of every vGPU of a path, or None where one has none free."""
        if self._held_back:
            self._release(now_us)
        slots: list[int] = []
        for hop in hops:
            slot = self._pools[hop.vgpu].take()
            if slot is None:
                for taken, other in zip(hops, slots, strict=False):
                    self._pools[taken.vgpu].give(other)
                return None
            slots.append(slot)
        return slots

    def give(self, vgpu: int, slot: int) -> None:
        """A slot is free again."""
        self._pools[vgpu].give(slot)

    def hold_back(self, slots: Sequence[tuple[int, int]], until_us: int) -> None:
        """(vGPU, slot)s that are free from `until_us` on."""
        self._held_back.append(_HeldBack(until_us, slots))

    def _release(self, now_us: int) -> None:
        """Free what has been held back long enough."""
        while self._held_back and self._held_back[0].until_us <= now_us:
            for vgpu, slot in self._held_back.popleft().slots:
                self.give(vgpu, slot)
