"""Measuring engines on a GPU: whole, and in parts under CUDA MPS, all at work or one alone."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from flows.preparation.building.tensorrt.engines import EngineOptions, engine_step, stage_name
from flows.preparation.building.tensorrt.requests import BuildReport
from flows.preparation.profiling.measure import (
    CellKey,
    MeasureLimits,
    ProfileTarget,
    Progress,
    Store,
    measure_cells,
)
from flows.preparation.profiling.model_profile import CellStore, cells_done
from flows.preparation.splitting.model import SplitModel
from flows.workspace import Workspace
from triton_backend.contract.errors import InputError
from triton_backend.contract.shares import LOADED, WHOLE_GPU, Part
from triton_backend.runtimes.mps import MpsDaemon, gpu_environment


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledGpu:
    """`name`: uuid or index of a GPU, or uuid of a MIG slice.

    Its daemon runs while parts are measured and is stopped afterwards if no other process uses it.
    """

    name: str
    daemon: MpsDaemon


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMeasured:
    """The measurement.

    `left_out` says why parts of the GPU were not, where they were asked for.
    """

    cells: int
    left_out: str | None = None


def measure_on_gpu(
    targets: Sequence[ProfileTarget],
    gpu: ProfiledGpu,
    *,
    done: Collection[CellKey],
    store: Store,
    progress: Progress | None = None,
    limits: MeasureLimits | None = None,
) -> GpuMeasured:
    """Measure every missing cell on one GPU; parts of it only where MPS works.

    Args:
        targets: built blocks of one GPU class.
        gpu: a GPU of that class.
        done: cells that are not measured again.
        store: is handed each cell at once.
        progress: called before each cell.
        limits: when a cell is measured well enough.

    Raises:
        InputError: an engine cannot be loaded on this GPU.
    """
    cells = 0
    for share, basis in sorted({p for t in targets for p in t.parts}, key=lambda p: (-p[0], p[1])):
        mine = [replace(t, parts=((share, basis),)) for t in targets if (share, basis) in t.parts]
        environment = gpu_environment(gpu.name)
        if share < WHOLE_GPU:
            try:
                gpu.daemon.start()
            except InputError as error:
                return GpuMeasured(cells=cells, left_out=str(error))
            environment = gpu.daemon.environment(gpu.name, share)
        try:
            cells += measure_cells(
                mine,
                done=done,
                store=store,
                progress=progress,
                limits=limits,
                environment=environment,
            )
        finally:
            gpu.daemon.stop_if_idle()
    return GpuMeasured(cells=cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledGpuClass:
    """A GPU class, a GPU of it on this machine, and the parts it is wanted with."""

    name: str
    gpu: ProfiledGpu
    parts: tuple[Part, ...] = ((WHOLE_GPU, LOADED),)


def gpu_profile_step(
    work: Workspace,
    split: SplitModel,
    wanted: ProfiledGpuClass,
    options: EngineOptions,
    *,
    limits: MeasureLimits | None = None,
    progress: Progress | None = None,
) -> tuple[BuildReport, GpuMeasured]:
    """Build what is missing and measure every missing cell of every block.

    Every batch from 1 to the largest is measured, as it will be served: padded where it has no
    optimisation profile of its own.

    Raises:
        InputError: a block has no engine for the class, or an engine cannot be loaded here.
    """
    report = engine_step(work, split, [wanted.name], options)
    targets = targets_of(split, wanted, report, tuple(range(1, max(options.batches) + 1)))
    with CellStore(work, split) as store:
        measured = measure_on_gpu(
            targets,
            wanted.gpu,
            done=cells_done(work, split, targets),
            store=store.add,
            progress=progress,
            limits=limits,
        )
    return report, measured


def targets_of(
    split: SplitModel, wanted: ProfiledGpuClass, report: BuildReport, batches: Sequence[int]
) -> list[ProfileTarget]:
    """The measurements to take of a model.

    Raises:
        InputError: the engine of a block is missing, so the class has no use for this model.
    """
    folders = {r.request.stage: r.folder for r in report.results}
    names = [stage_name(split, (block, block + 1)) for block in range(split.blocks)]
    if lacking := [name for name in names if name not in folders]:
        reasons = {f.request.stage: str(f) for f in report.failures}
        raise InputError(f"class {wanted.name!r}", reasons.get(lacking[0], f"no {lacking[0]}"))
    return [
        ProfileTarget(
            model=split.name,
            block=block,
            gpu_class=wanted.name,
            artifact=folders[name],
            parts=wanted.parts,
            batches=tuple(batches),
        )
        for block, name in enumerate(names)
    ]
