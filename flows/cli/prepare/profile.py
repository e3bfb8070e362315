"""`profile`: every block measured that was not measured yet."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.console import note, print_json, progress, show, table
from flows.cli.prepare.selection import EngineBuilder, Names, model_names, onnxruntime_classes
from flows.cli.registry import command
from flows.cli.shared_options import (
    WAREHOUSE,
    AsJson,
    ClusterFile,
    Precision,
    Runtime,
    WarehouseFile,
    pairs,
)
from triton_backend.contract.errors import InputError
from triton_backend.contract.shares import LOADED, SOLO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from flows.preparation.building.onnxruntime import OnnxRuntimeClass
    from flows.preparation.building.tensorrt.engines import EngineOptions
    from flows.preparation.profiling.measure import CellKey, MeasureLimits
    from flows.preparation.profiling.model_profile import Prepared
    from flows.preparation.profiling.pairs import PairKey
    from flows.workspace import Workspace


class Basis(StrEnum):
    """The load on the rest of a device while a part is measured."""

    LOADED = LOADED
    SOLO = SOLO


@dataclass(frozen=True, slots=True, kw_only=True)
class OnGpus:
    """A measurement of engines.

    Attributes:
        options: how missing engines are built.
        gpus: index or UUID of the GPU that stands for a class, by class.
        limits: of every cell.
        bases: loads on the rest of a GPU while a part is measured; empty: the class's own.
    """

    options: "EngineOptions"
    gpus: "Mapping[str, str]"
    limits: "MeasureLimits"
    bases: "Iterable[str]"

    def __post_init__(self) -> None:
        if not self.gpus:
            reason = "name a GPU for each class to measure, for instance --gpu L4=0"
            raise InputError("--gpu", reason)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Batch sizes and parts to measure, and for how long."""

    batch: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N",
            min=1,
            help="A batch size to measure; repeat it for several. By default all up to the "
            "split's largest.",
        ),
    ] = None
    basis: Annotated[
        list[Basis] | None,
        typer.Option(
            metavar="loaded|solo",
            help="Measure with all parts of the device at work (`loaded`) or one alone "
            "(`solo`). By default classes with divisors are measured loaded, classes with "
            "percents solo.",
        ),
    ] = None
    seconds: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.01,
            max=1e4,
            help="Measure each cell for at most this long, after its warm-up.",
        ),
    ] = 0.5

    def limits(self) -> "MeasureLimits":
        """Of every cell."""
        from flows.preparation.profiling.measure import MeasureLimits

        return MeasureLimits(max_seconds=self.seconds)


@command(
    "profile",
    "poolpipe profile resnet --cluster cluster.yaml",
    "poolpipe profile resnet --cluster gpus.yaml --runtime tensorrt --gpu L4=0",
    "poolpipe profile --cluster cut.yaml --pairs",
)
def profile(
    names: Names = None,
    *,
    cluster: ClusterFile,
    measured: Measured,
    runtime: Runtime = "onnxruntime",
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLASS=GPU",
            rich_help_panel="TensorRT",
            help="Index or UUID of the GPU that stands for a class.",
        ),
    ] = None,
    precision: Precision = "fp32",
    builder: EngineBuilder,
    side_by_side: Annotated[
        bool,
        typer.Option(
            "--pairs",
            help="Measure pairs of models side by side on parts of one device, for classes with "
            "vgpu_percents. `interference fit` and `profiles export` read the pairs from "
            "the warehouse.",
        ),
    ] = False,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Measure every block that was not measured yet, or every pair of models.

    On every class of the cluster, size of vGPU and batch: equal parts while all of them work,
    percents alone. An interruption loses one cell.
    """
    from flows.workspace import workspace

    work = workspace(warehouse)
    if runtime == "tensorrt":
        found = model_names(work, names, on_gpus=True)
        asked = OnGpus(
            options=builder.options(measured.batch, precision),
            gpus=pairs("--gpu", gpu),
            limits=measured.limits(),
            bases=measured.basis or (),
        )
        run = _gpu_pairs if side_by_side else _profile_engines
        run(work, found, cluster, asked, as_json=as_json)
        return
    if side_by_side:
        _profile_pairs(work, model_names(work, names), cluster, measured, as_json=as_json)
        return
    classes = onnxruntime_classes(cluster, measured.basis or ())
    _profile_blocks(work, model_names(work, names), classes, measured, as_json=as_json)


def _profile_blocks(
    work: "Workspace",
    names: list[str],
    classes: "Sequence[OnnxRuntimeClass]",
    asked: Measured,
    *,
    as_json: bool,
) -> None:
    """Measure every block on every class."""
    from flows.preparation.profiling.model_profile import profile_step
    from flows.preparation.splitting.stored_split import read_split

    with progress("profiling") as report:

        def on_cell(at: int, of: int, key: "CellKey") -> None:
            place = f"block {key.block} on {key.part.text()}, batch {key.batch}"
            report(f"{key.model}: cell {at + 1} of {of}, {place}")

        done = [
            profile_step(
                work,
                read_split(work, name),
                classes,
                batches=asked.batch,
                limits=asked.limits(),
                progress=on_cell,
            )
            for name in names
        ]
    if as_json:
        print_json({model.name: _prepared(model) for model in done})
        return
    for model in done:
        show(model.in_words())
    rows = [
        (model.name, gpu_class, f"1/{divisor}", batch, f"{ratio:.3f}")
        for model in done
        for (gpu_class, divisor, batch), ratio in sorted(model.ratios.items())
    ]
    ratio = "sum of blocks / whole model"
    show(table(("model", "class", "vGPU", "batch", ratio), rows))
    if rows:
        show(
            f"{ratio}: plans add blocks up; above 1 the model is faster than planned, below slower"
        )


def _prepared(model: "Prepared") -> dict[str, object]:
    return {
        "blocks": model.blocks,
        "artifacts": {"built": model.artifacts_built, "reused": model.artifacts_reused},
        "cells": {"measured": model.cells_measured, "reused": model.cells_reused},
        "sum_ratios": [
            {"gpu_class": c, "vgpu_divisor": v, "batch": b, "ratio": ratio}
            for (c, v, b), ratio in sorted(model.ratios.items())
        ],
    }


def _profile_pairs(
    work: "Workspace",
    names: list[str],
    cluster: Path,
    asked: Measured,
    *,
    as_json: bool,
) -> None:
    """Measure pairs of models on every class that is cut into percents."""
    from flows.files import read_cluster
    from flows.preparation.profiling.pairs import measure_pairs, on_cores
    from flows.preparation.splitting.stored_split import read_split

    known = read_cluster(cluster)
    devices = [known_class.device for known_class in onnxruntime_classes(cluster)]
    cut = [device for device in devices if known.gpu_class(device.name).vgpu_percents]
    if not cut:
        raise InputError(f"{cluster}, gpu_classes", "none that runs here lists vgpu_percents")
    splits = [read_split(work, name) for name in names]
    with progress("measuring pairs") as report:
        measured = {
            device.name: measure_pairs(
                work,
                splits,
                known.gpu_class(device.name),
                on_cores(work, device),
                batches=asked.batch,
                limits=asked.limits(),
                progress=_on_pair(report),
            )
            for device in cut
        }
    _show_pairs(measured, as_json=as_json)


def _gpu_pairs(
    work: "Workspace",
    names: list[str],
    cluster: Path,
    asked: OnGpus,
    *,
    as_json: bool,
) -> None:
    """Measure pairs of models in the least and the largest batch."""
    from flows.files import read_cluster
    from flows.preparation.profiling.gpu import ProfiledGpu
    from flows.preparation.profiling.pairs import measure_pairs, on_gpu
    from flows.preparation.splitting.stored_split import read_split
    from triton_backend.runtimes.mps import MpsDaemon

    known = read_cluster(cluster)
    splits = [read_split(work, name) for name in names]
    ends = sorted({min(asked.options.batches), max(asked.options.batches)})
    measured: dict[str, int] = {}
    with progress("measuring pairs") as report, TemporaryDirectory(prefix="mps-") as folder:
        for name, gpu in asked.gpus.items():
            daemon = MpsDaemon.in_folder(Path(folder), ())
            device = on_gpu(work, name, ProfiledGpu(name=gpu, daemon=daemon), asked.options)
            daemon.start()
            try:
                measured[name] = measure_pairs(
                    work,
                    splits,
                    known.gpu_class(name),
                    device,
                    batches=ends,
                    limits=asked.limits,
                    progress=_on_pair(report),
                )
            finally:
                daemon.stop_if_idle()
    _show_pairs(measured, as_json=as_json)


def _on_pair(report: "Callable[[str], None]") -> "Callable[[int, int, PairKey], None]":
    def say(at: int, of: int, key: "PairKey") -> None:
        report(f"{key.gpu_class}: pair {at + 1} of {of}, {key.one.model} and {key.other.model}")

    return say


def _show_pairs(measured: "Mapping[str, int]", *, as_json: bool) -> None:
    if as_json:
        print_json({"pairs_measured": measured})
        return
    show(table(("class", "pairs measured"), list(measured.items())))


def _profile_engines(
    work: "Workspace",
    names: list[str],
    cluster: Path,
    asked: OnGpus,
    *,
    as_json: bool,
) -> None:
    """Build missing engines and measure every block."""
    from flows.files import read_cluster
    from flows.preparation.profiling.gpu import ProfiledGpu, ProfiledGpuClass, gpu_profile_step
    from flows.preparation.splitting.stored_split import read_split
    from triton_backend.runtimes.mps import MpsDaemon

    known = read_cluster(cluster)
    rows: list[tuple[str, str, int]] = []
    with progress("profiling") as say_more, TemporaryDirectory(prefix="mps-") as folder:
        for gpu_class, gpu in asked.gpus.items():
            wanted = ProfiledGpuClass(
                name=gpu_class,
                gpu=ProfiledGpu(name=gpu, daemon=MpsDaemon.in_folder(Path(folder), ())),
                parts=known.gpu_class(gpu_class).parts(asked.bases),
            )
            for name in names:
                say_more(f"measuring {name} on {gpu_class}")
                _, measured = gpu_profile_step(
                    work, read_split(work, name), wanted, asked.options, limits=asked.limits
                )
                rows.append((name, gpu_class, measured.cells))
                if measured.left_out is not None:
                    note(f"parts of {gpu_class} left out: {measured.left_out}")
    if as_json:
        print_json([{"model": m, "gpu_class": c, "cells_measured": n} for m, c, n in rows])
        return
    show(table(("model", "class", "cells measured"), rows))
