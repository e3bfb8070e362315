"""Commands that run whole flows, and what stands around them: quickstart, report, devices."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands import options
from flows.commands.options import WAREHOUSE, AsJson, WarehouseFile, example
from flows.commands.output import print_json, progress, say, show, table

if TYPE_CHECKING:
    from flows.steps.workspace import Workspace


def add_to(app: typer.Typer) -> None:
    """Register the commands of this group."""
    app.command(
        epilog=example("poolpipe quickstart", "poolpipe quickstart --model net.onnx --slo-ms 80")
    )(quickstart)
    app.command(epilog=example("poolpipe report simulate-1f2e3d4c -o report.html"))(report)
    app.command(epilog=example("poolpipe ingest"))(ingest)
    app.command(epilog=example("poolpipe ui --port 8080"))(ui)
    app.command(epilog=example("poolpipe devices --cluster-file cluster.yaml"))(devices)


def _flow_workspace(warehouse: Path) -> "Workspace":
    """The workspace of a flow; Prefect's settings are made before it is first imported."""
    from flows.prefect_home import prepare_prefect
    from flows.steps.workspace import workspace

    work = workspace(warehouse)
    prepare_prefect(work.state.prefect)
    return work


def quickstart(
    *,
    model: Annotated[
        Path | None, typer.Option(help="Your own ONNX model instead of the two examples.")
    ] = None,
    slo_ms: Annotated[float | None, typer.Option(help="Its latency objective.")] = None,
    keep_serving: Annotated[
        bool, typer.Option("--keep-serving", help="Leave the server up at the end.")
    ] = False,
    load_factor: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0.01,
            help="Share of the planned rate that is offered; by default half, at most 400 rps.",
        ),
    ] = None,
    duration: options.Duration = 20.0,
    address: options.Address = "127.0.0.1",
    http_port: options.Port = 8000,
    grpc_port: options.Port = 8001,
    metrics_port: options.Port = 8002,
    seed: options.Seed = 0,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Everything in one go, from models to a report.

    Split, build, profile, plan, simulate, roll out on Triton, load, report; what an earlier run
    left is reused, and everything started is stopped at the end.
    """
    work = _flow_workspace(warehouse)
    from flows.prefect_server import start_prefect_server
    from flows.quickstart import QuickstartOptions
    from flows.quickstart import quickstart as run
    from flows.release.admin import ServerPorts
    from flows.release.ahead import check_can_start
    from flows.splitting.loading import load_skeleton

    asked = QuickstartOptions(
        model=model,
        slo_ms=slo_ms,
        keep_serving=keep_serving,
        load_factor=load_factor,
        load_seconds=duration,
        seed=seed,
        ports=ServerPorts(http=http_port, grpc=grpc_port, metrics=metrics_port, address=address),
    )
    # Said at once, not after the minutes that profiling takes.
    if model is not None:
        load_skeleton(model)
    check_can_start(work.state.serve, asked.ports)
    start_prefect_server()
    found = run(work, asked, say(quiet=as_json))
    if as_json:
        print_json(found)
        return
    _print_quickstart(found)


def _print_quickstart(found: dict[str, Any]) -> None:
    from flows.reporting import words

    counts = ("offered", "served", "late", "dropped", "failed")
    rows = [
        (
            name,
            *(row[count] for count in counts),
            words.percent(row["attainment"], 2),
            words.percent(row["simulated"]["attainment"], 2),
            words.milliseconds(row["latency_ms"]["p50"]),
            words.milliseconds(row["latency_ms"]["p99"]),
            words.milliseconds(row["simulated"]["latency_ms"]["p99"]),
            words.milliseconds(row["slo_ms"]),
            words.rate(row["planned_rps"]),
        )
        for name, row in found["models"].items()
    ]
    head = ("model", *counts, "attained", "simulated", "p50", "p99", "simulated", "SLO", "planned")
    show(table(head, rows))
    show(f"report: {found['report']}")
    if found["serving"]:
        show(f"serving on HTTP {found['serving']['http']} and gRPC {found['serving']['grpc']};")
        show("`poolpipe stop` ends it")


def report(
    run_id: Annotated[str, typer.Argument(help="As `simulate`, `load` or `quickstart` said.")],
    *,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The page.")] = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Write one self-contained page about a run."""
    from flows.commands.pages import page_of
    from flows.steps.workspace import workspace

    with progress("drawing"):
        page = page_of(workspace(warehouse), run_id, output)
    if as_json:
        print_json({"run_id": run_id, "report": page.resolve()})
        return
    show(str(page))


def ingest(
    *,
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A serve folder; this project's own.")
    ] = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Take what the gateway logged since last time into the warehouse."""
    from flows.steps.ingest import ingest as take
    from flows.steps.workspace import workspace

    with progress("reading event files"):
        found = take(workspace(warehouse), folder)
    if as_json:
        names = ("bytes_read", "minutes", "skipped")
        print_json({name: getattr(found, name) for name in names})
        return
    show(f"{found.bytes_read:,} bytes read, {found.minutes} minutes, {found.skipped} lines skipped")


def ui(
    *,
    address: options.Address = "127.0.0.1",
    port: options.Port = 8080,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Serve a small page over the running system."""
    from flows.reporting.ui.server import run_page
    from flows.state import project_state

    show(f"http://{address}:{port}/ until Ctrl-C")
    run_page(
        project_state().serve / "state.json",
        address=address,
        port=port,
        warehouse=warehouse if warehouse.exists() else None,
    )


def devices(
    *,
    cluster_file: Annotated[
        Path | None, typer.Option(help="Write the cluster.yaml that they suggest here.")
    ] = None,
    nic_gbps: Annotated[
        float | None, typer.Option(metavar="N", min=0.001, help="Rate of this node's link, in it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List this machine's GPUs and propose a cluster.yaml."""
    import yaml

    from flows.profiling.devices import list_devices, propose_cluster
    from triton_backend.core.errors import InputError

    found = list_devices()
    proposal = propose_cluster(found, nic_gbps=nic_gbps)
    if cluster_file is not None:
        try:
            cluster_file.write_text(yaml.safe_dump(proposal, sort_keys=False), encoding="utf-8")
        except OSError as error:
            raise InputError(str(cluster_file), f"cannot be written: {error.strerror}") from error
    if as_json:
        print_json({"devices": [device.to_dict() for device in found], "cluster": proposal})
        return
    names = ("name", "uuid", "compute_capability", "memory_mib", "driver", "mps", "mig")
    show(table(names, [[getattr(device, name) for name in names] for device in found]))
    show(
        f"written to {cluster_file}" if cluster_file else yaml.safe_dump(proposal, sort_keys=False)
    )
