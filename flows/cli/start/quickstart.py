"""`quickstart`: the main job from end to end."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli import shared_options
from flows.cli.console import note, print_json, say, show, table
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, AsJson, WarehouseFile
from triton_backend.contract.errors import InputError, PoolPipeError

if TYPE_CHECKING:
    from flows.workspace import Workspace


def _flow_workspace(warehouse: Path) -> "Workspace":
    """The workspace of a flow; Prefect's settings are made before it is first imported."""
    from flows.deployments.orchestration.home import prepare_prefect
    from flows.workspace import workspace

    work = workspace(warehouse)
    prepare_prefect(work.state.prefect)
    return work


@command("quickstart", "poolpipe quickstart", "poolpipe quickstart --model net.onnx --slo-ms 80")
def quickstart(
    *,
    model: Annotated[
        Path | None, typer.Option(help="Your own ONNX model instead of the two examples.")
    ] = None,
    slo_ms: Annotated[
        float | None, typer.Option(min=0.001, max=1e9, help="Its latency objective.")
    ] = None,
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
    duration: shared_options.Duration = 20.0,
    address: shared_options.Address = "127.0.0.1",
    http_port: shared_options.Port = 8000,
    grpc_port: shared_options.Port = 8001,
    metrics_port: shared_options.Port = 8002,
    attainment_target: Annotated[
        float,
        typer.Option(metavar="N", min=0.0, max=1.0, help="Under it for any model: exit code 1."),
    ] = 0.95,
    seed: shared_options.Seed = 0,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Everything in one go, from models to a report.

    Split, build, profile, plan, simulate, roll out on Triton, load, report; what an earlier run
    left is reused, and everything started is stopped at the end. Wrong answers, and a model under
    the attainment target, end it with 1.
    """
    from flows.release.server.admin import ServerPorts, check_can_start

    work = _flow_workspace(warehouse)
    ports = ServerPorts(http=http_port, grpc=grpc_port, metrics=metrics_port, address=address)
    # Said at once, not after the minutes that profiling takes.
    _check_model(model, slo_ms)
    check_can_start(work.state.serve, ports)
    from flows.deployments.orchestration.limits import taking_turns
    from flows.deployments.orchestration.server import start_prefect_server
    from flows.deployments.quickstart import QuickstartOptions
    from flows.deployments.quickstart import quickstart as run

    asked = QuickstartOptions(
        model=model,
        slo_ms=slo_ms,
        keep_serving=keep_serving,
        load_factor=load_factor,
        load_seconds=duration,
        seed=seed,
        ports=ports,
    )
    if not start_prefect_server():  # others write through that server too
        work = taking_turns(work)
    found = run(work, asked, say(quiet=as_json))
    if as_json:
        print_json(found)
    else:
        _print(found)
    _judge(found, attainment_target)


def _check_model(model: Path | None, slo_ms: float | None) -> None:
    if (model is None) != (slo_ms is None):
        raise InputError("quickstart", "--model and --slo-ms go together")
    if model is not None:
        from flows.preparation.splitting.loading import load_skeleton

        load_skeleton(model)


def _judge(found: Mapping[str, Any], attainment_target: float) -> None:
    from flows.quickstart.acceptance import overloaded, shortcomings

    reason, missed = overloaded(found), shortcomings(found, attainment_target)
    if reason is not None:
        note(reason)
    if missed:
        raise PoolPipeError(f"quickstart: {'; '.join(missed)}")


def _print(found: dict[str, Any]) -> None:
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
