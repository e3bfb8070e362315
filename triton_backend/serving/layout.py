"""Where each tensor of a batch lies inside a slot of shared memory."""

from dataclasses import dataclass
from functools import cached_property

from triton_backend.contract.tensors import (
    ALIGNMENT,
    TensorSpec,
    aligned_bytes,
    total_bytes_per_sample,
)


@dataclass(frozen=True, kw_only=True)
class SlotLayout:
    """Tensors of one batch inside a slot; each begins on a cache line.

    Attributes:
        batch: most samples.
        least_bytes: size of the slot at least, where batches of other stages lie in it too.
    """

    specs: tuple[TensorSpec, ...]
    batch: int
    least_bytes: int = ALIGNMENT

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each tensor begins, in bytes."""
        at, offsets = 0, list[int]()
        for spec in self.specs:
            offsets.append(at)
            at += aligned_bytes((spec,), self.batch)
        return tuple(offsets)

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot."""
        return max(aligned_bytes(self.specs, self.batch), self.least_bytes)

    @cached_property
    def bytes_per_sample(self) -> int:
        """Bytes of the tensors of one sample."""
        return total_bytes_per_sample(self.specs)

    def payload_bytes(self, samples: int) -> int:
        """Bytes of the tensors of a batch of `samples`."""
        return samples * self.bytes_per_sample
