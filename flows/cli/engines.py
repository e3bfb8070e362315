"""`engines`, and `--runtime tensorrt` of `build` and `profile`: TensorRT for GPU classes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flows.cli.options import (
    WAREHOUSE,
    AsJson,
    Capability,
    Library,
    WarehouseFile,
    example,
    pairs,
)
from flows.cli.output import note, notes, print_json, progress, show, table

if TYPE_CHECKING:
    from flows.preparation.building.tensorrt.engines import EngineOptions
    from flows.preparation.building.tensorrt.requests import BuildReport
    from flows.preparation.profiling.measure import MeasureLimits
    from flows.workspace import Workspace

FAILURE = 1


def add_to(app: typer.Typer) -> None:
    """Register the commands of this group."""
    app.command(epilog=example("poolpipe engines plan.json -o served.json"))(engines)
    app.command(epilog=example("poolpipe layer-times resnet50 --class L4 -o times.json"))(
        layer_times
    )


def engines(
    plan: Annotated[str, typer.Argument(help="A plan.json, or the id of a stored plan.")],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The plan with its engines named.")
    ] = Path("plan.json"),
    precision: Annotated[
        Literal["fp32", "fp16"] | None,
        typer.Option(help="Without it what each class was measured in, else fp32."),
    ] = None,
    library: Library = None,
    capability: Capability = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Build TensorRT engines for a plan's stages.

    So that GPUs serve it. Without them a plan for GPU classes is served by emulated workers.
    """
    from flows.cli.stored import find_plan
    from flows.files import check_writable, write_plan
    from flows.preparation.building.tensorrt.requests import EngineSettings
    from flows.release.artifacts import attach_engines
    from flows.workspace import workspace

    check_writable(output)
    settings = EngineSettings(
        library=library, compute_capabilities=pairs("--capability", capability)
    )
    with progress("building engines"):
        found = find_plan(plan, warehouse)
        attached = attach_engines(workspace(warehouse), found, settings, precision)
    write_plan(output, attached)
    if as_json:
        print_json(attached.to_dict())
        return
    show(f"plan {attached.plan_id} with an engine for every stage is in {output}")


def layer_times(
    model: Annotated[str, typer.Argument(help="A model that was split.")],
    *,
    gpu_class: Annotated[str, typer.Option("--class", help="GPU class of the GPU here.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="For `split --layer-times`.")
    ] = Path("layer_times.json"),
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Batch size.")] = 8,
    library: Library = None,
    capability: Capability = None,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Measure a model's layers on this machine's GPU.

    So that it can be cut by them.
    """
    import onnx

    from flows.files import check_writable
    from flows.preparation.building.tensorrt.engines import EngineOptions, whole_engine
    from flows.preparation.building.tensorrt.requests import EngineSettings
    from flows.preparation.profiling.gpu_layers import engine_layer_times_us, gpu_layer_times_us
    from flows.preparation.splitting.graph import read_layers
    from flows.preparation.splitting.layer_times import write_times
    from flows.preparation.splitting.stored_split import read_split
    from flows.workspace import workspace

    check_writable(output)
    work = workspace(warehouse)
    settings = EngineSettings(
        library=library, compute_capabilities=pairs("--capability", capability)
    )
    options = EngineOptions(batches=(batch,), settings=settings)
    with progress("measuring layers"):
        split = read_split(work, model)
        folder = whole_engine(work, split, gpu_class, options)
        layers, times = engine_layer_times_us(folder, batch)
        graph = onnx.load(split.model_path, load_external_data=False).graph
        write_times(output, read_layers(graph), gpu_layer_times_us(split, layers, times))
    show(f"times of the layers of {model} on {gpu_class} are in {output}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoices:
    """What the command line says about engines.

    Attributes:
        batches: None for the usual ones.
        library: None for the first that is installed.
        capabilities: compute capability by GPU class, where the class's name does not say it.
    """

    batches: tuple[int, ...] | None
    precision: str
    library: str | None
    capabilities: Mapping[str, str]


def build_engines_of(
    work: "Workspace", names: list[str], cluster: Path, choices: EngineChoices, *, as_json: bool
) -> None:
    """Build engines of every block and of whole models; exit 1 where one could not be built."""
    from flows.preparation.building.tensorrt.engines import engine_step
    from flows.preparation.splitting.stored_split import read_split

    classes, options = _gpu_classes(cluster), _engine_options(choices)
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
    notes(left_out)
    if left_out:
        raise typer.Exit(FAILURE)


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


def _gpu_classes(cluster: Path) -> list[str]:
    """Classes of a cluster file that no CPU stands in for."""
    from flows.files import read_cluster, read_device_classes
    from triton_backend.contract.errors import InputError

    on_cpu = read_device_classes(cluster)
    classes = [c.name for c in read_cluster(cluster).gpu_classes]
    found = [name for name in classes if name not in on_cpu]
    if not found:
        raise InputError(
            f"{cluster}, gpu_classes", "every class has a `runtime` on CPUs, none is a GPU"
        )
    for name in classes:
        if name in on_cpu:
            note(f"class {name} runs on CPUs, left out")
    return found


def _engine_options(choices: EngineChoices) -> "EngineOptions":
    from flows.preparation.building.tensorrt.engines import EngineOptions
    from flows.preparation.building.tensorrt.requests import DEFAULT_BATCHES, EngineSettings

    settings = EngineSettings(library=choices.library, compute_capabilities=choices.capabilities)
    return EngineOptions(
        batches=choices.batches or DEFAULT_BATCHES, precision=choices.precision, settings=settings
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuChoices:
    """Which GPU of this machine stands for which class, and when a cell is measured enough."""

    gpus: Mapping[str, str]
    limits: "MeasureLimits"


def profile_engines_of(
    work: "Workspace",
    names: list[str],
    cluster: Path,
    choices: tuple[EngineChoices, GpuChoices],
    *,
    as_json: bool,
) -> None:
    """Build what is missing and measure every block on the GPUs named."""
    from flows.files import read_cluster
    from flows.preparation.profiling.gpu import ProfiledGpu, ProfiledGpuClass, gpu_profile_step
    from flows.preparation.splitting.stored_split import read_split
    from triton_backend.contract.errors import InputError
    from triton_backend.runtimes.mps import MpsDaemon

    if not choices[1].gpus:
        raise InputError("--gpu", "name a GPU for each class to measure, for instance --gpu L4=0")
    known, options = read_cluster(cluster), _engine_options(choices[0])
    rows: list[tuple[str, str, int]] = []
    with progress("profiling") as say_more, TemporaryDirectory(prefix="mps-") as folder:
        for gpu_class, gpu in choices[1].gpus.items():
            wanted = ProfiledGpuClass(
                name=gpu_class,
                gpu=ProfiledGpu(name=gpu, daemon=MpsDaemon.in_folder(Path(folder), ())),
                divisors=known.gpu_class(gpu_class).vgpu_divisors,
            )
            for name in names:
                say_more(f"measuring {name} on {gpu_class}")
                _, measured = gpu_profile_step(
                    work, read_split(work, name), wanted, options, limits=choices[1].limits
                )
                rows.append((name, gpu_class, measured.cells))
                if measured.left_out is not None:
                    note(f"parts of {gpu_class} left out: {measured.left_out}")
    if as_json:
        print_json([{"model": m, "gpu_class": c, "cells_measured": n} for m, c, n in rows])
        return
    show(table(("model", "class", "cells measured"), rows))
