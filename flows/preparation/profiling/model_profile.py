"""Every block of a model measured on CPU classes, and the whole model beside the sum of its blocks.

What an earlier run left is found by content, and said to be reused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flows.clock import now_utc
from flows.preparation.building.keys import BuiltArtifact
from flows.preparation.building.onnxruntime import CpuClass, build_step
from flows.preparation.profiling.measure import (
    CellKey,
    MeasuredCell,
    MeasureLimits,
    ProfileTarget,
    Progress,
    cells_of,
    measure_cells,
)
from flows.preparation.profiling.ratio import SumRatio, WholeTarget, measure_ratios
from flows.preparation.splitting.model import SplitModel
from flows.workspace import Workspace
from triton_backend.contract.errors import InputError
from warehouse.db import Warehouse
from warehouse.profiles import (
    CellRecord,
    add_cells,
    add_sum_ratio,
    measured_cells,
    read_profile,
    sum_ratios,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What preparing a model did; `ratios` is sum of blocks / whole by (class, divisor, batch)."""

    name: str
    blocks: int
    split_reused: bool
    artifacts_built: int
    artifacts_reused: int
    cells_measured: int
    cells_reused: int
    ratios: Mapping[tuple[str, int, int], float]

    def in_words(self) -> str:
        """One line for people."""
        split = "reused" if self.split_reused else f"{self.blocks} blocks"
        return (
            f"{self.name}: split {split}; artifacts {self.artifacts_built} built,"
            f" {self.artifacts_reused} reused; cells {self.cells_measured} measured,"
            f" {self.cells_reused} reused"
        )


def profile_step(
    work: Workspace,
    split: SplitModel,
    classes: Sequence[CpuClass],
    *,
    batches: Sequence[int] | None = None,
    limits: MeasureLimits | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """Measure every cell that is missing and the whole model beside the sum of its blocks.

    Cells are stored one by one, so an interruption loses at most one.

    Raises:
        InputError: an artifact cannot be loaded, or a batch is beyond what the split was checked
            at.
    """
    batches = tuple(batches or range(1, split.max_batch + 1))
    if not set(batches) <= set(range(1, split.max_batch + 1)):
        raise InputError("batches", f"{list(batches)} exceed the split's {split.max_batch}")
    artifacts = build_step(work, split, classes)
    targets = _targets(split, classes, artifacts, batches)
    with work.open() as warehouse:
        cells = [target.artifact.name for target in targets]
        done = {CellKey(split.name, *c) for c in measured_cells(warehouse, split.key, cells)}
        measured = measure_cells(
            targets,
            done=done,
            store=lambda cell: store_cell(warehouse, split.key, cell),
            progress=progress,
            limits=limits,
        )
        ratios = _ratios(warehouse, split, classes, artifacts, limits, fresh=measured > 0)
    every = [artifact for stages in artifacts.values() for artifact in stages.values()]
    reused = sum(artifact.reused for artifact in every)
    return Prepared(
        name=split.name,
        blocks=split.blocks,
        split_reused=split.reused,
        artifacts_built=len(every) - reused,
        artifacts_reused=reused,
        cells_measured=measured,
        cells_reused=len(cells_of(targets)) - measured,
        ratios=ratios,
    )


def _targets(
    split: SplitModel,
    classes: Sequence[CpuClass],
    artifacts: Mapping[str, Mapping[tuple[int, int], BuiltArtifact]],
    batches: tuple[int, ...],
) -> list[ProfileTarget]:
    return [
        ProfileTarget(
            model=split.name,
            block=block,
            gpu_class=c.device.name,
            artifact=artifacts[c.device.name][block, block + 1].folder,
            divisors=c.divisors,
            batches=batches,
        )
        for c in classes
        for block in range(split.blocks)
    ]


def store_cell(warehouse: Warehouse, model_key: str, cell: MeasuredCell) -> None:
    """Store one cell, which is complete in itself."""
    record = CellRecord(
        block=cell.key.block,
        gpu_class=cell.key.gpu_class,
        vgpu_divisor=cell.key.vgpu_divisor,
        batch=cell.key.batch,
        mean_us=cell.latency.mean_us,
        artifact=cell.artifact,
        p50_us=cell.latency.p50_us,
        p99_us=cell.latency.p99_us,
        runs=cell.latency.runs,
        interval=cell.latency.ci_relative,
    )
    add_cells(warehouse, model_key, [record], now_utc())


def _ratios(
    warehouse: Warehouse,
    split: SplitModel,
    classes: Sequence[CpuClass],
    artifacts: Mapping[str, Mapping[tuple[int, int], BuiltArtifact]],
    limits: MeasureLimits | None,
    *,
    fresh: bool,
) -> dict[tuple[str, int, int], float]:
    """Sum of blocks over whole at batch 1 of every class, measured where cells were."""
    known = sum_ratios(warehouse, split.key)
    names = [c.device.name for c in classes]
    missing = [n for n in names if fresh or (n, 1, 1) not in known]
    if missing:
        profile, _ = read_profile(warehouse, split.name, missing)
        targets = [
            WholeTarget(
                model=split.name,
                gpu_class=name,
                artifact=artifacts[name][0, split.blocks].folder,
                blocks_us={(1, 1): float(profile.latency_us[name, 1][:, 0].sum())},
            )
            for name in missing
            if (name, 1) in profile.latency_us
        ]
        measure_ratios(
            targets, store=lambda ratio: _store_ratio(warehouse, split.key, ratio), limits=limits
        )
    return {
        place: ratio
        for place, ratio in sum_ratios(warehouse, split.key).items()
        if place[0] in names
    }


def _store_ratio(warehouse: Warehouse, model_key: str, ratio: SumRatio) -> None:
    place = (ratio.gpu_class, ratio.vgpu_divisor, ratio.batch)
    add_sum_ratio(warehouse, model_key, place, (ratio.blocks_us, ratio.whole_us), now_utc())
