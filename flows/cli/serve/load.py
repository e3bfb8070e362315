"""`load`: open-loop load on the live endpoint, by a process of its own."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flows.cli import shared_options
from flows.cli.console import note, print_json, show, table
from flows.cli.registry import command
from flows.cli.serve.options import Connection, SentLoad
from flows.cli.shared_options import WAREHOUSE, AsJson, PlanArgument, PlanOption, WarehouseFile


@command(
    "load", "poolpipe load --plan plan.json --url 127.0.0.1:8001 --load-factor 0.8 --duration 30"
)
def load(
    plan: PlanArgument = None,
    *,
    plan_option: PlanOption = None,
    connection: Connection,
    sent: SentLoad,
    check: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL=FILE", help="An .npz file with samples to send and the right answers."
        ),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a record of every request to this .npz file."),
    ] = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Send open-loop load to the live endpoint.

    Attainment and latency are measured from the intended send times.
    """
    from flows.cli.project import keep_run, plan_file, plan_text
    from flows.clock import now_utc
    from flows.files import check_writable, read_plan
    from flows.quickstart.load_process import LoadRequest, run_load
    from flows.release.server.running import read_state
    from flows.workspace import workspace
    from triton_backend.contract.errors import InputError, PoolPipeError

    work = workspace(warehouse)
    file = plan_file(work, plan_text(plan, plan_option))
    served, state = read_plan(file), work.state
    url, protocol = connection.url, connection.protocol
    if url is None:
        running = read_state(state.serve)
        url = running.grpc_url if protocol == "grpc" else running.http_url
    kept = records or state.reports / f"load-{now_utc():%Y%m%dT%H%M%S%f}.npz"
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(str(kept), f"cannot be written: {error.strerror}") from error
    check_writable(kept)
    reference = sent.reference_plan and plan_file(work, sent.reference_plan)
    more = connection.arguments() | sent.arguments() | {"reference-plan": reference}
    found = run_load(
        LoadRequest(
            plan=file,
            url=url,
            protocol=protocol,
            duration_s=sent.duration,
            load_factor=sent.load_factor,
            seed=sent.seed,
            records=kept,
            checks={n: Path(file) for n, file in shared_options.pairs("--check", check).items()},
            more=_arguments(more),
        ),
        keep_interrupted=True,
    )
    lost = found.pop("records_lost", None)
    place = None if lost else str(kept.resolve())
    stated = more | {"url": url, "protocol": protocol, "records": place}
    run_id = keep_run(warehouse, "load", served, (_plain(stated), found))
    if run_id is None and records is None:
        kept.unlink(missing_ok=True)
    if as_json:
        print_json(found | ({} if run_id is None else {"run_id": run_id}))
    else:
        _print(found)
        for text, count in found.get("messages", {}).items():
            show(f"{count} x {text}")
        show(f"stored as {run_id}" if run_id else "not stored")
    if lost and records is not None:
        raise PoolPipeError(f"{lost}; the results are whole, the records are lost")
    if lost:
        note(f"no records: {lost}")
    if found.get("interrupted"):
        raise KeyboardInterrupt  # results until then are printed; the exit code says why


def _arguments(more: dict[str, Any]) -> list[str]:
    """Options as the load generator's command line has them; what was not given is left out."""
    every = [
        (name, item)
        for name, value in more.items()
        for item in (value if isinstance(value, list) else [value])
    ]
    return [f"--{name}={value}" for name, value in every if value is not None]


def _plain(stated: dict[str, Any]) -> dict[str, Any]:
    return {name: str(v) if isinstance(v, Path) else v for name, v in stated.items()}


def _print(found: dict[str, Any]) -> None:
    from flows.reporting import words

    def row_of(row: dict[str, Any]) -> tuple[object, ...]:
        return (
            *(row[count] for count in ("offered", "served", "late", "dropped", "failed")),
            words.percent(row["attainment"], 2),
            words.milliseconds(row["latency_ms"]["p50"]),
            words.milliseconds(row["latency_ms"]["p99"]),
        )

    head = ("offered", "served", "late", "dropped", "failed", "attainment", "p50", "p99")
    rows = [(name, *row_of(row)) for name, row in found["models"].items()]
    show(table(("model", *head), rows))
    rows = [
        (name, entry, *row_of(row))
        for name, entries in found.get("entries", {}).items()
        for entry, row in entries.items()
    ]
    if rows:
        show(table(("model", "entry", *head), rows, texts=2))
