"""Slots of shared memory: where a process receives tensors, written in place by the sender.

A *segment* is a file in /dev/shm with `slots` equal slots; a *layout* says where each tensor of a
batch of up to `batch` samples lies inside a slot. Batches of several stages lie in the slots of one
segment, each by its own layout. The receiver owns (makes, removes) its segment; senders map it.
Pages are taken when first written, so unused slots cost nothing, and `SlotPool` hands out the slot
freed last, so that few are ever touched; those of the first slots may be taken before
(`Segment.take_pages`).
"""

import contextlib
import ctypes
import math
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError, InvariantError
from triton_backend.runtimes.base import NUMPY_DTYPES
from triton_backend.serving.layout import SlotLayout

SHARED_FOLDER = Path("/dev/shm")  # noqa: S108  # Linux's shared memory, not a temporary file
# Taken of a segment before it is used, and the share of the shared memory left that one may take.
MOST_TAKEN_BYTES = 1 << 25
MOST_TAKEN_SHARE = 4
_MADV_POPULATE_WRITE = 23

Arrays = dict[str, NDArray[np.generic]]


class Segment:
    """A mapped segment; `create` for the owner, `attach` for senders on its host."""

    def __init__(
        self, path: Path | None, layout: SlotLayout, slots: int, memory: mmap.mmap
    ) -> None:
        self.path = path
        self.layout = layout
        self.slots = slots
        self._memory = memory
        self._offsets = layout.offsets
        self._slot_bytes = layout.slot_bytes
        # Made once per slot and number of samples: every batch asks for its own several times.
        self._views: dict[tuple[int, int], Arrays] = {}
        self._pieces: dict[tuple[int, int], list[memoryview]] = {}
        self._others: dict[int, tuple[SlotLayout, Segment]] = {}  # by the layout's identity

    def laid_out(self, layout: SlotLayout) -> "Segment":
        """The same slots, in which batches lie by another layout; unmapped together with this.

        Raises:
            InvariantError: the layout is of slots of another size.
        """
        if layout is self.layout:
            return self
        known = self._others.get(id(layout))
        if known is None:
            if layout.slot_bytes != self._slot_bytes:
                raise InvariantError(f"slots of {self._slot_bytes} bytes, not {layout.slot_bytes}")
            # The layout is kept with it, so that its identity stays its own.
            known = layout, Segment(self.path, layout, self.slots, self._memory)
            self._others[id(layout)] = known
        return known[1]

    def forget(self, layout: SlotLayout) -> None:
        """No batch lies by this layout any more."""
        known = self._others.pop(id(layout), None)
        if known is not None:
            known[1].forget_views()

    @classmethod
    def create(cls, name: str, layout: SlotLayout, slots: int) -> Self:
        """Make the segment, replacing a left-over of the same name.

        Raises:
            InputError: shared memory has no room for two slots.
        """
        path = SHARED_FOLDER / name
        room = os.statvfs(SHARED_FOLDER)
        free = room.f_bavail * room.f_frsize
        if free < 2 * layout.slot_bytes:
            raise InputError(
                str(SHARED_FOLDER), f"{free} bytes free; two slots of {layout.slot_bytes} needed"
            )
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, layout.slot_bytes * slots)
            memory = mmap.mmap(fd, layout.slot_bytes * slots)
        finally:
            os.close(fd)
        return cls(path, layout, slots, memory)

    @classmethod
    def kept(cls, name: str, layout: SlotLayout, slots: int) -> Self:
        """The segment as an earlier process left it, where it is of this size; else made.

        Raises:
            InputError: shared memory has no room for two slots.
        """
        with contextlib.suppress(InputError):
            left = cls.attach(name, layout)
            if left.slots == slots:
                return left
            left.close()
        return cls.create(name, layout, slots)

    @classmethod
    def attach(cls, name: str, layout: SlotLayout) -> Self:
        """Map a segment another process made.

        Raises:
            InputError: it is not there, or its size is not a whole number of slots.
        """
        path = SHARED_FOLDER / name
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(str(path), f"cannot be mapped: {error}") from error
        try:
            size = os.fstat(fd).st_size
            slots, rest = divmod(size, layout.slot_bytes)
            if rest or not slots:
                raise InputError(str(path), f"{size} bytes are no slots of {layout.slot_bytes}")
            memory = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        return cls(path, layout, slots, memory)

    @classmethod
    def private(cls, layout: SlotLayout, slots: int) -> Self:
        """Slots of one process."""
        return cls(None, layout, slots, mmap.mmap(-1, layout.slot_bytes * slots))

    def views(self, slot: int, samples: int) -> Arrays:
        """The tensors of a batch in a slot: arrays [samples, ...] on the shared memory itself.

        The same dictionary for every caller, which does not change it.

        Raises:
            InvariantError: no such slot, or more samples than a slot holds.
        """
        known = self._views.get((slot, samples))
        if known is not None:
            return known
        if not 0 <= slot < self.slots or not 1 <= samples <= self.layout.batch:
            raise InvariantError(
                f"slot {slot} of {self.slots} with {samples} of {self.layout.batch} samples"
            )
        base = slot * self._slot_bytes
        views: Arrays = {
            spec.name: np.frombuffer(
                self._memory,
                dtype=NUMPY_DTYPES[spec.dtype],
                count=samples * math.prod(spec.shape[1:]),
                offset=base + offset,
            ).reshape(samples, *spec.shape[1:])
            for spec, offset in zip(self.layout.specs, self._offsets, strict=True)
        }
        self._views[slot, samples] = views
        return views

    def pieces(self, slot: int, samples: int) -> list[memoryview]:
        """The same tensors as bytes, in the order they cross a network."""
        known = self._pieces.get((slot, samples))
        if known is None:
            known = self._pieces[slot, samples] = [
                memoryview(cast("Any", array.reshape(-1).view(np.uint8)))
                for array in self.views(slot, samples).values()
            ]
        return known

    def first_slots(self, slots: int) -> NDArray[np.uint8]:
        """The bytes of the first slots (of all, where there are fewer), on the memory itself."""
        size = min(slots, self.slots) * self._slot_bytes
        return np.frombuffer(self._memory, dtype=np.uint8, count=size)

    def take_pages(self, slots: int) -> None:
        """Take the pages of the first slots now, as far as is wise; what lies there stays.

        From any thread. A page that is new costs its first writer 2 to 13 µs, which for some stages
        is as long as their run. Where the kernel does not know how (before Linux 5.14) or has no
        room, pages are taken as they are written.
        """
        room = os.statvfs(SHARED_FOLDER)
        most = min(MOST_TAKEN_BYTES, room.f_bavail * room.f_frsize // MOST_TAKEN_SHARE)
        held = self.first_slots(slots)[:most]  # which keeps it mapped
        if len(held):
            # Other threads run meanwhile, as they would not by `mmap.madvise`.
            ctypes.CDLL(None).madvise(
                ctypes.c_void_p(held.ctypes.data), ctypes.c_size_t(len(held)), _MADV_POPULATE_WRITE
            )

    def close(self) -> None:
        """Unmap, unless arrays on it are still alive (then with the last of them)."""
        for _, other in self._others.values():
            other.forget_views()
        self.forget_views()
        with contextlib.suppress(BufferError):
            self._memory.close()

    def forget_views(self) -> None:
        """Give up the arrays made so far; they would keep the memory mapped."""
        self._pieces.clear()
        self._views.clear()

    def remove(self) -> None:
        """The owner's end: unmap and delete."""
        self.close()
        self.unlink()

    def unlink(self) -> None:
        """Delete; a process that has it mapped keeps it."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class SlotPool:
    """Which slots of a segment are free; the one freed last is taken first.

    Args:
        slots: their numbers.
        most: how many may be taken at once, beside those that are held; None: all of them.
    """

    def __init__(self, slots: Iterable[int], most: int | None = None) -> None:
        self._free = list(slots)[::-1]
        self._taken: set[int] = set()
        self._held: set[int] = set()  # of these
        self._most = len(self._free) if most is None else most

    @property
    def free(self) -> int:
        """Slots free."""
        return len(self._free)

    @property
    def taken(self) -> int:
        """Slots taken."""
        return len(self._taken)

    def take(self) -> int | None:
        """A free slot, or None."""
        if not self._free or len(self._taken) - len(self._held) >= self._most:
            return None
        slot = self._free.pop()
        self._taken.add(slot)
        return slot

    def take_all(self) -> list[int]:
        """Every free slot."""
        taken, self._free = self._free, []
        self._taken.update(taken)
        return taken

    def hold(self, slot: int) -> None:
        """A slot that is taken is of no use until it is given back.

        Another one stands in for it.
        """
        if slot in self._taken:
            self._held.add(slot)

    def give(self, slot: int) -> None:
        """Back into the pool.

        Raises:
            InvariantError: the slot is not one of the pool or free already.
        """
        if slot not in self._taken:
            raise InvariantError(f"slot {slot} is not taken")
        self._taken.remove(slot)
        self._held.discard(slot)
        self._free.append(slot)


def remove_segments(prefix: str) -> int:
    """Delete every segment whose name starts with `prefix`; how many there were."""
    removed = 0
    for path in SHARED_FOLDER.glob(f"{prefix}*"):
        path.unlink(missing_ok=True)
        removed += 1
    return removed
