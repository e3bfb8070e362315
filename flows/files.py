"""Files that users write and read: cluster.yaml, workload.yaml, plan.json.

Here: text to core types, and one-line complaints that name file,
field and reason. Not here: whether the values make sense together (the core types check that).
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import Tag, ValidationError

from flows.device_class import DeviceClass
from flows.file_forms import (
    ClusterForm,
    FileForm,
    RuntimeForm,
    StepForm,
    WorkloadForm,
    form_in,
    inner_kind,
)
from flows.plan_fields import unknown_fields
from flows.value_errors import noun_of, reason_of, shown
from triton_backend.contract.applications.sizes import AT, size_name
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import Workload
from warehouse.whole import unfinished

Form = TypeVar("Form", bound="FileForm")
Made = TypeVar("Made")
Source = TypeVar("Source")


GIVEN_INPUTS = ("input_shapes", "input_ranges", "samples")
_OF_FIELDS = ("missing", "extra_forbidden")  # types of errors about a field, not about its value
_MERGE = "tag:yaml.org,2002:merge"  # of the key `<<`
OF_PREPARING = set(StepForm.model_fields) - {"name", "python"}  # of a step; a plan needs none of it


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenInputs:
    """A user's choices for a model's inputs, as texts.

    Attributes:
        shapes: `NAME=3x320x320`, without the batch.
        ranges: `NAME=LOW..HIGH`, both included.
        samples: an `.npz` file or a folder of such.
        size_of: the model of which these are one size.
        size_inputs: inputs whose shapes tell it from the others.
    """

    shapes: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()
    samples: Path | None = None
    size_of: str | None = None
    size_inputs: tuple[str, ...] = ()


def read_cluster(path: Path) -> Cluster:
    """The cluster of a cluster.yaml; how its classes are run is `read_device_classes`'s.

    Raises:
        InputError: the file cannot be read or used, with field and reason.
    """
    form = _read_form(path, ClusterForm)
    data = {
        "name": form.name or path.stem,
        "gpu_classes": {
            name: {}
            if fields is None
            else fields.model_dump(exclude_none=True, exclude={"runtime"})
            for name, fields in form.gpu_classes.items()
        },
        "nodes": [group.model_dump(exclude_none=True) for group in form.nodes],
    }
    return _made(path, Cluster.from_dict, data)


def read_device_classes(path: Path) -> dict[str, DeviceClass]:
    """Classes of a cluster.yaml that onnxruntime runs: those that state a `runtime`, by name.

    Raises:
        InputError: the file cannot be read, or this machine lacks the cores named.
    """
    form = _read_form(path, ClusterForm)
    return {
        name: _made(path, _device_class, (name, fields.runtime))
        for name, fields in form.gpu_classes.items()
        if fields is not None and fields.runtime is not None
    }


def _device_class(named: tuple[str, RuntimeForm]) -> DeviceClass:
    name, runtime = named
    if runtime.provider == "cuda":
        return DeviceClass(name=name, provider=runtime.provider)
    return DeviceClass(
        name=name,
        cores=tuple(runtime.cores or ()),
        threads=runtime.threads or 1,
        stretch=1.0 if runtime.stretch is None else runtime.stretch,
    )


def read_workload(path: Path) -> Workload:
    """The workload of a workload.yaml.

    Raises:
        InputError: the file cannot be read or used, with field and reason.
    """
    form = _read_form(path, WorkloadForm)
    apart: Any = {"models": {"__all__": set(GIVEN_INPUTS)}, "steps": {"__all__": OF_PREPARING}}
    return _made(path, Workload.from_dict, form.model_dump(exclude_none=True, exclude=apart))


def read_given_inputs(path: Path) -> dict[str, GivenInputs]:
    """Choices of a workload.yaml for its models' inputs, by model, or by each of its sizes.

    Sizes stand under the model, or under modules that run it.

    Raises:
        InputError: the file cannot be read or used, with field and reason.
    """
    form = _read_form(path, WorkloadForm)
    found: dict[str, GivenInputs] = {}
    for model in form.models or ():
        name = model.model or model.name
        whole = GivenInputs(
            shapes=_shape_texts(model.input_shapes),
            ranges=tuple(f"{name}={limits}" for name, limits in (model.input_ranges or {}).items()),
            samples=model.samples and path.parent / model.samples,
        )
        if model.sizes is None:
            named = (name,) if model.versions is None else tuple(v.name for v in model.versions)
            found |= dict.fromkeys((*named, *(v.name for v in model.variants or ())), whole)
        for size in model.sizes or ():
            shapes = {tensor: str(shape) for tensor, shape in size.input_shapes.items()}
            both = sorted({*shapes} & {*(model.input_shapes or {})})
            if both:
                reason = f"{both[0]!r} is in input_shapes of the model too"
                raise InputError(f"{path}, model {name!r}, sizes", reason)
            found[size_name(name, shapes)] = replace(
                whole,
                shapes=(*whole.shapes, *_shape_texts(shapes)),
                size_of=name,
                size_inputs=tuple(shapes),
            )
    for module in (m for one in read_workload(path).applications for m in one.modules):
        name, several, shape = module.model.rpartition(AT)
        for tensor, source in module.inputs.items():
            if several and source == module.size_by:
                alone = GivenInputs(
                    shapes=(f"{tensor}={shape}",), size_of=name, size_inputs=(tensor,)
                )
                found.setdefault(module.model, alone)
    return found


def _shape_texts(shapes: Mapping[str, object] | None) -> tuple[str, ...]:
    return tuple(f"{name}={sizes}" for name, sizes in (shapes or {}).items())


def read_step_forms(path: Path) -> tuple[StepForm, ...]:
    """The steps of a workload.yaml as they stand there.

    Raises:
        InputError: the file cannot be read or used, with field and reason.
    """
    read_workload(path)
    return tuple(_read_form(path, WorkloadForm).steps or ())


def read_plan(path: Path) -> Plan:
    """The plan of a plan.json.

    Raises:
        InputError: the file cannot be read or is not a plan, or has a field that no plan has; with
            the field.
    """
    try:
        data = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}"
        reason = f"is no plan: not JSON at {at}; `poolpipe plan -o` writes plans"
        raise InputError(str(path), reason) from error
    if not isinstance(data, dict):
        raise InputError(str(path), "not a plan: the file holds no object")
    plan = _made(path, Plan.from_dict, data)
    if "format" in data:  # format 1 has fields of its own
        for unknown in unknown_fields(data):
            raise InputError(f"{path}, {unknown.path}", _no_such_field(unknown.path, unknown.known))
    return plan


def write_plan(path: Path, plan: Plan) -> None:
    """Write a plan.json.

    Raises:
        InputError: the file cannot be written.
    """
    write_text(path, json.dumps(plan.to_dict(), indent=1) + "\n")


def check_writable(path: Path | None, *, makes_folders: bool = False) -> None:
    """Refuse a file that could not be written after a long run; None is none.

    Raises:
        InputError: it is a folder, or its own folder is not there (and is not made) or takes no
            files.
    """
    if path is None:
        return
    if path.is_dir():
        raise InputError(str(path), "cannot be written: Is a directory")
    folder = path.parent
    while makes_folders and not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise InputError(str(path), f"cannot be written: there is no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise InputError(str(path), "cannot be written: Permission denied")


def write_text(path: Path, text: str) -> None:
    """Write a text file as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: what was there before stays until the new one is complete.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        with unfinished(path) as place:
            place.write_bytes(content)
    except OSError as error:
        raise InputError(str(path), f"cannot be written: {error.strerror}") from error


def _made(path: Path, make: Callable[[Source], Made], data: Source) -> Made:
    """The core's object of the data; errors name the file."""
    try:
        return make(data)
    except InputError as error:
        raise InputError(str(path), str(error)) from error


def read_yaml(path: Path) -> Any:
    """The content of a YAML file.

    Raises:
        InputError: the file cannot be read, or is not YAML, with the line.
    """
    try:
        return yaml.load(read_text(path), Loader=_Loader)  # noqa: S506 - a SafeLoader, see below
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = str(path) if mark is None else f"{path}, line {mark.line + 1}"
        raise InputError(where, f"not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise InputError(str(path), f"not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise InputError(str(path), "not YAML: nested too deeply") from error


def _read_form(path: Path, form: type[Form]) -> Form:
    data = read_yaml(path)
    try:
        return form.model_validate(data)
    except ValidationError as error:
        raise _complaint(path, form, error) from error


def _complaint(path: Path, form: type[FileForm], error: ValidationError) -> InputError:
    """The first two errors in one line each: `file, nodes[0].gpus: reason`.

    What is missing is often there under an unknown name.
    """
    faults: dict[str, list[Mapping[str, Any]]] = {}
    for one in error.errors(include_url=False):
        faults.setdefault(_field(form, one), []).append(one)
    (field, reason), *more = ((field, _reason(form, found)) for field, found in faults.items())
    if len(more) == 1:
        reason += f" (and {': '.join(filter(None, more[0]))})"
    elif more:
        reason += f" (and {len(more)} more)"
    return InputError(f"{path}, {field}" if field else str(path), reason)


def _field(form: type[FileForm], error: Mapping[str, Any]) -> str:
    """The field of an error, as users write it: without names of types, of which it may be one."""
    parts: list[int | str] = []
    kind: Any = form
    for part in error["loc"]:
        kind = inner_kind(kind, part)
        if kind is not None and Tag(str(part)) in getattr(kind, "__metadata__", ()):
            continue
        if kind is not None or error["type"] in _OF_FIELDS:
            parts.append(part)
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in parts).lstrip(".")


def _reason(form: type[FileForm], errors: Sequence[Mapping[str, Any]]) -> str:
    """The reason of all errors of one field: a value may be of several types, and fits none.

    Where it is of one of them, only that one's complaint is of use.
    """
    error = next((one for one in errors if noun_of(one) is None), errors[0])
    if (noun := noun_of(error)) is not None:
        nouns = dict.fromkeys(noun_of(one) or noun for one in errors)
        return f"{shown(error['input'])} is no {' or '.join(nouns)}"
    loc = error["loc"]
    if error["type"] == "missing":
        return "is missing"
    if error["type"] == "extra_forbidden":
        return _no_such_field(str(loc[-1]), _fields_at(form, loc[:-1]))
    if error["type"] == "model_type":
        return "is empty" if error["input"] is None else "holds no fields, as NAME: VALUE"
    return reason_of(error)


def _no_such_field(path: str, known: Sequence[str]) -> str:
    """The complaint about the last field of a path, with the known one that is nearest."""
    near = get_close_matches(path.rpartition(".")[2], known, n=1)
    return "no such field" + (f"; did you mean {near[0]}?" if near else "")


def _fields_at(form: type[FileForm], loc: tuple[int | str, ...]) -> list[str]:
    """Fields of the form that a place in a file has; none where it is no form's."""
    kind: Any = form
    for part in loc:
        kind = inner_kind(kind, part)
    found = form_in(kind)
    return [] if found is None else list(found.model_fields)


def check_is_file(path: Path) -> None:
    """Refuse what is no file of a model.

    Raises:
        InputError: it is a folder, or there is none.
    """
    if path.is_dir():
        raise InputError(str(path), "is a folder; name the ONNX file in it")
    if not path.is_file():
        raise InputError(str(path), "no such file")


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        InputError: there is none, or it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(str(path), "no such file") from error
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(str(path), "is not a text file") from error


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice, and every value that cannot be, with the line."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """The mapping as the file states it, before keys are merged in, which it may override."""
        node = super().compose_mapping_node(anchor)
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            if not isinstance(key_node, yaml.ScalarNode):  # as of `{{ name }}` that was not filled
                reason = "a key is no text or number"
                raise yaml.constructor.ConstructorError(None, None, reason, key_node.start_mark)
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - the base class's signature
        """Its value; the plain loader's converters fail in ways of their own."""
        try:
            return super().construct_object(node, deep)
        except (AttributeError, LookupError, ValueError) as error:
            kind = node.tag.rpartition(":")[2]
            reason = f"{node.value!r} is no {kind}"
            raise yaml.constructor.ConstructorError(None, None, reason, node.start_mark) from error


# YAML 1.2's numbers with an exponent and no dot, which the plain loader takes for texts.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)
