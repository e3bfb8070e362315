"""The command `simulate`: a plan against offered load, in virtual time."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli import options
from flows.cli.options import WAREHOUSE, AsJson, PlanFile, WarehouseFile, example
from flows.cli.output import print_json, progress, show, table

if TYPE_CHECKING:
    from triton_backend.simulator.results import SimResult


def add_to(app: typer.Typer) -> None:
    """Register the commands of this group."""
    app.command(
        epilog=example(
            "poolpipe simulate --plan plan.json --load-factor 0.9 --duration 60",
            "poolpipe simulate --plan plan.json --arrivals trace.csv.gz --trace-time t_s"
            " --trace-model service --map code=resnet --find-goodput 0.99",
        )
    )(simulate)


def simulate(
    *,
    plan: PlanFile,
    policy: options.Policy = "reservation",
    arrivals: options.ArrivalsFrom = "poisson",
    shape: options.Shape = 0.3,
    load_factor: options.LoadFactor = None,
    rate: options.Rate = None,
    reference_plan: options.ReferencePlan = None,
    model: options.Models = None,
    nic: options.Nic = "shared",
    count_io: Annotated[
        bool, typer.Option("--count-io", help="Move inputs and answers over the links too.")
    ] = False,
    admission: Annotated[
        bool,
        typer.Option(
            "--admission", help="Refuse at the door what the gateway refuses under overload."
        ),
    ] = False,
    duration: options.Duration = 30.0,
    seed: options.Seed = 0,
    noise: Annotated[
        float,
        typer.Option(
            metavar="N", min=0.0, max=10.0, help="Coefficient of variation of a stage's run time."
        ),
    ] = 0.0,
    find_goodput: Annotated[
        float | None,
        typer.Option(
            metavar="N", min=0.0, max=1.0, help="Search the highest load with this attainment."
        ),
    ] = None,
    fail: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE[:GPU]@FROM-TO", help="Gone for so long; also vgpu:3@5-10."),
    ] = None,
    change_to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A plan that takes over in the middle.")
    ] = None,
    change_at: Annotated[
        float, typer.Option(metavar="S", min=0.0, max=1e7, help="When it does.")
    ] = 10.0,
    trace_time: options.TraceTime = "arrival_s",
    trace_model: options.TraceModel = None,
    trace_interval: options.TraceInterval = None,
    trace_names: options.TraceNames = None,
    records: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write one row per request into this Parquet file."),
    ] = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Run a plan against load, in virtual time.

    The scheduler is the one that serves.
    """
    from flows.cli.simulating import run_simulation, write_records
    from flows.cli.stored import find_plan, keep_run

    stated = {
        "run": {
            "policy": policy,
            "load_factor": 1.0 if load_factor is None else load_factor,
            "rate_rps": rate,
            "nic": nic,
            "count_io": count_io,
            "admission": admission,
            "duration_s": duration,
            "seed": seed,
            "latency_noise_cv": noise,
        },
        "models": model,
        "drawn": {
            "arrivals": arrivals,
            "shape": shape,
            "time_column": trace_time,
            "model_column": trace_model,
            "interval_s": trace_interval,
            "names": options.pairs("--map", trace_names),
        },
        "failures": fail or [],
        "reference": _document(reference_plan),
        "change": change_to and {"at_s": change_at, "plan": _document(change_to)},
    }
    found = find_plan(plan, warehouse)
    with progress("simulating"):
        result = run_simulation(found, stated, find_goodput)
        if records is not None:
            write_records(result, records)
    out = result.to_dict()
    run_id = keep_run(warehouse, "simulate", found, (stated, out))
    if as_json:
        print_json(out | ({} if run_id is None else {"run_id": run_id}))
        return
    _print(result)
    show(f"stored as {run_id}" if run_id else "not stored")


def _document(plan: Path | None) -> dict[str, Any] | None:
    from flows.files import read_plan

    return None if plan is None else read_plan(plan).to_dict()


def _print(result: "SimResult") -> None:
    from flows.reporting import words

    rows = [
        (
            model.name,
            model.offered,
            model.served,
            model.late,
            model.dropped,
            words.percent(model.attainment, 2),
            words.milliseconds(model.p50_ms),
            words.milliseconds(model.p99_ms),
            model.mean_batch,
        )
        for model in result.models
    ]
    head = ("model", "offered", "served", "late", "dropped", "attainment", "p50", "p99", "batch")
    show(table(head, rows))
    busy = ", ".join(
        f"{words.percent(share)} of {name}" for name, share in result.utilisation.items()
    )
    show(f"attainment {words.percent(result.attainment, 2)}; busy: {busy}")
    if result.goodput:
        rows = [(name, found["load_factor"], found["rps"]) for name, found in _found(result)]
        show(table(("goodput", "load factor", "requests/s"), rows))


def _found(result: "SimResult") -> list[tuple[str, dict[str, float]]]:
    return [("all together", result.goodput["joint"]), *result.goodput["models"].items()]
