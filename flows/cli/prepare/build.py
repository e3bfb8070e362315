"""`build`: what GPU classes run of every block and whole model."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.console import notes, print_json, progress, show, table
from flows.cli.prepare.selection import (
    EngineBuilder,
    Names,
    gpu_classes,
    model_names,
    onnxruntime_classes,
)
from flows.cli.registry import command
from flows.cli.shared_options import (
    WAREHOUSE,
    AsJson,
    ClusterFile,
    Precision,
    Runtime,
    WarehouseFile,
)

if TYPE_CHECKING:
    from flows.preparation.building.keys import BuiltArtifact
    from flows.preparation.building.tensorrt.engines import EngineOptions
    from flows.preparation.building.tensorrt.requests import BuildReport
    from flows.workspace import Workspace

FAILURE = 1


@command(
    "build",
    "poolpipe build resnet --cluster cluster.yaml",
    "poolpipe build resnet --cluster gpus.yaml --runtime tensorrt --precision fp16",
)
def build(
    names: Names = None,
    *,
    cluster: ClusterFile,
    runtime: Runtime = "onnxruntime",
    precision: Precision = "fp32",
    batch: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N",
            min=1,
            rich_help_panel="TensorRT",
            help="A batch size to build for; repeat it for several. By default 1, 2, 4, 8 and 16.",
        ),
    ] = None,
    builder: EngineBuilder,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Build the artifacts that GPU classes run, for every block and whole model."""
    from flows.preparation.building.onnxruntime import build_step
    from flows.preparation.splitting.stored_split import read_split
    from flows.workspace import workspace

    work = workspace(warehouse)
    if runtime == "tensorrt":
        options = builder.options(batch, precision)
        _build_engines(
            work, model_names(work, names, on_gpus=True), cluster, options, as_json=as_json
        )
        return
    classes = onnxruntime_classes(cluster)
    built: dict[str, dict[str, dict[tuple[int, int], BuiltArtifact]]] = {}
    with progress("building") as report:
        for name in model_names(work, names):
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


def _build_engines(
    work: "Workspace",
    names: list[str],
    cluster: Path,
    options: "EngineOptions",
    *,
    as_json: bool,
) -> None:
    """Build engines of every block and of whole models; exit 1 where one could not be built."""
    from flows.preparation.building.tensorrt.engines import engine_step
    from flows.preparation.splitting.stored_split import read_split

    classes = gpu_classes(cluster)
    reports: dict[str, BuildReport] = {}
    with progress("building") as say_more:
        for name in names:
            say_more(f"building engines of {name}")
            reports[name] = engine_step(work, read_split(work, name), classes, options)
    if as_json:
        print_json({name: report.to_dict() for name, report in reports.items()})
    else:
        rows = [
            (name, f"{r.library} {r.library_version}", r.built, r.reused, len(r.failures))
            for name, r in reports.items()
        ]
        show(table(("model", "library", "built", "reused", "failed"), rows))
    left_out = [line for report in reports.values() for line in _left_out(report)]
    notes([*_converted(reports), *left_out])
    if left_out:
        raise typer.Exit(FAILURE)


def _converted(reports: Mapping[str, "BuildReport"]) -> list[str]:
    """One line for each model of an opset that TensorRT does not read."""
    from flows.preparation.building.tensorrt.opsets import LEAST_OPSET

    found: dict[str, int] = {}
    for name, report in reports.items():
        for one in (*report.results, *report.failures):
            if "converted_from_opset" in one.request.notes:
                found[name] = one.request.notes["converted_from_opset"]
    return [
        f"{name} is of opset {opset}: converted to opset {LEAST_OPSET} for TensorRT, same answers"
        for name, opset in found.items()
    ]


def _left_out(report: "BuildReport") -> list[str]:
    """One line per reason: a card that is not supported is one reason for every stage."""
    stages: dict[tuple[str, str], list[str]] = {}
    for failure in report.failures:
        node = "" if failure.node is None else f"node {failure.node!r}: "
        key = (failure.request.gpu_class, node + failure.reason)
        stages.setdefault(key, []).append(failure.request.stage)
    return [
        f"left out for {gpu_class}: {names[0]}"
        + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        + f": {reason}"
        for (gpu_class, reason), names in stages.items()
    ]
