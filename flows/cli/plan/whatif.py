"""`whatif`: a plan per value of one input, as a table, a chart and rows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.console import note, notes, print_json, progress, show, table
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, AsJson, ClusterFile, WarehouseFile, WorkloadFile
from flows.options import asked
from flows.planning.options import SWEPT, CommonOptions

if TYPE_CHECKING:
    from flows.planning.sweep import Point, Situation

Curves = Mapping[str, "Sequence[Point]"]
MOST_VALUES = 1_000  # a plan each; a step with too many noughts would not end


@command(
    "whatif",
    "poolpipe whatif --cluster cluster.yaml --workload workload.yaml --vary slo-scale"
    " --values 2:10:1 --planner pool --planner no-partitioning --chart slo.svg",
    "poolpipe whatif --cluster cluster.yaml --workload workload.yaml --vary gpus:L4"
    " --values 4,8,16",
)
def whatif(
    *,
    cluster: ClusterFile,
    workload: WorkloadFile,
    vary: Annotated[
        str,
        typer.Option(
            metavar="WHAT[:CLASS]",
            help="The input to vary: gpus, ratio, slo (factor on the workload's SLOs), "
            "slo-scale (SLO as a multiple of each model's fastest latency), bandwidth, "
            "margin or classes.",
        ),
    ],
    values: Annotated[
        str,
        typer.Option(
            metavar="N,N|FROM:TO:STEP",
            help="The values to try: a list, or a range that includes its end.",
        ),
    ],
    planner: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel="Planning",
            help="Draw a curve for this planner; repeat it for several. `pool` by default.",
        ),
    ] = None,
    options: Annotated[dict[str, Any], asked(CommonOptions, *SWEPT)],
    chart: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the curves to this file (.png, .svg).")
    ] = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Vary one input of a plan and draw the curve."""
    from flows.files import check_writable
    from flows.planning import PlanOptions
    from flows.planning.sweep import check_any_fits, point_of, varied

    check_writable(chart, makes_folders=True)
    if chart is not None:
        from flows.reporting.plots import check_drawable

        check_drawable(chart)
    numbers = parse_values(values)
    start, warnings = _start(warehouse, (cluster, workload), options)
    situations = {
        name: varied(replace(start, options=PlanOptions(planner=name, **options)), vary, numbers)
        for name in planner or ["pool"]
    }
    notes(warnings)
    curves: dict[str, list[Point]] = {name: [] for name in situations}
    with progress("planning") as report:
        for name, varieties in situations.items():
            for number, each in zip(numbers, varieties, strict=True):
                report(f"planning with {name}, {vary} at {number:g}")
                curves[name].append(point_of(each, number))
    check_any_fits([point for points in curves.values() for point in points])
    document: dict[str, Any] = {
        "vary": vary,
        "objective": options["objective"],
        "curves": {name: [p.to_dict() for p in points] for name, points in curves.items()},
    }
    run_id = _keep(warehouse, document, curves)
    if chart is not None:
        _draw(curves, (vary, options["objective"]), chart)
    if as_json:
        print_json(document | ({} if run_id is None else {"run_id": run_id}))
        return
    _print(vary, curves)
    show(f"stored as {run_id}" if run_id else "not stored")


def parse_values(text: str) -> list[float]:
    """`1,2.5,4` or `2:10:1`, the last included.

    Raises:
        InputError: it is neither, or no value is left.
    """
    from triton_backend.contract.errors import InputError
    from triton_backend.contract.fields import check_finite

    try:
        numbers = [float(part) for part in text.replace(":", ",").split(",")]
        for number in numbers:
            check_finite("--values", number)
        if ":" not in text:
            return numbers
        first, last, step = (float(part) for part in text.split(":"))
        count = floor((last - first) / step + 1e-9) + 1
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        raise InputError("--values", f"{text!r} is neither A,B,C nor FROM:TO:STEP") from error
    if count < 1:
        raise InputError("--values", f"{text!r} names no value")
    if count > MOST_VALUES:
        raise InputError("--values", f"{text!r} names {count:,} values, {MOST_VALUES:,} at most")
    return [first + step * index for index in range(count)]


def _start(
    warehouse: Path, files: tuple[Path, Path], options: Mapping[str, Any]
) -> "tuple[Situation, list[str]]":
    from flows.cli.project import check_known
    from flows.files import read_cluster, read_workload
    from flows.planning import PlanOptions
    from flows.planning.stored_sweeps import situation_of
    from flows.workspace import workspace

    work, cluster, workload = workspace(warehouse), read_cluster(files[0]), read_workload(files[1])
    check_known(work, files, (cluster, workload))
    return situation_of(work, cluster, workload, PlanOptions(**options))


def _draw(curves: Curves, labels: tuple[str, str], path: Path) -> None:
    from flows.reporting.plots import Curve, curve_chart
    from triton_backend.contract.errors import InputError

    drawn = [
        Curve(
            label=name,
            x=[p.value for p in points if p.objective is not None],
            y=[p.objective for p in points if p.objective is not None],
        )
        for name, points in curves.items()
    ]
    try:
        curve_chart(drawn, path, x_label=labels[0], y_label=labels[1], title="what if")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(str(path), f"cannot be drawn: {reason}") from error


def _keep(warehouse: Path, document: Mapping[str, Any], curves: Curves) -> str | None:
    """The run's id; a warehouse that is in use does not spoil the curve."""
    from flows.planning.stored_sweeps import keep_sweep
    from flows.workspace import workspace
    from triton_backend.contract.errors import InputError

    try:
        return keep_sweep(workspace(warehouse), document, curves)
    except InputError as error:
        note(f"not stored: {error}")
        return None


def _print(vary: str, curves: Curves) -> None:
    """The table, and beneath it why values have no plan (a column of that would squeeze it)."""
    from flows.reporting import words

    points = [(name, point) for name, curve in curves.items() for point in curve]
    rows = [
        (
            f"{point.value:g}",
            name,
            point.objective,
            words.percent(point.gap, 2),
            None if point.gpus_used is None else sum(point.gpus_used.values()),
            point.solve_seconds,
        )
        for name, point in points
    ]
    show(table((vary, "planner", "objective", "gap", "GPUs", "seconds"), rows))
    notes([f"{name} at {point.value:g}: {point.reason}" for name, point in points if point.reason])
