"""One model measured on one GPU class, wherever a worker of that class runs.

The worker's host keeps what it measures in a warehouse of its own for the class, cell by cell, so
that no process waits for the project's warehouse meanwhile and an interruption loses one cell. What
comes back is plain data; the project's warehouse takes it in one piece.
"""

import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from flows.clock import now_utc
from flows.device_class import DeviceClass
from flows.preparation.building.onnxruntime import OnnxRuntimeClass
from flows.preparation.building.tensorrt.engines import EngineOptions, batches_up_to
from flows.preparation.profiling.devices import Device, usable_gpus
from flows.preparation.profiling.gpu import ProfiledGpu, ProfiledGpuClass, gpu_profile_step
from flows.preparation.profiling.measure import MeasureLimits, Progress
from flows.preparation.profiling.model_profile import profile_step
from flows.preparation.splitting.model import SplitModel
from flows.preparation.splitting.stored_split import store_split
from flows.workspace import Workspace
from triton_backend.contract.errors import InputError
from triton_backend.contract.shares import Part
from triton_backend.runtimes.mps import MpsDaemon
from warehouse.profiles import (
    CellRecord,
    RatioRecord,
    add_cells,
    add_ratios,
    cells_of_class,
    ratios_of_class,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRequest:
    """The cells to measure.

    Attributes:
        split: folder of the split model.
        parts: shares and bases that the class is wanted with.
        device: what runs the class in onnxruntime; None for engines on a GPU.
        precision: of the engines.
        known: cells that need not be measured again.
    """

    split: Path
    gpu_class: str
    parts: tuple[Part, ...]
    device: DeviceClass | None = None
    precision: Literal["fp32", "fp16"] = "fp32"
    known: tuple[CellRecord, ...] = ()
    limits: MeasureLimits = field(default_factory=MeasureLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassProfile:
    """Every cell of a model on a class, and sums of blocks beside whole models."""

    cells: tuple[CellRecord, ...]
    ratios: tuple[RatioRecord, ...] = ()

    def to_rows(self) -> list[dict[str, Any]]:
        """One plain row per cell or ratio, as a table shows it."""
        return [asdict(row) for row in (*self.cells, *self.ratios)]

    @classmethod
    def from_rows(cls, rows: Sequence[dict[str, Any]]) -> "ClassProfile":
        """Inverse of `to_rows`."""
        return cls(
            cells=tuple(CellRecord(**row) for row in rows if "block" in row),
            ratios=tuple(RatioRecord(**row) for row in rows if "block" not in row),
        )


def measure_class(
    work: Workspace,
    request: ClassRequest,
    gpu: Device | None = None,
    progress: Progress | None = None,
) -> ClassProfile:
    """Build what is missing and measure every missing cell.

    Raises:
        InputError: the split is not reachable from here, or an artifact cannot be built or loaded.
    """
    split = SplitModel.read(request.split)
    own = work.state.home / "profiling" / f"{request.gpu_class}.duckdb"
    own.parent.mkdir(parents=True, exist_ok=True)
    mine = Workspace(state=work.state, warehouse=own)
    store_split(mine, split, str(request.split))
    with mine.open() as warehouse:
        here = set(cells_of_class(warehouse, split.key, request.gpu_class))
        fresh = [cell for cell in request.known if cell not in here]
        add_cells(warehouse, split.key, fresh, now_utc())
    _measure(mine, split, request, gpu, progress)
    with mine.open(read_only=True) as warehouse:
        return ClassProfile(
            cells=tuple(cells_of_class(warehouse, split.key, request.gpu_class)),
            ratios=tuple(ratios_of_class(warehouse, split.key, request.gpu_class)),
        )


def _measure(
    work: Workspace,
    split: SplitModel,
    request: ClassRequest,
    gpu: Device | None,
    progress: Progress | None,
) -> None:
    if request.device is not None:
        wanted = OnnxRuntimeClass(device=request.device, parts=request.parts)
        profile_step(work, split, [wanted], limits=request.limits, progress=progress)
        return
    if gpu is None:
        raise InputError(f"class {request.gpu_class!r}", "has no `runtime`, and no GPU is here")
    with TemporaryDirectory(prefix="mps-") as folder:
        on_gpu = ProfiledGpuClass(
            name=request.gpu_class,
            gpu=ProfiledGpu(name=gpu.uuid, daemon=MpsDaemon.in_folder(Path(folder), ())),
            parts=request.parts,
        )
        options = EngineOptions(batches=batches_up_to(split.max_batch), precision=request.precision)
        gpu_profile_step(work, split, on_gpu, options, limits=request.limits, progress=progress)


def known_cells(work: Workspace, split: SplitModel, gpu_class: str) -> tuple[CellRecord, ...]:
    """The warehouse's cells of a model on a class."""
    with work.open(read_only=True) as warehouse:
        return tuple(cells_of_class(warehouse, split.key, gpu_class))


def keep_profile(work: Workspace, split: SplitModel, gpu_class: str, found: ClassProfile) -> int:
    """Store what is new of a class; how many cells that were."""
    with work.open() as warehouse, warehouse.transaction():
        known = set(cells_of_class(warehouse, split.key, gpu_class))
        ratios = set(ratios_of_class(warehouse, split.key, gpu_class))
        fresh = [cell for cell in found.cells if cell not in known]
        add_cells(warehouse, split.key, fresh, now_utc())
        add_ratios(warehouse, split.key, [r for r in found.ratios if r not in ratios], now_utc())
    return len(fresh)


def device_limits(request: ClassRequest, gpu: Device | None) -> list[str]:
    """Names of what is measured on, one user each: a GPU, or the cores that stand for one."""
    if gpu is not None:
        return [f"gpu:{gpu.uuid}"]
    if request.device is not None and request.device.on_gpu:
        return [f"gpu:{platform.node()}"]
    cores = request.device.cores if request.device else ()
    return [f"cpu:{platform.node()}:{core}" for core in cores]


def own_gpu(devices: Sequence[Device], gpu_class: str) -> Device | None:
    """The GPU (or MIG slice) of this host that is of a class: by name, else the only one.

    Every word of the class's name is one of the GPU's: `A100` is an `A100-SXM4-40GB`, but an `L4`
    is no `L40S`.
    """
    gpus = usable_gpus(devices)
    wanted = _words(gpu_class)
    named = [gpu for gpu in gpus if wanted <= _words(gpu.gpu_class)]
    if named:
        return named[0]
    return gpus[0] if len(gpus) == 1 else None


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))
