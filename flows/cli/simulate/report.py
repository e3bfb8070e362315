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
    from flows.reporting.data import ReportData
    from flows.workspace import Workspace
    from triton_backend.contract.plan import Plan


@command("report", "poolpipe report simulate-1f2e3d4c -o report.html")
def report(
    run_id: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="The id that `simulate`, `load` or `quickstart` printed."
        ),
    ],
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
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Write one self-contained page about a run."""
    from flows.workspace import workspace

    with progress("drawing"):
        page = page_of(workspace(warehouse), run_id, output)
    if as_json:
        print_json({"run_id": run_id, "report": page.resolve()})
        return
    show(str(page))


def page_of(work: "Workspace", run_id: str, output: Path | None) -> Path:
    """Write the page of a run to `output`, or among the project's reports; returns its path.

    Raises:
        InputError: no such run, it is of a kind without a page, or the page cannot be written.
    """
    from flows.reporting.html import write_report
    from warehouse.plans import read_plan
    from warehouse.runs import read_run, set_report

    with work.open(read_only=True) as warehouse:
        run = read_run(warehouse, run_id)
        plan = read_plan(warehouse, run["plan_id"]) if run["plan_id"] else None
    target = output or work.state.reports / f"{run_id}.html"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if run["kind"] == "quickstart":
            return _copy(run, target)
        write_report(_data(run, plan), target)
    except OSError as error:
        raise InputError(str(target), f"cannot be written: {error.strerror}") from error
    with work.open() as warehouse:
        set_report(warehouse, run_id, str(target.resolve()))
    return target


def _copy(run: Mapping[str, Any], target: Path) -> Path:
    """A quickstart writes its page while everything it shows is at hand; that page is kept."""
    kept = Path(run["report"] or "")
    if not kept.is_file():
        raise InputError(f"run {run['run_id']!r}", "its page is gone; run the quickstart again")
    if kept.resolve() != target.resolve():
        target.write_bytes(kept.read_bytes())
    return target


def _data(run: Mapping[str, Any], plan: "Plan | None") -> "ReportData":
    from flows.cli.simulate.request import SimulationRequest
    from flows.clock import now_utc
    from flows.quickstart.machine import machine, versions
    from flows.reporting.data import Outcomes, ReportData
    from flows.reporting.runs import outcomes_of_simulation

    if plan is None or run["kind"] not in {"simulate", "load"}:
        raise InputError(f"run {run['run_id']!r}", f"a {run['kind']} has no page")
    measured = simulated = None
    if run["kind"] == "simulate":
        simulated = outcomes_of_simulation(SimulationRequest.from_dict(run["options"]).run(plan))
    else:
        records = Path(run["options"]["records"])
        measured = Outcomes.from_load(run["result"], records if records.is_file() else None)
    return ReportData(
        title=f"PoolPipe {run['run_id']}",
        plan=plan,
        created=f"{now_utc():%Y-%m-%d %H:%M} UTC",
        measured=measured,
        simulated=simulated,
        machine=machine(),
        versions=versions(),
    )
