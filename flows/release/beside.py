"""Models of a Triton repository that are served beside a plan, unchanged.

Given are repositories, of which every model goes on that is not planned, or folders of single
models. Here: which models, and whether this server can have them. Not here: links and loads
(`triton_backend.serve_folder.beside`, the keeper).
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from flows.files import read_text
from flows.preparation.triton_repository.configuration import read_configuration
from flows.preparation.triton_repository.repository import (
    APPLICATION,
    BESIDE,
    CONFIGURATION,
    Found,
    read_repository,
)
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.runtimes.stage_tensors import complete_tensors, endpoints
from triton_backend.serve_folder.beside import Beside
from triton_backend.serve_folder.names import check_name

_VERSION = re.compile(r"[1-9][0-9]*")
_ENSEMBLE = "ensemble"
# Triton's older names of backends, and files by which it knows the backend of a model.
_PLATFORMS = {
    "tensorrt_plan": "tensorrt",
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
}
_FILES = {
    "model.py": "python",
    "model.onnx": "onnxruntime",
    "model.plan": "tensorrt",
    "model.pt": "pytorch",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The models to serve beside a plan, and sentences about others of their repositories."""

    beside: Beside
    notes: tuple[str, ...]


def models_beside(
    given: Sequence[Path], plan: Plan, backends: Collection[str] | None = None
) -> Chosen:
    """The models of repositories that a plan does not serve.

    Args:
        given: folders of repositories or of single models.
        plan: what is served.
        backends: those that the server has; None: any.

    Raises:
        InputError: a folder is no repository, a model has a name that the plan or the server has,
            an ensemble calls a model that would not be there, or the server lacks a backend.
    """
    served = {*endpoints(complete_tensors(plan))}
    found: dict[str, Found] = {}
    notes: list[str] = []
    for path in given:
        for each in _models_at(path, served, notes):
            other = found.setdefault(each.folder.name, each)
            if other.folder != each.folder:
                reason = f"{each.folder} and {other.folder} have the same name"
                raise InputError(f"--beside {path}", reason)
    if not found:
        places = ", ".join(map(str, given))
        raise InputError(f"--beside {places}", "every model there is served by the plan")
    for each in found.values():
        _check_calls(each, found, served)
    for each in found.values():
        _check_backend(each, backends)
    first = sorted(found.items(), key=lambda item: _is_ensemble(item[1]))  # an ensemble last
    beside = Beside(
        folders={name: each.folder for name, each in first},
        completes=any(map(_is_incomplete, found.values())),
    )
    return Chosen(beside=beside, notes=tuple(notes))


def what_goes_on(
    repository: Path, plan: Plan, backends: Collection[str] | None = None
) -> tuple[tuple[Path, ...], str]:
    """A repository, or those of its models that can go on beside a plan, and why not all of it."""
    try:
        models_beside([repository], plan, backends)
    except InputError as error:
        refused = str(error)
    else:
        return (repository,), ""
    folders = sorted(path for path in repository.iterdir() if path.is_dir())
    return tuple(path for path in folders if _goes_on_alone(path, plan, backends)), refused


def _goes_on_alone(path: Path, plan: Plan, backends: Collection[str] | None) -> bool:
    try:
        models_beside([path], plan, backends)
    except InputError:
        return False
    return True


def backends_here() -> frozenset[str] | None:
    """The backends of the server that `serve` starts; None where none is installed."""
    spec = find_spec("pytriton")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "tritonserver" / "backends"
    return frozenset(each.name for each in folder.iterdir()) if folder.is_dir() else None


def _models_at(path: Path, served: Collection[str], notes: list[str]) -> Iterator[Found]:
    """Models, one for all of its versions, that the plan does not serve."""
    place = path.resolve()
    single = _is_model(place)
    try:
        read = read_repository(place.parent if single else place)
    except InputError as error:
        raise InputError("--beside", str(error)) from error
    by_folder: dict[Path, list[Found]] = {}
    for each in read:
        by_folder.setdefault(each.folder, []).append(each)
    chosen = {place: by_folder[place]} if single and place in by_folder else by_folder
    for folder, versions in chosen.items():
        name = versions[0].name
        if not versions[0].readable:
            raise InputError("--beside", versions[0].reason)
        if name != folder.name:
            reason = f"its configuration names it {name!r}, which Triton does not load"
            raise InputError(f"--beside {path}, {folder.name}", reason)
        check_name(name)
        if name not in served:
            yield versions[0]
        elif versions[0].kind == BESIDE or single:
            reason = "is also the name of a model of the plan; give the folders of the others alone"
            raise InputError(f"--beside {path}, model {name!r}", reason)
        else:
            lost = [each.name for each in versions if each.name not in served]
            notes += [f"{each} is not served: the plan has {name!r} only" for each in lost]


def _is_model(folder: Path) -> bool:
    """True if a folder is that of a model, not of a repository."""
    if (folder / CONFIGURATION).exists():
        return True
    try:
        inside = list(folder.iterdir())
    except OSError:
        return False
    return any(_VERSION.fullmatch(each.name) and each.is_dir() for each in inside)


def _is_ensemble(found: Found) -> bool:
    return found.kind == APPLICATION or found.message.HasField("ensemble_scheduling")


def _check_calls(found: Found, beside: Collection[str], served: Collection[str]) -> None:
    """Refuse an ensemble that calls others than models beside the plan.

    With every load of an ensemble Triton loads the models that it calls again: a planned one would
    drop the requests that wait there, and 2.51 ends.
    """
    if not _is_ensemble(found):
        return
    read = read_configuration(found.text, str(found.folder / CONFIGURATION))
    for step in read.message.ensemble_scheduling.step:
        if step.model_name in beside:
            continue
        where = f"ensemble {found.name!r} in {found.folder.parent}"
        reason = f"calls {step.model_name!r}, which neither the plan nor --beside has"
        if step.model_name in served:
            reason = f"calls {step.model_name!r} of the plan, but Triton would load that again with"
            reason += " the ensemble: plan its Python models as steps (docs/how-to/steps.md)"
        raise InputError(where, reason)


def _check_backend(found: Found, backends: Collection[str] | None) -> None:
    backend = _backend(found)
    if not backend and not _is_ensemble(found) and not any(found.folder.glob("[0-9]*/*")):
        where = f"model {found.name!r} in {found.folder.parent}"
        raise InputError(where, "its configuration names no backend, and no version holds a file")
    if backends is None or not backend or backend in backends or _brings(found, backend):
        return
    reason = f"needs the backend {backend}, this server has {', '.join(sorted(backends))} alone:"
    reason += " serve from a container (poolpipe render), or give the folders of other models"
    raise InputError(f"model {found.name!r} in {found.folder.parent}", reason)


def _backend(found: Found) -> str:
    """Name of a model's backend; empty for an ensemble, and where only Triton can tell."""
    if _is_ensemble(found):
        return ""
    named = found.message.backend or _PLATFORMS.get(found.message.platform, found.message.platform)
    present = {each.name for each in found.folder.glob("*/*")}
    return named or next((backend for file, backend in _FILES.items() if file in present), "")


def _brings(found: Found, backend: str) -> bool:
    library = f"libtriton_{backend}.so"
    return any(found.folder.glob(library)) or any(found.folder.glob(f"*/{library}"))


def _is_incomplete(found: Found) -> bool:
    """True if Triton may have to complete a configuration."""
    if _is_ensemble(found):
        return False
    stated = found.message.input and found.message.output
    if _backend(found) != "python" or not stated:
        return True
    return any("auto_complete_config" in read_text(f) for f in found.folder.glob("*/model.py"))
