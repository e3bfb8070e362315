"""Choices for a model beside its file, from options and from workload.yaml."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from triton_backend.contract.errors import InputError

if TYPE_CHECKING:
    from flows.files import GivenInputs
    from flows.preparation.splitting.split import SplitChoices


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
) -> "SplitChoices":
    """The choices of one model; an option counts before what a workload.yaml states under its name.

    Raises:
        InputError: a text is no shape or range, or the workload cannot be read or lacks the model.
    """
    from flows.files import read_given_inputs
    from flows.preparation.splitting.inputs.sizes import read_shapes
    from flows.preparation.splitting.inputs.values import read_ranges
    from flows.preparation.splitting.split import SplitChoices

    found = SplitChoices(
        input_shapes=read_shapes(given.shapes),
        input_ranges=read_ranges(given.ranges),
        samples=given.samples,
        allow_unproven=allow_unproven,
    )
    if stated is None:
        return found
    path, name = stated
    listed = read_given_inputs(path)
    if name not in listed:
        raise InputError(str(path), f"has no model {name!r}; its models: {', '.join(listed)}")
    where, more = f"{path}, model {name!r}", listed[name]
    return replace(
        found,
        input_shapes={
            **read_shapes(more.shapes, f"{where}, input_shapes"),
            **found.input_shapes,
        },
        input_ranges={
            **read_ranges(more.ranges, f"{where}, input_ranges"),
            **found.input_ranges,
        },
        samples=found.samples or more.samples,
    )


def choices_of_models(paths: Sequence[Path], chosen: "SplitChoices") -> "list[SplitChoices]":
    """The choices of each of several models, for the inputs it has; sizes are checked at once.

    Raises:
        InputError: a file is no model that can be split, no model has such an input, or sizes stay
            open.
    """
    from flows.preparation.splitting.graph import input_names
    from flows.preparation.splitting.inputs.sizes import fix_sizes
    from flows.preparation.splitting.loading import load_skeleton

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
    found: list[SplitChoices] = []
    for path, model in zip(paths, skeletons, strict=True):
        own = set(input_names(model.graph))
        shapes = {name: sizes for name, sizes in chosen.input_shapes.items() if name in own}
        ranges = {name: limits for name, limits in chosen.input_ranges.items() if name in own}
        fix_sizes(model, shapes, str(path))
        found.append(replace(chosen, input_shapes=shapes, input_ranges=ranges))
    return found
