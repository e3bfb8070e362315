"""`poolpipe build --runtime tensorrt`: engines for the GPU classes of a cluster."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from flows.commands.output import note, notes, print_json, progress, show, table

if TYPE_CHECKING:
    from flows.building.tensorrt import BuildReport
    from flows.steps.workspace import Workspace

FAILURE = 1


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
    from flows.building.tensorrt import DEFAULT_BATCHES, EngineSettings
    from flows.steps.engines import EngineOptions, engine_step
    from flows.steps.prepare import read_split

    classes = _gpu_classes(cluster)
    options = EngineOptions(
        batches=choices.batches or DEFAULT_BATCHES,
        precision=choices.precision,
        settings=EngineSettings(library=choices.library, compute_capabilities=choices.capabilities),
    )
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
    from triton_backend.core.errors import InputError

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
