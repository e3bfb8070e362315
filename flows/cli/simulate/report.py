"""`report`: one self-contained page about a run.

What a run left is gathered again, and a simulation is run again. Not here: drawing
(`flows/reporting`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.console import print_json, progress, show
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, AsJson, WarehouseFile
from triton_backend.contract.errors import InputError

if TYPE_CHECKING:
    from flows.reporting.data import Outcomes, ReportData
    from flows.workspace import Workspace
    from triton_backend.contract.plan import Plan

PAGES = ("simulate", "load")  # kinds of runs whose pages are drawn again


@command("report", "poolpipe report simulate-1f2e3d4c -o report.html")
def report(
    run_id: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="The id that `simulate`, `load` or `quickstart` printed; "
            "`poolpipe warehouse runs` lists them.",
        ),
    ] = None,
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the page to this file; by default among the project's reports.",
        ),
    ] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the batches of the run to this file, too, as a Chrome trace for "
            "ui.perfetto.dev.",
        ),
    ] = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Write one self-contained page about a run."""
    from flows.files import check_writable
    from flows.workspace import workspace

    if run_id is None:
        raise InputError("report", "needs a RUN; `poolpipe warehouse runs` lists them")
    check_writable(output, makes_folders=True)
    if perfetto is not None:
        if output is not None and output.resolve() == perfetto.resolve():
            raise InputError("--perfetto", f"{perfetto} is the page's file, too")
        check_writable(perfetto, makes_folders=True)
    with progress("drawing"):
        work = workspace(warehouse)
        page = page_of(work, run_id, output)
        trace = None if perfetto is None else trace_file(work, run_id, perfetto)
    if as_json:
        written = {"run_id": run_id, "report": page.resolve()}
        print_json(written if trace is None else written | {"perfetto": trace.resolve()})
        return
    show("\n".join(map(str, filter(None, (page, trace)))))


def trace_file(work: "Workspace", run_id: str, path: Path) -> Path:
    """Write the Chrome trace of a run; returns its path.

    Raises:
        InputError: no such run, its batches are not known, or the file cannot be written.
    """
    from flows.reporting.perfetto import write_trace

    run, plan = _stored(work, run_id)
    if plan is None or run["kind"] not in PAGES:
        raise InputError(f"run {run_id!r}", f"no batches of a {run['kind']} are kept")
    uses = _outcomes(work, run, plan).uses
    if uses is None:
        reason = "its batches are not known: events of another system, or of one that is gone"
        raise InputError(f"run {run_id!r}", reason)
    return write_trace(plan, uses, path)


def page_of(work: "Workspace", run_id: str, output: Path | None) -> Path:
    """Write the page of a run to `output`, or among the project's reports; returns its path.

    Raises:
        InputError: no such run, it is of a kind without a page, or the page cannot be written.
    """
    from flows.reporting.html import write_report
    from warehouse.runs import set_report

    run, plan = _stored(work, run_id)
    target = output or work.state.reports / f"{run_id}.html"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if run["kind"] == "quickstart":
            return _copy(work, run, target)
        write_report(_data(work, run, plan), target)
    except OSError as error:
        raise InputError(str(target), f"cannot be written: {error.strerror}") from error
    with work.open() as warehouse:
        set_report(warehouse, run_id, str(target.resolve()))
    return target


def _copy(work: "Workspace", run: Mapping[str, Any], target: Path) -> Path:
    """A quickstart writes its page while everything it shows is at hand; that page is kept.

    It lies where it was written, or among the reports of a project that was moved.
    """
    written = Path(run["report"] or "")
    kept = next((p for p in (written, work.state.reports / written.name) if p.is_file()), None)
    if kept is None:
        raise InputError(f"run {run['run_id']!r}", "its page is gone; run the quickstart again")
    if kept.resolve() != target.resolve():
        target.write_bytes(kept.read_bytes())
    return target


def _stored(work: "Workspace", run_id: str) -> "tuple[dict[str, Any], Plan | None]":
    """A run of the warehouse, and its plan if it has one."""
    from warehouse.plans import read_plan
    from warehouse.runs import read_run

    with work.open(read_only=True) as warehouse:
        run = read_run(warehouse, run_id)
        return run, read_plan(warehouse, run["plan_id"]) if run["plan_id"] else None


def _data(work: "Workspace", run: Mapping[str, Any], plan: "Plan | None") -> "ReportData":
    from flows.clock import now_utc
    from flows.operations.adoption.triton_alone import beside_triton_of
    from flows.quickstart.machine import machine, versions
    from flows.reporting.data import ReportData
    from flows.reporting.runs import variant_curves

    if plan is None or run["kind"] not in PAGES:
        raise InputError(f"run {run['run_id']!r}", f"a {run['kind']} has no page")
    found = _outcomes(work, run, plan)
    measured = run["kind"] == "load"
    return ReportData(
        title=f"PoolPipe {run['run_id']}",
        plan=plan,
        created=f"{now_utc():%Y-%m-%d %H:%M} UTC",
        measured=found if measured else None,
        simulated=None if measured else found,
        variants=variant_curves(plan),
        beside_triton=beside_triton_of(work, plan),
        machine=machine(),
        versions=versions(),
    )


def _outcomes(work: "Workspace", run: Mapping[str, Any], plan: "Plan") -> "Outcomes":
    """Outcomes of a run: of a simulation by running it again, else from its stored records.

    Batches of a load are those in the event files of the project's own system.
    """
    from flows.cli.simulate.request import SimulationRequest
    from flows.quickstart.load_process import span_of_load
    from flows.reporting.data import Outcomes
    from flows.reporting.runs import outcomes_of_simulation, uses_of_events

    if run["kind"] == "simulate":
        return outcomes_of_simulation(SimulationRequest.from_dict(run["options"]).run(plan))
    records = Path(run["options"].get("records") or "")
    if not records.is_file():
        return Outcomes.from_load(run["result"])
    start_us, end_us = span_of_load(records)
    events = work.state.serve / "events"
    uses = (
        uses_of_events(events, plan.plan_id, from_us=start_us, to_us=end_us)
        if events.is_dir()
        else None
    )
    return Outcomes.from_load(run["result"], records, uses=uses or None)
