"""Shapes of inputs as texts: `images=3x320x320`, the sizes without the batch.

Options, workload.yaml and parameters of deployments state them alike. Not here: whether a model has
such inputs (`preparation.splitting.inputs.sizes`).
"""

import re
from collections.abc import Iterable

from triton_backend.contract.errors import InputError

OPTION = "--input-shape"


def read_shapes(texts: Iterable[str], where: str = OPTION) -> dict[str, tuple[int, ...]]:
    """Shapes without the batch by input, from texts such as `images=3x320x320`.

    Raises:
        InputError: not of that form, a size that is not 1 or more, or an input given twice.
    """
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        if not equals or not name or not re.fullmatch(r"\d{1,9}(x\d{1,9})*", sizes):
            reason = f"{text!r} is not NAME=SIZExSIZE, a shape without the batch, as x=3x320x320"
            raise InputError(where, reason)
        if name in found:
            raise InputError(where, f"{name!r} is given twice; a model is split for one size")
        found[name] = tuple(map(int, sizes.split("x")))
        if min(found[name]) < 1:
            raise InputError(where, f"{text!r} has a size of 0")
    return found


def read_sizes(texts: Iterable[str], where: str = OPTION) -> list[dict[str, tuple[int, ...]]]:
    """Shapes of every size of a model: an input given again has its shape of the next size.

    An input that is given once has that shape in all.

    Raises:
        InputError: as `read_shapes`, or two inputs are given so often, and another so often.
    """
    found: dict[str, list[tuple[int, ...]]] = {}
    for text in texts:
        for name, shape in read_shapes([text], where).items():
            found.setdefault(name, []).append(shape)
    counts = {name: len(shapes) for name, shapes in found.items() if len(shapes) > 1}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name!r} {count} times" for name, count in counts.items())
        reason = f"gives {listed}: as many for each input of several sizes, or one for all"
        raise InputError(where, reason)
    sizes = max(counts.values(), default=1)
    return [
        {name: shapes[number % len(shapes)] for name, shapes in found.items()}
        for number in range(sizes)
    ]
