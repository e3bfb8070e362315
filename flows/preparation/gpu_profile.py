"""Engines of a split model measured on a GPU of their class, into the warehouse."""

from collections.abc import Sequence
from dataclasses import dataclass

from flows.preparation.building.tensorrt_requests import BuildReport
from flows.preparation.engines import EngineOptions, engine_step, stage_name
from flows.preparation.prepare import store_cell
from flows.preparation.profiling.gpu import GpuMeasured, ProfiledGpu, measure_on_gpu
from flows.preparation.profiling.measure import CellKey, MeasureLimits, ProfileTarget, Progress
from flows.preparation.splitting.model import SplitModel
from flows.workspace import Workspace
from triton_backend.contract.errors import InputError
from warehouse.profiles import measured_cells


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuClassToProfile:
    """A GPU class, a GPU of it on this machine, and the divisors it is wanted with."""

    name: str
    gpu: ProfiledGpu
    divisors: tuple[int, ...] = (1,)


def gpu_profile_step(
    work: Workspace,
    split: SplitModel,
    wanted: GpuClassToProfile,
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
    with work.open() as warehouse:
        keys = [target.artifact.name for target in targets]
        done = {CellKey(split.name, *c) for c in measured_cells(warehouse, split.key, keys)}
        measured = measure_on_gpu(
            targets,
            wanted.gpu,
            done=done,
            store=lambda cell: store_cell(warehouse, split.key, cell),
            progress=progress,
            limits=limits,
        )
    return report, measured


def targets_of(
    split: SplitModel, wanted: GpuClassToProfile, report: BuildReport, batches: Sequence[int]
) -> list[ProfileTarget]:
    """What to measure of a model.

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
            divisors=wanted.divisors,
            batches=tuple(batches),
        )
        for block, name in enumerate(names)
    ]
