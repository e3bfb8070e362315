"""A step as workload.yaml states it: function, package, tensors, arguments, samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.files import StepForm, read_step_forms, read_workload
from triton_backend.contract.applications.steps import Step
from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import BYTES, TensorSpec
from triton_backend.contract.workload import AROUND
from triton_backend.runtimes.base import ROWS, counts_name, counts_of

DEFAULT_MAX_BATCH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenStep:
    """The request for one step.

    Attributes:
        python: `package.module:function`.
        package: the name at the top of it.
        source: folder or file of the package beside the workload; None: it is installed.
        arguments: given to the function by name, beside its inputs.
        samples: an `.npz` file, a folder of such, or of files that are one text each.
    """

    name: str
    python: str
    package: str
    source: Path | None
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    samples: Path | None = None
    max_batch: int = DEFAULT_MAX_BATCH


def read_steps(path: Path) -> dict[str, GivenStep]:
    """The steps of a workload.yaml, by name; nothing of them is imported.

    Raises:
        InputError: the file cannot be read or used, with file, step and field.
    """
    forms = read_step_forms(path)
    try:
        return {form.name: _given(form, path.parent) for form in forms}
    except InputError as error:
        raise InputError(f"{path}, {error.where}", error.reason) from error


def check_around(path: Path, models: Sequence[str]) -> None:
    """Check that steps of the workload, or models, have the names of every `before` and `after`.

    Args:
        path: the workload.yaml.
        models: names of models that the warehouse has.

    Raises:
        InputError: the file cannot be read or used, or names another.
    """
    workload = read_workload(path)
    steps = [step.name for step in workload.steps]
    for one in workload.applications:
        for module in one.modules:
            if module.name in AROUND and module.model not in (*steps, *models):
                known = f"steps: {', '.join(steps)}; models: {', '.join(models) or 'none'}"
                reason = f"{module.model!r} is no step of the file and no model that was split"
                raise InputError(f"{path}, {one.name!r}, {module.name}", f"{reason}; {known}")


def _given(form: StepForm, base: Path) -> GivenStep:
    where = f"step {form.name!r}"
    step = Step(name=form.name, python=form.python)
    source = _folder_or_file(base, form.package)
    named = form.package if source is None else source.name.removesuffix(".py")
    if named != step.package:
        reason = f"{form.package!r} is not the package of {form.python!r}"
        if source is not None and not source.exists():
            reason = f"{source}: no such file or folder"
        raise InputError(f"{where}, package", reason)
    most = form.max_bytes or {}
    sides = [
        tuple(stated_tensor(f"{where}, {side}", name, text, most.get(name)) for name, text in given)
        for side, given in (("inputs", form.inputs.items()), ("outputs", form.outputs.items()))
    ]
    for name in most:
        if all(spec.name != name or spec.dtype != BYTES for spec in (*sides[0], *sides[1])):
            raise InputError(f"{where}, max_bytes.{name}", "is no tensor of BYTES")
    _check_counts(f"{where}, outputs", sides[1])
    for name in form.arguments or {}:
        if name in form.inputs:
            raise InputError(f"{where}, arguments.{name}", "is the name of an input")
    return GivenStep(
        name=form.name,
        python=form.python,
        package=step.package,
        source=source,
        inputs=sides[0],
        outputs=sides[1],
        arguments=form.arguments or {},
        samples=form.samples and base / form.samples,
        max_batch=form.max_batch or DEFAULT_MAX_BATCH,
    )


def _check_counts(where: str, outputs: tuple[TensorSpec, ...]) -> None:
    """Refuse rows of a number of their own that no worker could keep (`base.counts_of`)."""
    kinds = {spec.name: spec.dtype for spec in outputs}
    for name, count in counts_of(kinds).items():
        if count == ROWS:  # which counts what the step refuses, too
            raise InputError(f"{where}.{ROWS}", f"is for all outputs; state {counts_name(name)}")
        if kinds[name] == BYTES:
            raise InputError(f"{where}.{name}", f"is BYTES, whose rows cannot vary (by {count!r})")


def stated_tensor(where: str, name: str, text: str, max_bytes: int | None = None) -> TensorSpec:
    """A tensor as a workload states it: `FP32 3x224x224`, `INT64` (one number a row), or `BYTES`.

    Raises:
        InputError: it is none of these, or BYTES without the most bytes.
    """
    dtype, _, sizes = text.strip().partition(" ")
    if dtype == BYTES:
        if max_bytes is None:
            raise InputError(f"{where}, max_bytes", f"says nothing of {name!r}, which is BYTES")
        if sizes.strip():
            raise InputError(where, f"{name!r} is {text!r}; BYTES has no sizes")
        return TensorSpec.of_bytes(name, max_bytes)
    parts = sizes.strip().lower().split("x") if sizes.strip() else []
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise InputError(where, f"{name!r} is {text!r}, not as `FP32 3x224x224`")
    try:
        return TensorSpec(name=name, dtype=dtype, shape=(-1, *map(int, parts)))
    except InputError as error:
        raise InputError(f"{where}, {error.where}", error.reason) from error


def _folder_or_file(base: Path, text: str) -> Path | None:
    """The package beside a workload that a text names: one with a slash or ending in `.py`.

    None: an installed one.
    """
    return base / text if "/" in text or text.endswith(".py") else None
