"""Names, types and shapes of the tensors that enter, leave and cross a model.

Types are KServe v2 datatypes ("FP32"), because clients and Triton speak them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import About, Fields, Form

ALIGNMENT = 64  # bytes of a cache line
BYTES_PER_ELEMENT: Mapping[str, int] = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}

EXAMPLE = {"name": "image", "dtype": "FP32", "shape": [-1, 3, 224, 224]}
"""A tensor as files state it, for the reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec(Form):
    """One tensor: `shape[0]` is -1, the batch dimension; all other dimensions are fixed.

    Raises:
        InputError: unknown datatype, no batch dimension, or a dimension that is not positive.
    """

    name: Annotated[str, About("Name of the tensor.", "image")]
    dtype: Annotated[str, About("KServe v2 datatype.", "FP32")]
    shape: Annotated[
        tuple[int, ...], About("Shape; -1 is the batch dimension.", [-1, 3, 224, 224], least=-1)
    ]

    def __post_init__(self) -> None:
        if self.dtype not in BYTES_PER_ELEMENT:
            known = ", ".join(BYTES_PER_ELEMENT)
            raise InputError(f"tensor {self.name!r}", f"datatype {self.dtype!r} is none of {known}")
        if not self.shape or self.shape[0] != -1 or any(d < 1 for d in self.shape[1:]):
            raise InputError(
                f"tensor {self.name!r}",
                f"shape {list(self.shape)} must be -1 followed by positive dimensions",
            )

    @property
    def bytes_per_sample(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.shape[1:]) * BYTES_PER_ELEMENT[self.dtype]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`."""
        return cls.read(Fields(data))


def aligned_bytes(specs: tuple[TensorSpec, ...], samples: int) -> int:
    """Bytes of tensors of so many samples, each begun on a cache line."""
    sizes = (spec.bytes_per_sample * samples for spec in specs)
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)


def total_bytes_per_sample(specs: tuple[TensorSpec, ...]) -> int:
    """Bytes of one sample over all tensors."""
    return sum(spec.bytes_per_sample for spec in specs)
