"""TensorRT engines of a split model: every block, the whole model, or the stages of a plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flows.building.tensorrt import RUNTIME, build_engines
from flows.building.tensorrt_half import convert_chain
from flows.building.tensorrt_requests import (
    DEFAULT_BATCHES,
    BuildReport,
    EngineRequest,
    EngineSettings,
)
from flows.clock import now_utc
from flows.planning.decode import plan_identity
from flows.splitting.extracting import extract_stage
from flows.splitting.model import SplitModel
from flows.steps.planning import store_plan
from flows.steps.prepare import read_split
from flows.steps.workspace import Workspace
from triton_backend.core.errors import InputError
from triton_backend.core.plan import Pipeline, Plan, Stage
from warehouse.profiles import add_artifact

StageBlocks = tuple[int, int]
PRECISIONS = ("fp32", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How engines of a model are built.

    Attributes:
        batches: batch sizes, each with an optimisation profile of its own.
        precision: `fp32` takes stages as they are; `fp16` converts them, boundaries included.
        settings: library, cards, limits.
    """

    batches: tuple[int, ...] = DEFAULT_BATCHES
    precision: str = "fp32"
    settings: EngineSettings = field(default_factory=EngineSettings)

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise InputError("precision", f"{self.precision!r} is none of {', '.join(PRECISIONS)}")


def blocks_and_whole(split: SplitModel) -> list[list[StageBlocks]]:
    """Chains to build before profiling: all blocks in order, and the whole model."""
    blocks = [(block, block + 1) for block in range(split.blocks)]
    return [blocks, [(0, split.blocks)]]


def engine_step(
    work: Workspace,
    split: SplitModel,
    classes: Sequence[str],
    options: EngineOptions,
    chains: Sequence[Sequence[StageBlocks]] | None = None,
) -> BuildReport:
    """Build or find engines for GPU classes, and store which artifact runs which blocks.

    Args:
        work: where artifacts and the warehouse are.
        split: the model.
        classes: GPU classes to build for.
        options: batches and precision.
        chains: stages [first, last), each chain covering the model; None: blocks and the whole.

    Returns:
        what was built, was there, and could not be built; a plan must leave out the last.

    Raises:
        InputError: TensorRT is not installed, or the model cannot be had in fp16.
    """
    places: dict[str, StageBlocks] = {}
    requests: list[EngineRequest] = []
    for chain in chains if chains is not None else blocks_and_whole(split):
        files, notes = _stage_files(split, chain, options.precision)
        for blocks, file in zip(chain, files, strict=True):
            name = stage_name(split, blocks)
            places[name] = blocks
            requests += [
                EngineRequest(
                    stage=name, onnx=file, gpu_class=c, batches=options.batches, notes=notes
                )
                for c in classes
            ]
    report = build_engines(requests, work.state.artifacts, options.settings)
    now = now_utc()
    with work.open() as warehouse:
        for result in report.results:
            place = (*places[result.request.stage], result.request.gpu_class)
            add_artifact(warehouse, result.key, split.key, place, RUNTIME, now)
    return report


def stage_name(split: SplitModel, blocks: StageBlocks) -> str:
    """How reports call a stage."""
    return f"{split.name} blocks [{blocks[0]}, {blocks[1]})"


def _stage_files(
    split: SplitModel, chain: Sequence[StageBlocks], precision: str
) -> tuple[list[Path], Mapping[str, Any]]:
    files = [extract_stage(split, first, last) for first, last in chain]
    if precision == "fp32":
        return files, {}
    # Which boundaries there are decides which tensors are fp16: a folder per way to cut.
    cuts = "-".join(str(first) for first, _ in chain)
    converted = convert_chain(files, split.folder / "fp16" / cuts)
    return list(converted.stages), {"precision_loss": converted.loss.to_dict()}


def attach_engines(work: Workspace, plan: Plan, settings: EngineSettings) -> Plan:
    """The same plan with an fp32 engine named for every stage; stored under its new id.

    Each pipeline's engines are built for the batch sizes 1, 2, 4, … up to its own.

    Raises:
        InputError: a model was never split here, or an engine cannot be built.
    """
    models = tuple(
        replace(
            model,
            pipelines=tuple(
                _with_engines(work, read_split(work, model.name), pipeline, settings)
                for pipeline in model.pipelines
            ),
        )
        for model in plan.models
    )
    plan = replace(plan, models=models)
    plan = replace(plan, plan_id=plan_identity(plan))
    store_plan(work, plan)
    return plan


def _with_engines(
    work: Workspace, split: SplitModel, pipeline: Pipeline, settings: EngineSettings
) -> Pipeline:
    options = EngineOptions(batches=batches_up_to(pipeline.batch), settings=settings)

    def built(stage: Stage) -> Stage:
        report = engine_step(work, split, [stage.gpu_class], options, [[stage.blocks]])
        if report.failures:
            raise InputError(f"engine of {split.name!r}", str(report.failures[0]))
        return replace(stage, artifact=report.results[0].key)

    return replace(pipeline, stages=tuple(map(built, pipeline.stages)))


def batches_up_to(largest: int) -> tuple[int, ...]:
    """1, 2, 4, … and `largest` itself."""
    powers = [1 << exponent for exponent in range(largest.bit_length())]
    return tuple(sorted({*(p for p in powers if p <= largest), largest}))
