"""Names, types and shapes of the tensors that enter, leave and cross a model.

Types are KServe v2 datatypes ("FP32"), because clients and Triton speak them. BYTES, a text of any
length, has room for its longest: a sample is its length (UINT32, little-endian) and so many bytes
behind it, as KServe packs it; what lies behind the text means nothing. Clients see it as one
element per sample.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import About, Fields, Form

ALIGNMENT = 64  # bytes of a cache line
BYTES = "BYTES"
LENGTH_BYTES = 4  # of a text's length, before it
MOST_BYTES = 1 << 28  # of one text
BYTES_PER_ELEMENT: Mapping[str, int] = {
    BYTES: 1,
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

    Of BYTES there is one more: the room of a text and its length.

    Raises:
        InputError: unknown datatype, no batch dimension, a dimension that is not positive, or BYTES
            of another form.
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
        if self.dtype == BYTES and (
            len(self.shape) != 2  # noqa: PLR2004  # the samples, and the room of each
            or not LENGTH_BYTES < self.shape[1] <= MOST_BYTES + LENGTH_BYTES
        ):
            reason = f"BYTES of shape {list(self.shape)}, not -1 and the room of a text: at most"
            raise InputError(f"tensor {self.name!r}", f"{reason} {MOST_BYTES} bytes")

    @property
    def bytes_per_sample(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.shape[1:]) * BYTES_PER_ELEMENT[self.dtype]

    @property
    def max_bytes(self) -> int | None:
        """The longest text of BYTES; None of another type."""
        return self.shape[1] - LENGTH_BYTES if self.dtype == BYTES else None

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """Its shape as clients see it."""
        return (-1,) if self.dtype == BYTES else self.shape

    @classmethod
    def of_bytes(cls, name: str, max_bytes: int) -> Self:
        """Texts of at most so many bytes."""
        return cls(name=name, dtype=BYTES, shape=(-1, LENGTH_BYTES + max_bytes))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`."""
        return cls.read(Fields(data))


Tensors = tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]
"""Inputs and outputs of a model."""


def aligned_bytes(specs: tuple[TensorSpec, ...], samples: int) -> int:
    """Bytes of tensors of so many samples, each begun on a cache line."""
    sizes = (spec.bytes_per_sample * samples for spec in specs)
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)


def total_bytes_per_sample(specs: tuple[TensorSpec, ...]) -> int:
    """Bytes of one sample over all tensors."""
    return sum(spec.bytes_per_sample for spec in specs)


def check_same_tensors(where: str, mine: Tensors, others: Tensors) -> None:
    """Check that two models take and give the same tensors.

    Args:
        where: whose the first are.
        mine: inputs and outputs of one.
        others: of the other.

    Raises:
        InputError: they do not; the first difference in name, datatype or shape.
    """
    for what, own, theirs in zip(("input", "output"), mine, others, strict=True):
        named = {spec.name: spec for spec in own}
        expected = {spec.name: spec for spec in theirs}
        for name in sorted(named.keys() ^ expected.keys()):
            reason = f"has {what} {name!r}, which the other lacks"
            if name in expected:
                reason = f"lacks {what} {name!r}"
            raise InputError(where, reason)
        for name, spec in named.items():
            other = expected[name]
            for field in ("dtype", "shape"):
                one, two = getattr(spec, field), getattr(other, field)
                if one != two:
                    reason = f"{field} of {what} {name!r} is {_plain(one)}, not {_plain(two)}"
                    raise InputError(where, reason)


def _plain(value: str | tuple[int, ...]) -> str:
    return value if isinstance(value, str) else str(list(value))
