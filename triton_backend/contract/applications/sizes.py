"""Sizes: a model's name and share for each, and the modules that run a model of several.

In a workload a module may list sizes of its model. Planner, core and gateway see a module for each,
`NAME@SHAPE`, with its share of the rows. They stay one to the others: what reads `NAME.tensor`
reads the rows of all, in the order of the module that says of each row which size it has (the
chooser), and runs as many as that one.

    chooser --each row of one shape--> NAME@3x48x320 --.
       '-----------------------------> NAME@3x48x640 --+--> reader of NAME
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum
from typing import NamedTuple

from triton_backend.contract.applications.module import REQUEST, Module
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields

AT, AND = "@", "+"  # of the name of a size: `NAME@3x48x640`
SHARES_OFF = 1e-3  # how far the sum of shares may be from 1
_SHAPE = re.compile(r"[1-9]\d{0,8}(x[1-9]\d{0,8})*")


class Size(NamedTuple):
    """One size of a model: its name, and its share of the model's requests."""

    name: str
    share: float


def size_name(model: str, shapes: Mapping[str, str]) -> str:
    """`NAME@3x48x640`; of several inputs, their shapes joined by `+` in the order given.

    Args:
        model: the name that clients ask for.
        shapes: input to its shape without the batch, as `3x48x640`, of the inputs whose shapes
            differ between sizes.

    Raises:
        InputError: a shape is no shape, or there is none.
    """
    where = f"model {model!r}, sizes"
    if not shapes:
        raise InputError(where, "a size names no input")
    for name, shape in shapes.items():
        if not _SHAPE.fullmatch(shape):
            raise InputError(where, f"{name}: {shape!r} is no shape without the batch, as 3x48x640")
    return f"{model}{AT}{AND.join(shapes.values())}"


def _names_of(where: str, model: str, shapes: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Names of the sizes of a model, by the shapes of each; one, where others are to follow.

    Raises:
        InputError: as `size_name`; none, two that are one, or not of the same inputs.
    """
    names = tuple(size_name(model, one) for one in shapes)
    if not names:
        raise InputError(where, "lists none")
    for name, one in zip(names, shapes, strict=True):
        if one.keys() != shapes[0].keys():
            reason = f"{name!r} gives {', '.join(one)}, another gives {', '.join(shapes[0])}"
            raise InputError(where, reason)
        if names.count(name) > 1:
            raise InputError(where, f"{name!r} is listed twice")
    return names


def equal_or_given(where: str, shares: Sequence[float | None]) -> tuple[float, ...]:
    """Shares of sizes, variants or versions: as given, or equal where none is.

    Raises:
        InputError: some are given and others not, one is not positive, or their sum is not 1.
    """
    given = [share for share in shares if share is not None]
    if not given:
        return (1 / len(shares),) * len(shares)
    if len(given) < len(shares):
        raise InputError(where, "some have a share, others none")
    if min(given) <= 0 or abs(fsum(given) - 1) > SHARES_OFF:
        listed = " + ".join(f"{share:g}" for share in given)
        raise InputError(where, f"shares are positive and add up to 1, not {listed}")
    return tuple(given)


def read_sizes(where: str, model: str, fields: Fields) -> tuple[Size, ...]:
    """The field `sizes` of a model: `[{input_shapes: {x: 3x48x320}, share: 0.7}, ...]`.

    Raises:
        InputError: as `size_name`, of each, and `equal_or_given`; none is listed, or one twice.
    """
    listed = fields.items("sizes")
    shapes = [
        {name: str(shape) for name, shape in one.table("input_shapes").items()} for one in listed
    ]
    shares = [one.number("share") if one.has("share") else None for one in listed]
    names = _names_of(where, model, shapes)
    given = equal_or_given(where, shares)
    return tuple(map(Size, names, given))


def read_modules(fields: Fields, application: str) -> tuple[Module, ...]:
    """One entry of `modules`; of one that lists sizes, a module for each.

    Raises:
        InputError: a field is missing or wrong; sizes are of several inputs, or of one that no
            module gives.
    """
    if not fields.has("sizes"):
        return (Module.read(fields, application),)
    plain = {name: value for name, value in fields.plain().items() if name != "sizes"}
    whole = Module.read(Fields(plain, f"application {application!r}.modules"), application)
    where = f"application {application!r}, module {whole.name!r}"
    if whole.size_of is not None:
        raise InputError(f"{where}.sizes", "is a size of another module itself")
    sizes = read_sizes(f"{where}.sizes", whole.model, fields)
    varying = list(fields.items("sizes")[0].table("input_shapes"))
    if len(varying) > 1:
        reason = f"give {', '.join(varying)}; a row chooses its size by one tensor"
        raise InputError(f"{where}.sizes", reason)
    source = whole.inputs.get(varying[0])
    if source is None or source.startswith(f"{REQUEST}."):
        reason = "a module must give it: `inputs` name `MODULE.TENSOR` for it"
        raise InputError(f"{where}.sizes", f"rows choose by {varying[0]!r}, and {reason}")
    return tuple(
        replace(
            whole,
            name=f"{whole.name}{size.name.removeprefix(whole.model)}",
            model=size.name,
            rows_per_request=whole.rows_per_request * size.share,
            size_of=whole.name,
            size_by=source,
        )
        for size in sizes
    )


def with_sizes_before(modules: Sequence[Module]) -> tuple[Module, ...]:
    """Modules that come after one of several sizes come after them all, and after their chooser."""
    several: dict[str, list[str]] = {}
    for module in modules:
        if module.size_of is not None and module.chooser is not None:
            several.setdefault(module.size_of, [module.chooser]).append(module.name)
    if not several:
        return tuple(modules)
    return tuple(
        replace(
            module,
            after=tuple(
                dict.fromkeys(one for name in module.parents for one in several.get(name, [name]))
            ),
        )
        for module in modules
    )
