"""Slots of shared memory of workers, granted to batches."""

from collections.abc import Sequence

from triton_backend.contract.decisions import Hop
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.shared_memory import SlotPool


class WorkerSlots:
    """Which slots of the workers of one generation are granted to batches.

    Lives of the scheduler have numbers that are even and odd in turn, and so have the slots that
    they grant: batches of the life before still use the others.

    Args:
        life: of this scheduler.
        free_us: until then batches of the life before the last may still use what this one grants.
    """

    def __init__(self, deployment: Deployment, life: int, free_us: int) -> None:
        self.life = life
        sets = deployment.slot_sets
        self._pools = [
            SlotPool(
                range(life % sets, deployment.segment_slots(v.index), sets),
                most=deployment.worker_slots(v.index),
            )
            for v in deployment.vgpus
        ]
        self._free_us = free_us
        self._held_back: list[tuple[int, int]] = []  # (vGPU, slot)s, until then
        if free_us and sets > 1:
            self._held_back = [
                (v.index, s) for v in deployment.vgpus for s in self.of(v.index).take_all()
            ]

    def grant(self, hops: Sequence[Hop]) -> list[int] | None:
        """A slot of every vGPU of a path, or None where one has none free."""
        slots: list[int] = []
        for hop in hops:
            slot = self._pools[hop.vgpu].take()
            if slot is None:
                self.give_all(hops, slots)
                return None
            slots.append(slot)
        return slots

    def give_all(self, hops: Sequence[Hop], slots: Sequence[int]) -> None:
        """Slots granted to the first hops of a path are free again."""
        for hop, slot in zip(hops, slots, strict=False):
            self._pools[hop.vgpu].give(slot)

    def share(self, former: "WorkerSlots", inherited: Sequence[tuple[int, int]]) -> None:
        """Workers that go on have one set of slots in both generations."""
        for before, after in inherited:
            self._pools[after] = former.of(before)

    def of(self, vgpu: int) -> SlotPool:
        """The slots of one worker."""
        return self._pools[vgpu]

    def give(self, vgpu: int, slot: int) -> None:
        """A slot is free again."""
        self._pools[vgpu].give(slot)

    @property
    def holds_back(self) -> bool:
        """True if any will be freed by `release`, later."""
        return bool(self._held_back)

    def release(self, now_us: int) -> bool:
        """Free what batches of the life before the last have used long enough.

        Whether there was any.
        """
        if not self._held_back or now_us < self._free_us:
            return False
        for vgpu, slot in self._held_back:
            self.give(vgpu, slot)
        self._held_back = []
        return True
