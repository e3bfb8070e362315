"""Tensors on the edges of an application: whether both ends fit."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from triton_backend.contract.applications.application import Application
from triton_backend.contract.applications.module import REQUEST
from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec

TensorsOf = Callable[[str], tuple[Sequence[TensorSpec], Sequence[TensorSpec]]]
"""Inputs and outputs of a model by its name; empty where they are not known."""
_SHAPE = "_shape"


def shape_name(output: str) -> str:
    """The output that says of each row of another one how much of it counts: its shape.

    That is `NAME_shape` (INT64, one number for each dimension). The row lies at the beginning of
    every dimension of NAME's, which has room for the largest.
    """
    return f"{output}{_SHAPE}"


def check_tensors(application: Application, tensors_of: TensorsOf) -> tuple[TensorSpec, ...]:
    """Check that bindings fit the tensors of the models, as far as these are known.

    Args:
        application: the application.
        tensors_of: inputs and outputs of a model by its name; empty where they are not known.

    Returns:
        The tensors of a client request, in the order in which modules read them.

    Raises:
        InputError: a tensor that no model has, one that nothing feeds, or types or shapes (but for
            their first dimension) that differ.
    """
    request: dict[str, TensorSpec] = {}
    for module in application.modules:
        wanted = {spec.name: spec for spec in tensors_of(module.model)[0]}
        where = f"application {application.name!r}, module {module.name!r}.inputs"
        if not module.inputs or not wanted:
            continue
        for tensor, source in module.inputs.items():
            if tensor not in wanted:
                known = ", ".join(wanted)
                raise InputError(f"{where}.{tensor}", f"{module.model} reads {known} alone")
            producer, _, name = source.partition(".")
            given = request.setdefault(name, wanted[tensor]) if producer == REQUEST else None
            if producer != REQUEST:
                given = _output(application, tensors_of, source, f"{where}.{tensor}")
            if given is not None and source != module.size_by:
                _check_same(f"{where}.{tensor}", source, given, wanted[tensor])
        for tensor in wanted:
            if tensor not in module.inputs:
                raise InputError(f"{where}.{tensor}", f"is missing; {module.model} reads it")
    _check_choices(application, tensors_of)
    for output, source in application.outputs.items():
        where = f"application {application.name!r}.outputs.{output}"
        _output(application, tensors_of, source, where)
    return tuple(
        TensorSpec(name=name, dtype=spec.dtype, shape=spec.shape) for name, spec in request.items()
    )


def _output(
    application: Application,
    tensors_of: TensorsOf,
    source: str,
    where: str,
) -> TensorSpec | None:
    """The tensor behind `module.tensor`; None where the model's are not known."""
    producer, _, name = source.partition(".")
    found: list[TensorSpec] = []
    for maker in application.makers(producer):
        given = {spec.name: spec for spec in tensors_of(maker.model)[1]}
        if given and name not in given:
            raise InputError(where, f"{maker.model} gives {', '.join(given)}, not {name!r}")
        found += [given[name]] if given else []
    return widest(where, found) if found else None


def widest(where: str, specs: Sequence[TensorSpec]) -> TensorSpec:
    """One tensor with room for each of several of one name, as sizes of a model give it.

    Raises:
        InputError: their datatypes or ranks differ.
    """
    first = specs[0]
    for spec in specs:
        if (spec.dtype, len(spec.shape)) != (first.dtype, len(first.shape)):
            reason = f"is {spec.dtype} {list(spec.shape[1:])} of one size"
            raise InputError(where, f"{reason}, {first.dtype} {list(first.shape[1:])} of another")
    shape = tuple(map(max, zip(*(spec.shape for spec in specs), strict=True)))
    return replace(first, shape=shape)


def _check_choices(application: Application, tensors_of: TensorsOf) -> None:
    """Check that rows can choose among sizes, each of a shape of its own."""
    taken: dict[tuple[str, tuple[int, ...]], str] = {}
    for module in application.modules:
        for tensor, source in module.inputs.items():
            wanted = [spec for spec in tensors_of(module.model)[0] if spec.name == tensor]
            if source != module.size_by or not wanted:
                continue
            where = f"application {application.name!r}, module {module.name!r}.inputs.{tensor}"
            given = _output(application, tensors_of, source, where)
            if given is not None:
                outputs = tensors_of(application.module(source.partition(".")[0]).model)[1]
                _check_chosen(where, outputs, given, wanted[0])
            other = taken.setdefault((module.read_as, wanted[0].shape), module.name)
            if other != module.name:
                raise InputError(where, f"is {list(wanted[0].shape[1:])}, as of {other!r}")


def _check_chosen(
    where: str, outputs: Sequence[TensorSpec], given: TensorSpec, wanted: TensorSpec
) -> None:
    """Check that rows have room for a size, and say their own."""
    rank = len(wanted.shape) - 1
    fits = len(given.shape) == len(wanted.shape) and given.dtype == wanted.dtype
    if not fits or any(a < b for a, b in zip(given.shape, wanted.shape, strict=True)):
        text = f"{given.name} is {given.dtype} {list(given.shape[1:])}"
        reason = f"has no room for {wanted.dtype} {list(wanted.shape[1:])}"
        raise InputError(where, f"{text} per row, which {reason}")
    named = {spec.name: spec for spec in outputs}
    said = named.get(shape_name(given.name))
    if said is None or (said.dtype, said.shape) != ("INT64", (-1, rank)):
        reason = f"needs an output {shape_name(given.name)!r} (INT64 {rank}) beside it"
        raise InputError(where, f"{given.name!r}, by which rows choose their size, {reason}")


def _check_same(where: str, source: str, given: TensorSpec, wanted: TensorSpec) -> None:
    if (given.dtype, given.shape[1:]) != (wanted.dtype, wanted.shape[1:]):
        raise InputError(
            where,
            f"{source} is {given.dtype} {list(given.shape[1:])} per row, "
            f"{wanted.dtype} {list(wanted.shape[1:])} is read",
        )
