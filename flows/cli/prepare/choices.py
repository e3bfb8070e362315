"""Choices for a model beside its file, from options and from workload.yaml."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from triton_backend.contract.errors import InputError

if TYPE_CHECKING:
    from flows.files import GivenInputs
    from flows.preparation.splitting.split import SplitChoices

OPTION = "--input-shape"


def given_inputs(
    shapes: list[str] | None, ranges: list[str] | None, samples: Path | None
) -> "GivenInputs":
    """The options on a model's inputs."""
    from flows.files import GivenInputs

    return GivenInputs(shapes=tuple(shapes or ()), ranges=tuple(ranges or ()), samples=samples)


def split_choices(
    given: "GivenInputs",
    *,
    allow_unproven: bool = False,
    stated: tuple[Path, str] | None = None,
) -> "list[SplitChoices]":
    """The choices of one model, for each of its sizes.

    An option counts before what a workload.yaml states under the model's name.

    Raises:
        InputError: a text is no shape or range, or the workload cannot be read or lacks the model,
            or a size is given twice.
    """
    from flows.files import read_given_inputs
    from flows.input_shapes import read_shapes, read_sizes
    from flows.preparation.splitting.inputs.values import read_ranges
    from flows.preparation.splitting.split import SplitChoices

    sizes = read_sizes(given.shapes)
    several = tuple(name for name in sizes[0] if any(one[name] != sizes[0][name] for one in sizes))
    found = [
        SplitChoices(
            input_shapes=shapes,
            input_ranges=read_ranges(given.ranges),
            samples=given.samples,
            allow_unproven=allow_unproven,
            size_inputs=several,
        )
        for shapes in sizes
    ]
    if stated is None:
        return _each_once(found)
    path, name = stated
    listed = read_given_inputs(path)
    own = [one for one in listed.values() if one.size_of == name]
    if not own and name not in listed:
        raise InputError(str(path), f"has no model {name!r}; its models: {', '.join(listed)}")
    where = f"{path}, model {name!r}"
    return _each_once(
        [
            replace(
                one,
                input_shapes={
                    **read_shapes(more.shapes, f"{where}, input_shapes"),
                    **one.input_shapes,
                },
                input_ranges={
                    **read_ranges(more.ranges, f"{where}, input_ranges"),
                    **one.input_ranges,
                },
                samples=one.samples or more.samples,
                size_inputs=one.size_inputs or more.size_inputs,
            )
            for one in found
            for more in own or [listed[name]]
        ]
    )


def _each_once(sizes: "list[SplitChoices]") -> "list[SplitChoices]":
    """The same sizes, none of which is there twice."""
    shapes = [one.input_shapes for one in sizes]
    for number, one in enumerate(shapes):
        if one in shapes[:number]:
            listed = ", ".join(f"{n}={'x'.join(map(str, s))}" for n, s in one.items())
            raise InputError(OPTION, f"the size {listed} is given twice")
    return sizes


def choices_of_models(
    paths: Sequence[Path], sizes: "Sequence[SplitChoices]"
) -> "list[list[SplitChoices]]":
    """The choices of each of several models, for the inputs it has; sizes are checked at once.

    Each model has all sizes of its own inputs.

    Raises:
        InputError: a file is no model that can be split, no model has such an input, or sizes stay
            open.
    """
    from flows.preparation.splitting.graph import input_names
    from flows.preparation.splitting.inputs.sizes import fix_sizes
    from flows.preparation.splitting.loading import load_skeleton

    chosen = sizes[0]
    if chosen.samples is not None and len(paths) > 1:
        raise InputError("--samples", "goes with one model; split each with its own samples first")
    skeletons = [load_skeleton(path) for path in paths]
    known = {name for model in skeletons for name in input_names(model.graph)}
    for option, names in (
        ("--input-shape", chosen.input_shapes),
        ("--input-range", chosen.input_ranges),
    ):
        for name in names:
            if name not in known:
                raise InputError(option, f"no model has an input {name!r}; inputs: {sorted(known)}")
    found: list[list[SplitChoices]] = []
    for path, model in zip(paths, skeletons, strict=True):
        own = set(input_names(model.graph))
        ranges = {name: limits for name, limits in chosen.input_ranges.items() if name in own}
        of_model: list[SplitChoices] = []
        for size in sizes:
            made = replace(
                size,
                input_shapes={
                    name: dims for name, dims in size.input_shapes.items() if name in own
                },
                input_ranges=ranges,
                size_inputs=tuple(name for name in size.size_inputs if name in own),
            )
            if made not in of_model:
                fix_sizes(copy.deepcopy(model), made.input_shapes, str(path))
                of_model.append(made)
        found.append(of_model)
    return found
