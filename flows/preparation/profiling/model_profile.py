"""Every block of a model measured in onnxruntime, and the whole beside the sum of its blocks.

What an earlier run left is found by content, and said to be reused.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from flows.clock import Stopwatch, now_utc
from flows.preparation.building.keys import BuiltArtifact
from flows.preparation.building.onnxruntime import OnnxRuntimeClass, build_step, classes_for
from flows.preparation.profiling.copies import Copies
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
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.runtimes.onnxruntime import require_cuda
from warehouse.profiles import (
    CellRecord,
    add_cells,
    add_sum_ratio,
    measured_cells,
    read_profile,
    sum_ratios,
)

STORE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Result of preparing a model; `ratios`: sum of blocks / whole by (class, divisor, batch)."""

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
    classes: Sequence[OnnxRuntimeClass],
    *,
    batches: Sequence[int] | None = None,
    limits: MeasureLimits | None = None,
    progress: Progress | None = None,
    processes: Copies | None = None,
) -> Prepared:
    """Measure every cell that is missing and the whole model beside the sum of its blocks.

    An interruption loses the cell that was being measured; a kill, those of the last two seconds.
    `processes` are left running for the next model; None starts some and ends them.

    Raises:
        InputError: an artifact cannot be loaded, or a batch is beyond what the split was checked
            at.
    """
    batches = tuple(batches or range(1, split.max_batch + 1))
    if not set(batches) <= set(range(1, split.max_batch + 1)):
        raise InputError("batches", f"{list(batches)} exceed the split's {split.max_batch}")
    classes = classes_for(split, classes)
    for each in classes:
        _check_runs_here(each)
    artifacts = build_step(work, split, classes)
    targets = _targets(split, classes, artifacts, batches)
    with Copies() if processes is None else nullcontext(processes) as copies:
        with CellStore(work, split) as store:
            measured = measure_cells(
                targets,
                done=cells_done(work, split, targets),
                store=store.add,
                progress=progress,
                limits=limits,
                processes=copies,
            )
        ratios = _ratios(work, split, classes, artifacts, limits, copies, fresh=measured > 0)
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


def _check_runs_here(wanted: OnnxRuntimeClass) -> None:
    """Refuse a class that nothing here could measure, before anything is built.

    Raises:
        InputError: onnxruntime has no CUDA, or parts of a GPU are asked for.
    """
    if not wanted.device.on_gpu:
        return
    where = f"class {wanted.device.name!r}"
    require_cuda(where)
    if any(share != WHOLE_GPU for share, _ in wanted.parts):
        raise InputError(where, "parts of a GPU are measured with engines: `--runtime tensorrt`")


def _targets(
    split: SplitModel,
    classes: Sequence[OnnxRuntimeClass],
    artifacts: Mapping[str, Mapping[tuple[int, int], BuiltArtifact]],
    batches: tuple[int, ...],
) -> list[ProfileTarget]:
    return [
        ProfileTarget(
            model=split.name,
            block=block,
            gpu_class=c.device.name,
            artifact=artifacts[c.device.name][block, block + 1].folder,
            parts=c.parts,
            batches=batches,
        )
        for c in classes
        for block in range(split.blocks)
    ]


def cells_done(
    work: Workspace, split: SplitModel, targets: Sequence[ProfileTarget]
) -> set[CellKey]:
    """Cells of a model that were measured with exactly these artifacts."""
    keys = [target.artifact.name for target in targets]
    with work.open(read_only=True) as warehouse:
        return {CellKey(split.name, *c) for c in measured_cells(warehouse, split.key, keys)}


class CellStore:
    """Cells on their way to the warehouse, which is open only while some of them are stored.

    They are stored every two seconds, and at the end however it comes: opening the file costs more
    than measuring a quick cell, and another process finds the file free in between.
    """

    def __init__(self, work: Workspace, split: SplitModel) -> None:
        self._work, self._split = work, split
        self._waiting: list[CellRecord] = []
        self._since = Stopwatch()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._flush()

    def add(self, cell: MeasuredCell) -> None:
        """Take one cell, which is complete in itself."""
        self._waiting.append(
            CellRecord(
                block=cell.key.block,
                gpu_class=cell.key.gpu_class,
                share=cell.key.share,
                basis=cell.key.basis,
                batch=cell.key.batch,
                mean_us=cell.latency.mean_us,
                artifact=cell.artifact,
                p50_us=cell.latency.p50_us,
                p99_us=cell.latency.p99_us,
                runs=cell.latency.runs,
                interval=cell.latency.ci_relative,
            )
        )
        if self._since.seconds() >= STORE_SECONDS:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            with self._work.open() as warehouse:
                add_cells(warehouse, self._split.key, self._waiting, now_utc())
        self._waiting.clear()
        self._since.restart()


def _ratios(
    work: Workspace,
    split: SplitModel,
    classes: Sequence[OnnxRuntimeClass],
    artifacts: Mapping[str, Mapping[tuple[int, int], BuiltArtifact]],
    limits: MeasureLimits | None,
    processes: Copies,
    *,
    fresh: bool,
) -> dict[tuple[str, int, int], float]:
    """Sum of blocks over whole at the least batch of every class, measured where cells were.

    The one block of a model is its whole.
    """
    with work.open(read_only=True) as warehouse:
        known = sum_ratios(warehouse, split.key)
    names = [c.device.name for c in classes]
    missing = [n for n in names if fresh or not any(place[0] == n for place in known)]
    if missing:
        with work.open(read_only=True) as warehouse:
            profile, _ = read_profile(warehouse, split.name, missing)
        targets = [
            WholeTarget(
                model=split.name,
                gpu_class=name,
                artifact=artifacts[name][0, split.blocks].folder,
                blocks_us={(1, least): float(whole.latency_us[:, least - 1].sum())},
            )
            for name in missing
            if (whole := profile.table(name, WHOLE_GPU)) is not None
            for least in (whole.measured or (1,))[:1]
        ]
        store = partial(_store_ratio, work, split)
        if split.blocks == 1:
            for ratio in (one for target in targets for one in target.of_one_block()):
                store(ratio)
        else:
            measure_ratios(targets, store=store, limits=limits, processes=processes)
        with work.open(read_only=True) as warehouse:
            known = sum_ratios(warehouse, split.key)
    return {place: ratio for place, ratio in known.items() if place[0] in names}


def _store_ratio(work: Workspace, split: SplitModel, ratio: SumRatio) -> None:
    place = (ratio.gpu_class, ratio.vgpu_divisor, ratio.batch)
    with work.open() as warehouse:
        add_sum_ratio(warehouse, split.key, place, (ratio.blocks_us, ratio.whole_us), now_utc())
