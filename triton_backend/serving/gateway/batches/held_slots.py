"""Slots of batches that were aborted: held until no process can write there any more.

    granted --> aborted --> held --> free    every process that may write there has let go of it
                             |
                             +-----> free    one has not, but has run it by now, or is dead

A slot of a worker may be written by the process before it on the batch's path (the front or a
worker, in shared memory) and by the worker itself (from TCP, and what its batches begin with).
ABORT has them forget the batch; LET_GO says that they have, that they write nothing of it, and that
they refuse it when it still comes. One that has lost its connection hears ABORT again with its next
HELLO.

Here: which slots, and what they wait for. Not here: frames (`dispatched`),
connections (`service`).
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class HeldSlot(NamedTuple):
    """A slot: the processes that may write into it, and how it becomes free."""

    writers: frozenset[Hashable]
    free: Callable[[], None]


@dataclass(slots=True)
class _Aborted:
    """A batch: generation, ABORT, processes yet to let go, held slots, and until when at most."""

    generation: int
    notice: bytes
    silent: set[Hashable]
    slots: list[HeldSlot]
    until_us: int


class HeldSlots:
    """The slots held, of all generations, by the number of their batch."""

    def __init__(self) -> None:
        self._batches: dict[int, _Aborted] = {}

    def hold(
        self, number: int, generation: int, notice: bytes, slots: Sequence[HeldSlot], until_us: int
    ) -> None:
        """Hold the slots of a batch that was aborted.

        Args:
            number: of the batch.
            generation: whose slots these are.
            notice: ABORT, for processes that connect again.
            slots: of all its stages that are left.
            until_us: when every process that was silent until then has run the batch, or is dead.
        """
        silent = set[Hashable]().union(*(slot.writers for slot in slots))
        self._batches[number] = _Aborted(generation, notice, silent, list(slots), until_us)

    def let_go(self, number: int, names: Iterable[Hashable]) -> bool:
        """Note that a process, by its names, has forgotten a batch.

        True where that freed a slot.
        """
        batch = self._batches.get(number)
        if batch is None:
            return False
        batch.silent.difference_update(names)
        kept: list[HeldSlot] = []
        for slot in batch.slots:
            if slot.writers & batch.silent:
                kept.append(slot)
            else:
                slot.free()
        freed = len(kept) < len(batch.slots)
        batch.slots = kept
        if not kept:
            del self._batches[number]
        return freed

    def notices(self, name: Hashable) -> list[bytes]:
        """ABORT of every batch that a process has yet to let go of."""
        return [batch.notice for batch in self._batches.values() if name in batch.silent]

    def generations(self) -> set[int]:
        """Those of whose slots some are held."""
        return {batch.generation for batch in self._batches.values()}

    def release(self, now_us: int) -> bool:
        """Free what has been held long enough; True where there was any."""
        over = [number for number, one in self._batches.items() if one.until_us <= now_us]
        for number in over:
            for slot in self._batches.pop(number).slots:
                slot.free()
        return bool(over)
