"""Commands about models that were split: build, profile."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli import options
from flows.cli.options import (
    WAREHOUSE,
    AsJson,
    Capability,
    ClusterFile,
    Library,
    Precision,
    Runtime,
    WarehouseFile,
    example,
)
from flows.cli.output import notes, print_json, progress, show, table

if TYPE_CHECKING:
    from flows.cli.engines import EngineChoices
    from flows.preparation.building.keys import BuiltArtifact
    from flows.preparation.building.onnxruntime import CpuClass
    from flows.preparation.profiling.measure import CellKey
    from flows.preparation.profiling.model_profile import Prepared
    from flows.workspace import Workspace

Names = Annotated[
    list[str] | None, typer.Argument(help="Models that were split; all of them without it.")
]


def add_to(app: typer.Typer) -> None:
    """Register the commands of this group."""
    app.command(
        epilog=example(
            "poolpipe build resnet --cluster cluster.yaml",
            "poolpipe build resnet --cluster gpus.yaml --runtime tensorrt --precision fp16",
        )
    )(build)
    app.command(
        epilog=example(
            "poolpipe profile resnet --cluster cluster.yaml",
            "poolpipe profile resnet --cluster gpus.yaml --runtime tensorrt --gpu L4=0",
        )
    )(profile)


def build(
    names: Names = None,
    *,
    cluster: ClusterFile,
    runtime: Runtime = "onnxruntime",
    precision: Precision = "fp32",
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="tensorrt: batch sizes; 1, 2, 4, 8, 16.")
    ] = None,
    library: Library = None,
    capability: Capability = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Build what GPU classes run of every block and whole model."""
    from flows.preparation.building.onnxruntime import build_step
    from flows.preparation.splitting.stored_split import read_split
    from flows.workspace import workspace

    work = workspace(warehouse)
    if runtime == "tensorrt":
        from flows.cli.engines import build_engines_of

        choices = _engine_choices(batch, precision, library, capability)
        build_engines_of(work, _names(work, names), cluster, choices, as_json=as_json)
        return
    classes = _classes(cluster)
    built: dict[str, dict[str, dict[tuple[int, int], BuiltArtifact]]] = {}
    with progress("building") as report:
        for name in _names(work, names):
            report(f"building {name}")
            built[name] = build_step(work, read_split(work, name), classes)
    if as_json:
        print_json({name: _keys(by_class) for name, by_class in built.items()})
        return
    rows = [
        (name, gpu_class, len(stages), sum(artifact.reused for artifact in stages.values()))
        for name, by_class in built.items()
        for gpu_class, stages in by_class.items()
    ]
    show(table(("model", "class", "artifacts", "of them reused"), rows))


def _engine_choices(
    batch: list[int] | None, precision: str, library: str | None, capability: list[str] | None
) -> "EngineChoices":
    from flows.cli.engines import EngineChoices

    return EngineChoices(
        batches=tuple(sorted(set(batch))) if batch else None,
        precision=precision,
        library=library,
        capabilities=options.pairs("--capability", capability),
    )


def _keys(
    by_class: "dict[str, dict[tuple[int, int], BuiltArtifact]]",
) -> dict[str, list[dict[str, object]]]:
    return {
        gpu_class: [
            {"blocks": list(stage), "artifact": artifact.key, "reused": artifact.reused}
            for stage, artifact in stages.items()
        ]
        for gpu_class, stages in by_class.items()
    }


def profile(
    names: Names = None,
    *,
    cluster: ClusterFile,
    batch: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=1, help="Batch sizes; all up to the split's without it."),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            metavar="N", min=0.01, max=1e4, help="Most seconds for one cell, warm-up apart."
        ),
    ] = 0.5,
    runtime: Runtime = "onnxruntime",
    gpu: Annotated[
        list[str] | None,
        typer.Option(metavar="CLASS=GPU", help="tensorrt: index or uuid of a GPU of a class."),
    ] = None,
    precision: Precision = "fp32",
    library: Library = None,
    capability: Capability = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Measure every block that was not measured yet.

    On every class of the cluster, vGPU divisor and batch; an interruption loses one cell.
    """
    from flows.preparation.profiling.measure import MeasureLimits
    from flows.preparation.profiling.model_profile import profile_step
    from flows.preparation.splitting.stored_split import read_split
    from flows.workspace import workspace

    work, limits = workspace(warehouse), MeasureLimits(max_seconds=seconds)
    if runtime == "tensorrt":
        from flows.cli.engines import GpuChoices, profile_engines_of

        engines = _engine_choices(batch, precision, library, capability)
        gpus = GpuChoices(gpus=options.pairs("--gpu", gpu), limits=limits)
        profile_engines_of(work, _names(work, names), cluster, (engines, gpus), as_json=as_json)
        return
    classes = _classes(cluster)
    with progress("profiling") as report:

        def on_cell(at: int, of: int, key: "CellKey") -> None:
            place = f"block {key.block} on {key.gpu_class} 1/{key.vgpu_divisor}, batch {key.batch}"
            report(f"{key.model}: cell {at + 1} of {of}, {place}")

        done = [
            profile_step(
                work,
                read_split(work, name),
                classes,
                batches=batch,
                limits=limits,
                progress=on_cell,
            )
            for name in _names(work, names)
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
    show(table(("model", "class", "vGPU", "batch", "blocks' sum / whole"), rows))


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


def _classes(cluster: Path) -> "list[CpuClass]":
    """CPU classes of a cluster file with their divisors; classes without a runtime are named."""
    from flows.files import read_cluster, read_device_classes
    from flows.preparation.building.onnxruntime import CpuClass
    from triton_backend.contract.errors import InputError

    known, devices = read_cluster(cluster), read_device_classes(cluster)
    if not devices:
        raise InputError(
            f"{cluster}, gpu_classes", "none has a `runtime: {cores, threads, stretch}` to run here"
        )
    without = [c.name for c in known.gpu_classes if c.name not in devices]
    notes(f"class {name} has no runtime here, left out" for name in without)
    return [
        CpuClass(device=device, divisors=known.gpu_class(name).vgpu_divisors)
        for name, device in devices.items()
    ]


def _names(work: "Workspace", names: Iterable[str] | None) -> list[str]:
    """The models asked for, or all that were split here."""
    from triton_backend.contract.errors import InputError
    from warehouse.profiles import find_model, model_names

    if names:
        return list(names)
    with work.open(read_only=True) as store:
        found = [n for n in model_names(store) if find_model(store, n).folder is not None]
    if not found:
        raise InputError(str(work.warehouse), "no model was split; `poolpipe split` does that")
    return found
