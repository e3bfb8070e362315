"""The models of a Triton model repository: those to plan, and those to leave beside the plan.

    <repository>/<model>/config.pbtxt            may be missing for an ONNX model
    <repository>/<model>/<version>/model.onnx    or the file that the configuration names

An ONNX model is planned, once per served version; an ensemble is an application of models that are
planned. Everything else is left beside the plan, with the reason; what cannot be read, too, so that
one broken model keeps no other from being planned. Here: reading alone. Not here: what becomes of
them (`workload`).
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flows.files import read_text
from flows.preparation.triton_repository.configuration import read_configuration
from flows.preparation.triton_repository.python_models import file_named, step_file
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import check_name

MODEL, APPLICATION, BESIDE = "model", "application", "beside"
CONFIGURATION = "config.pbtxt"
MOST_BYTES = 2**20  # of a configuration
PLANNED_VERSION = 1  # of every planned model, in Triton's count
_ONNX = {"onnxruntime", "onnxruntime_onnx"}
_ENSEMBLE = "ensemble"
_VERSION = re.compile(r"[1-9][0-9]*")  # Triton passes over folders with other names
# Fields that a plan or a split has in another form.
_COUNTED = {
    "name",
    "platform",
    "backend",
    "max_batch_size",
    "input",
    "output",
    "instance_group",
    "version_policy",
    "default_model_filename",
    "ensemble_scheduling",
}
_INSTEAD = {
    "dynamic_batching": "the plan chooses batches",
    "model_warmup": "every stage is warmed up",
    "optimization": "runtimes are chosen per GPU class",
    "parameters": "no parameter reaches the runtime",
    "response_cache": "answers are not cached",
    "model_operations": "custom operator libraries are not loaded",
    "cc_model_filenames": "engines are built per class",
}
# Of an input or output; the ONNX file has these, too.
_COUNTED_OF_TENSOR = {"name", "data_type", "format", "dims"}
_INSTEAD_OF_TENSOR = {
    "reshape": "clients send the sizes of the ONNX file",
    "label_filename": "classes have no names",
}
_BACKENDS = {
    "tensorrt": "an engine cannot be cut; give the ONNX file that it was built from",
    "tensorrt_plan": "an engine cannot be cut; give the ONNX file that it was built from",
    "python": "write its execute() as a Python step to plan it (docs/how-to/steps.md)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A model of the repository, in one version.

    Attributes:
        name: as clients ask for it; older versions have `@<version>` behind it.
        kind: `MODEL`, `APPLICATION` or `BESIDE`.
        folder: its own, in the repository.
        reason: for those left beside; else empty.
        file: the ONNX file of a model.
        version: of a model; 0 where no version is served.
        step: the file of a Python model that may run as a step of an application; it goes on
            beside the plan, too.
        text: of its configuration; empty where it has none.
        message: its configuration, an `inference.ModelConfig`.
        timeout_us: how long Triton lets a request wait by default; 0 where it is not limited.
        instances: by number of the GPU; key None: on GPUs not named, -1: on CPUs.
        notes: parts of the configuration that the plan does not keep, or has in another form.
        readable: False where its configuration cannot be read, and nothing is known of it.
    """

    name: str
    kind: str
    message: Any
    folder: Path
    reason: str = ""
    file: Path | None = None
    version: int = 0
    step: Path | None = None
    text: str = ""
    timeout_us: int = 0
    instances: Mapping[int | None, int] = field(default_factory=dict[int | None, int])
    notes: tuple[str, ...] = ()
    readable: bool = True

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Sizes of the inputs without the batch, where the configuration fixes all of them.

        Without a `max_batch_size` Triton's own dimensions begin with the batch.
        """
        first = 0 if self.message.max_batch_size > 0 else 1
        found = {each.name: tuple(each.dims)[first:] for each in self.message.input}
        return {name: dims for name, dims in found.items() if dims and min(dims) > 0}


CPUS = -1  # in `Found.instances`


def read_repository(folder: Path) -> tuple[Found, ...]:
    """The models of a repository by name, newest version first.

    Raises:
        InputError: the folder or one in it cannot be read, there is no model, or two have one name.
    """
    try:
        folders = sorted(each for each in folder.iterdir() if each.is_dir())
        found = [one for each in folders if not each.name.startswith(".") for one in _models(each)]
    except OSError as error:
        where = error.filename or folder
        raise InputError(str(where), f"cannot be read: {error.strerror}") from error
    for name, count in Counter(each.name for each in found).items():
        if count > 1:
            raise InputError(str(folder), f"{name!r} is the name of two models or versions")
    if not found:
        raise InputError(str(folder), "holds no model: no folder with config.pbtxt or a version")
    return tuple(_with_parts(found))


def _models(folder: Path) -> Iterator[Found]:
    """A model in each of its served versions."""
    path = folder / CONFIGURATION
    inside = list(folder.iterdir())
    numbers = (int(each.name) for each in inside if _VERSION.fullmatch(each.name) and each.is_dir())
    versions = sorted(numbers, reverse=True)
    if path not in inside and not versions:
        return
    try:
        text = _text(path) if path in inside else ""
        read = read_configuration(text, str(path))
    except InputError as error:
        yield _unreadable(folder, str(error))
        return
    name = read.message.name or folder.name
    notes = (
        *_notes(read.message),
        *(f"{field} (line {line}) is unknown here" for field, line in read.unknown),
    )
    about: dict[str, Any] = {
        "message": read.message,
        "folder": folder,
        "text": text,
        "timeout_us": _timeout_us(read.message),
        "instances": _instances(read.message),
        "notes": notes,
    }
    backend = read.message.backend or read.message.platform
    if reason := _reason_of_name(name):
        yield Found(name=name, kind=BESIDE, reason=reason, **about)
    elif reason := _reason_beside(read.message, backend):
        step = None
        if reason == _BACKENDS["python"]:
            try:
                step = step_file(folder, read.message, _served(read.message, versions))
            except InputError as error:
                reason = f"{error.reason}; {reason}"
        yield Found(name=name, kind=BESIDE, reason=reason, step=step, **about)
    elif backend == _ENSEMBLE or read.message.HasField("ensemble_scheduling"):
        yield Found(name=name, kind=APPLICATION, **about)
    else:
        yield from _versions(folder, name, _served(read.message, versions), about)


def _unreadable(folder: Path, reason: str) -> Found:
    message = read_configuration("", str(folder)).message
    return Found(
        name=folder.name, kind=BESIDE, reason=reason, message=message, folder=folder, readable=False
    )


def _reason_of_name(name: str) -> str:
    try:
        check_name("its name", name)
    except InputError as error:
        return str(error)
    return ""


def _text(path: Path) -> str:
    if not path.is_file():  # a pipe would wait for its writer
        raise InputError(str(path), "is no file")
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise InputError(str(path), f"has {size} bytes, of at most {MOST_BYTES}")
    return read_text(path)


def _versions(
    folder: Path, name: str, versions: Sequence[int], about: Mapping[str, Any]
) -> Iterator[Found]:
    try:
        own_name = file_named(str(folder), about["message"], "model.onnx")
    except InputError as error:
        yield Found(name=name, kind=BESIDE, reason=error.reason, **about)
        return
    if not versions:
        yield Found(name=name, kind=BESIDE, reason="has no served version", **about)
    for number, version in enumerate(versions):
        path = folder / str(version) / own_name
        file = path / "model.onnx" if path.is_dir() else path
        called = name if number == 0 else f"{name}@{version}"
        if not file.is_file():
            reason = f"{file.name} of version {version} is missing"
            yield Found(name=called, kind=BESIDE, reason=reason, version=version, **about)
            continue
        found = Found(name=called, kind=MODEL, file=file, version=version, **about)
        if number:
            served = f"version {version} is served under the name {called}"
            found = replace(found, notes=(served,))
        elif version != PLANNED_VERSION:
            renumbered = f"version {version} is served as version {PLANNED_VERSION}"
            note = f"{renumbered}: ask for versions by the names here"
            found = replace(found, notes=(*found.notes, note))
        yield found


def _reason_beside(message: Any, backend: str) -> str:
    """A reason not to plan a model; empty for one to plan."""
    if message.model_transaction_policy.decoupled:
        return "answers are decoupled from requests"
    if message.HasField("sequence_batching"):
        return "keeps state between requests (sequence_batching)"
    if backend in _BACKENDS:
        return _BACKENDS[backend]
    known = backend in _ONNX or backend == _ENSEMBLE or message.HasField("ensemble_scheduling")
    # Without a backend Triton goes by the file, and so does the split.
    return "" if known or not backend else f"backend {backend} is not planned"


def _served(message: Any, versions: Sequence[int]) -> Sequence[int]:
    """The versions that Triton serves, the newest first: by default the newest alone."""
    policy = message.version_policy
    if policy.HasField("all"):
        return versions
    if policy.HasField("specific"):
        wanted = set(policy.specific.versions)
        return [version for version in versions if version in wanted]
    return versions[: max(policy.latest.num_versions, 1)]


def _timeout_us(message: Any) -> int:
    return int(message.dynamic_batching.default_queue_policy.default_timeout_microseconds)


def _instances(message: Any) -> dict[int | None, int]:
    """Instances by GPU; a model without groups has one on every GPU."""
    found: dict[int | None, int] = {}
    for group in message.instance_group:
        count = group.count or 1
        on_cpu = group.kind == type(group).KIND_CPU
        places: Sequence[int | None] = [CPUS] if on_cpu else list(group.gpus) or [None]
        for place in places:
            found[place] = found.get(place, 0) + count
    return found or {None: 1}


def _notes(message: Any) -> Iterator[str]:
    for each, _ in message.ListFields():
        if each.name in _INSTEAD:
            yield f"{each.name}: {_INSTEAD[each.name]}"
        elif each.name not in _COUNTED:
            yield f"{each.name} is not kept"
    for side, tensors in (("input", message.input), ("output", message.output)):
        for tensor in tensors:
            yield from _notes_of_tensor(f"{side} {tensor.name}", tensor)
    if message.dynamic_batching.priority_levels:
        yield "dynamic_batching.priority_levels is not kept: requests go by their deadlines"
    if message.dynamic_batching.preserve_ordering:
        yield "dynamic_batching.preserve_ordering is not kept"


def _notes_of_tensor(where: str, tensor: Any) -> Iterator[str]:
    for each, _ in tensor.ListFields():
        if each.name not in _COUNTED_OF_TENSOR:
            instead = _INSTEAD_OF_TENSOR.get(each.name)
            yield f"{where}: {each.name} is not kept{f': {instead}' if instead else ''}"


def _with_parts(found: Sequence[Found]) -> Iterator[Found]:
    """The same; steps of ensembles name the model that runs the version they ask for.

    Ensembles of models that are left beside the plan are left there, too, but for Python models
    that may run as steps.
    """
    by_name = {each.name: each for each in found}
    for each in found:
        if each.kind != APPLICATION:
            yield each
            continue
        message = type(each.message)()
        message.CopyFrom(each.message)
        message.name = each.name
        reasons = [_bound(step, by_name) for step in message.ensemble_scheduling.step]
        reason = next(filter(None, reasons), "")
        if reason:
            yield replace(each, kind=BESIDE, reason=reason)
        else:
            yield replace(each, message=message)


def _bound(step: Any, by_name: Mapping[str, Found]) -> str:
    """Give a step the name of the version that it asks for; returns a reason where it cannot be."""
    name, version = step.model_name, step.model_version
    part = by_name.get(name)
    if part is None:
        return f"its step {name} is not in the repository"
    if part.step is not None:
        if version > 0 and part.step.parent.name != str(version):
            return f"version {version} of its step {name} is not served"
        step.model_version = -1
        return ""
    if version > 0 and part.version and part.version != version:
        part = by_name.get(f"{name}@{version}")
        if part is None or part.version != version:
            return f"version {version} of its step {name} is not served"
    if part.kind != MODEL:
        way = "write that one's steps in its place to plan it"
        why = f"an ensemble: {way}" if part.kind == APPLICATION else "not planned"
        return f"its step {part.name} is {why}"
    step.model_name, step.model_version = part.name, -1
    return ""
