"""TensorRT engines of a split model: every block, the whole model, or the stages of a plan."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.clock import now_utc
from flows.preparation.building.tensorrt.build import RUNTIME, build_engines
from flows.preparation.building.tensorrt.half import convert_chain
from flows.preparation.building.tensorrt.opsets import opset_of, readable_stages
from flows.preparation.building.tensorrt.requests import (
    DEFAULT_BATCHES,
    BuildReport,
    EngineRequest,
    EngineSettings,
)
from flows.preparation.splitting.extracting import extract_stage
from flows.preparation.splitting.model import SplitModel
from flows.workspace import Workspace
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.base import Artifact
from warehouse.details import BuildFailure, add_build_failure
from warehouse.profiles import add_artifact, newest_artifacts

StageBlocks = tuple[int, int]
HALF = "fp16"
PRECISIONS = ("fp32", HALF)


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
) -> BuildReport:
    """Build or find engines of all blocks and the whole model.

    Store which runs which blocks, and what failed.

    Args:
        work: where artifacts and the warehouse are.
        split: the model.
        classes: GPU classes to build for.
        options: batches and precision.

    Returns:
        what was built, was there, and could not be built; a plan must leave out the last.

    Raises:
        InputError: TensorRT is not installed, or the model cannot be had in fp16.
    """
    chains = [
        [Place(blocks, tuple(classes), options.precision) for blocks in chain]
        for chain in blocks_and_whole(split)
    ]
    return build_chains(work, split, chains, options)


@dataclass(frozen=True, slots=True)
class Place:
    """A stage [first, last), and the GPU classes and precision that it is wanted for."""

    blocks: StageBlocks
    classes: tuple[str, ...]
    precision: str


def build_chains(
    work: Workspace, split: SplitModel, chains: Sequence[Sequence[Place]], options: EngineOptions
) -> BuildReport:
    """Build chains of stages, each covering the model."""
    blocks_of: dict[str, StageBlocks] = {}
    requests: list[EngineRequest] = []
    for chain in chains:
        for place, (file, notes) in zip(chain, _stage_files(split, chain), strict=True):
            name = stage_name(split, place.blocks)
            blocks_of[name] = place.blocks
            requests += [
                EngineRequest(
                    stage=name, onnx=file, gpu_class=c, batches=options.batches, notes=notes
                )
                for c in place.classes
            ]
    report = build_engines(requests, work.state.artifacts, options.settings)
    now = now_utc()
    with work.open() as warehouse:
        for result in report.results:
            place = (*blocks_of[result.request.stage], result.request.gpu_class)
            add_artifact(warehouse, result.key, split.key, place, RUNTIME, now)
        for failed in report.failures:
            first, last = blocks_of[failed.request.stage]
            failure = BuildFailure(
                first_block=first,
                last_block=last,
                gpu_class=failed.request.gpu_class,
                runtime=RUNTIME,
                reason=str(failed),
            )
            add_build_failure(warehouse, split.key, failure, now)
    return report


def whole_engine(
    work: Workspace, split: SplitModel, gpu_class: str, options: EngineOptions
) -> Path:
    """Folder of the engine of a whole model, built or found.

    Raises:
        InputError: it cannot be built, with the reason.
    """
    place = Place((0, split.blocks), (gpu_class,), options.precision)
    report = build_chains(work, split, [[place]], options)
    if report.failures:
        raise InputError(f"engine of {split.name!r}", str(report.failures[0]))
    return report.results[0].folder


def stage_name(split: SplitModel, blocks: StageBlocks) -> str:
    """How reports call a stage."""
    return f"{split.name} blocks [{blocks[0]}, {blocks[1]})"


def _stage_files(split: SplitModel, chain: Sequence[Place]) -> list[tuple[Path, Mapping[str, Any]]]:
    """The ONNX file of every stage in its precision, with what is to be noted of it."""
    originals = [extract_stage(split, *place.blocks) for place in chain]
    files = readable_stages(originals, split.folder / "converted")
    noted: dict[str, Any] = {}
    if files != originals:
        noted["converted_from_opset"] = opset_of(originals[0])
    if not any(place.precision == HALF for place in chain):
        return [(file, noted) for file in files]
    # Which boundaries there are decides which tensors are fp16: a folder per way to cut.
    cuts = "-".join(str(place.blocks[0]) for place in chain)
    converted = convert_chain(files, split.folder / "fp16" / cuts)
    notes = noted | {"precision_loss": converted.loss.to_dict()}
    return [
        (half, notes) if place.precision == HALF else (file, noted)
        for place, file, half in zip(chain, files, converted.stages, strict=True)
    ]


def measured_precisions(work: Workspace, split: SplitModel) -> dict[str, str]:
    """Precision of the engines that a model was last measured with, by GPU class."""
    with work.open(read_only=True) as warehouse:
        artifacts = newest_artifacts(warehouse, split.name)
    found: dict[str, str] = {}
    for (gpu_class, _), key in artifacts.items():
        with contextlib.suppress(InputError):  # it is no longer here
            options = Artifact.read(work.state.artifacts / key).options
            # Stages at the model's ends carry clients' fp32 too: `fp16+fp32`.
            if HALF in str(options.get("precision", "")).split("+"):
                found[gpu_class] = HALF
    return found


def batches_up_to(largest: int) -> tuple[int, ...]:
    """1, 2, 4, … and `largest` itself."""
    powers = [1 << exponent for exponent in range(largest.bit_length())]
    return tuple(sorted({*(p for p in powers if p <= largest), largest}))
