"""Which size each row of a batch has, as its last stage says by the row's shape."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from triton_backend.runtimes.base import REFUSED, REFUSED_BYTES
from triton_backend.runtimes.texts import put_text
from triton_backend.serving.transport.wire import FrameError

_WRONG = "INVALID_ARG"


def places_of(
    output: str, sizes: Sequence[tuple[int, ...]], views: Mapping[str, NDArray[np.generic]]
) -> list[int]:
    """The place among sizes of each row's shape.

    A row of another shape is refused in the output `refused`, where the stage has one, and runs in
    the first size meanwhile, as do rows that were refused before.

    Args:
        output: says the shapes, [samples, rank].
        sizes: that are served.
        views: outputs of the batch, in which a refusal is written.

    Raises:
        FrameError: a row has none of the sizes, and the stage refuses nothing.
    """
    refused = views.get(REFUSED)
    found: list[int] = []
    for row, shape in enumerate(map(tuple, views[output].tolist())):
        if shape in sizes:
            found.append(sizes.index(shape))
            continue
        found.append(0)
        if refused is not None and refused[row, 0]:
            continue
        known = ", ".join(map(_in_words, sizes))
        reason = f"{output} {_in_words(shape)} is none of the sizes served: {known}"
        if refused is None:
            raise FrameError(reason)
        put_text(refused[row].view(np.uint8), f"{_WRONG} {reason}".encode()[:REFUSED_BYTES])
    return found


def _in_words(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
