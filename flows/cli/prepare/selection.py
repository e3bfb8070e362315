"""Objects that the commands of this group act on.

Models that were split, classes, and how engines are built.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli import shared_options
from flows.cli.console import note, notes
from flows.cli.shared_options import pairs

if TYPE_CHECKING:
    from flows.preparation.building.onnxruntime import OnnxRuntimeClass
    from flows.preparation.building.tensorrt.engines import EngineOptions
    from flows.preparation.building.tensorrt.requests import EngineSettings
    from flows.workspace import Workspace

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME", help="Names of models that were split; all of them by default."),
]


def model_names(
    work: "Workspace", names: Iterable[str] | None, *, on_gpus: bool = False
) -> list[str]:
    """The models asked for, or all that were split here.

    A name that was split in several sizes stands for all of them. Of all models, on GPUs, those
    that are no Python steps.
    """
    from flows.preparation.splitting.stored_split import read_split
    from triton_backend.contract.errors import InputError
    from warehouse import profiles

    with work.open(read_only=True) as store:
        known = profiles.model_names(store)
        if names:
            return [one for name in names for one in _sizes(name, known)]
        found = [n for n in known if profiles.find_model(store, n).folder is not None]
    if on_gpus:
        found = [name for name in found if not read_split(work, name).step]
    if not found:
        raise InputError(str(work.warehouse), "no model was split; `poolpipe split` does that")
    return found


def _sizes(name: str, known: Iterable[str]) -> list[str]:
    """The sizes of a model that was split in several, else the model itself."""
    from triton_backend.contract.applications.sizes import AT

    own = [one for one in known if one.startswith(name + AT)]
    return [name] if name in known or not own else own


def onnxruntime_classes(cluster: Path, bases: Iterable[str] = ()) -> "list[OnnxRuntimeClass]":
    """Classes that onnxruntime runs, with their parts; classes without a runtime are named."""
    from flows.files import read_cluster, read_device_classes
    from flows.preparation.building.onnxruntime import OnnxRuntimeClass
    from triton_backend.contract.errors import InputError

    known, devices = read_cluster(cluster), read_device_classes(cluster)
    if not devices:
        raise InputError(
            f"{cluster}, gpu_classes",
            "none has a `runtime: {cores, threads, stretch}` or `{provider: cuda}` to run here",
        )
    without = [c.name for c in known.gpu_classes if c.name not in devices]
    notes(f"class {name} has no runtime here, left out" for name in without)
    return [
        OnnxRuntimeClass(device=device, parts=known.gpu_class(name).parts(bases))
        for name, device in devices.items()
    ]


def gpu_classes(cluster: Path) -> list[str]:
    """Classes of a cluster file that are left to engines: those without a `runtime`."""
    from flows.files import read_cluster, read_device_classes
    from triton_backend.contract.errors import InputError

    on_onnxruntime = read_device_classes(cluster)
    classes = [c.name for c in read_cluster(cluster).gpu_classes]
    found = [name for name in classes if name not in on_onnxruntime]
    if not found:
        raise InputError(
            f"{cluster}, gpu_classes", "every class has a `runtime`, none is left for engines"
        )
    for name in classes:
        if name in on_onnxruntime:
            note(f"class {name} runs in onnxruntime, left out")
    return found


@dataclass(frozen=True, kw_only=True)
class EngineBuilder:
    """The library that builds engines, and the cards that it builds them for."""

    library: shared_options.Library = None
    capability: shared_options.Capability = None

    def settings(self) -> "EngineSettings":
        """As building takes them.

        Raises:
            InputError: a capability is not `CLASS=8.9`.
        """
        from flows.preparation.building.tensorrt.requests import EngineSettings

        capabilities = pairs("--capability", self.capability)
        return EngineSettings(library=self.library, compute_capabilities=capabilities)

    def options(self, batches: list[int] | None, precision: str = "fp32") -> "EngineOptions":
        """How engines are built: for these batch sizes, the usual ones without.

        Raises:
            InputError: a capability is not `CLASS=8.9`.
        """
        from flows.preparation.building.tensorrt.engines import EngineOptions
        from flows.preparation.building.tensorrt.requests import DEFAULT_BATCHES

        return EngineOptions(
            batches=tuple(sorted(set(batches))) if batches else DEFAULT_BATCHES,
            precision=precision,
            settings=self.settings(),
        )
