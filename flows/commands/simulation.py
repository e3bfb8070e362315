"""The command `simulate`: a plan against offered load, in virtual time."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands import options
from flows.commands.options import WAREHOUSE, AsJson, PlanFile, WarehouseFile, example
from flows.commands.output import print_json, progress, show, table

if TYPE_CHECKING:
    from triton_backend.core.plan import Plan
    from triton_backend.sim.arrivals import Arrivals
    from triton_backend.sim.options import SimOptions
    from triton_backend.sim.results import SimResult


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
    duration: options.Duration = 30.0,
    seed: options.Seed = 0,
    noise: Annotated[
        float,
        typer.Option(metavar="N", min=0.0, help="Coefficient of variation of a stage's run time."),
    ] = 0.0,
    find_goodput: Annotated[
        float | None,
        typer.Option(
            metavar="N", min=0.0, max=1.0, help="Search the highest load with this attainment."
        ),
    ] = None,
    trace_time: options.TraceTime = "arrival_s",
    trace_model: options.TraceModel = None,
    trace_interval: options.TraceInterval = None,
    trace_names: options.TraceNames = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Run a plan against load, in virtual time.

    The scheduler is the one that serves.
    """
    from flows.commands.stored import find_plan, keep_run
    from flows.files import read_plan

    given = {
        "policy": policy,
        "load_factor": 1.0 if load_factor is None else load_factor,
        "rate_rps": rate,
        "models": model,
        "nic": nic,
        "count_io": count_io,
        "duration_s": duration,
        "seed": seed,
        "latency_noise_cv": noise,
    }
    drawn = {
        "arrivals": arrivals,
        "shape": shape,
        "time_column": trace_time,
        "model_column": trace_model,
        "interval_s": trace_interval,
        "names": options.pairs("--map", trace_names),
    }
    reference = None if reference_plan is None else read_plan(reference_plan)
    asked = _options(given, drawn, reference)
    with progress("simulating"):
        result = _run(find_plan(plan, warehouse), asked, find_goodput)
    out = result.to_dict()
    stated = {
        "run": given,
        "drawn": drawn,
        "reference": None if reference is None else reference.to_dict(),
    }
    run_id = keep_run(warehouse, "simulate", result.plan, (stated, out))
    if as_json:
        print_json(out | ({} if run_id is None else {"run_id": run_id}))
        return
    _print(result)
    show(f"stored as {run_id}" if run_id else "not stored")


def _options(
    given: Mapping[str, Any], drawn: Mapping[str, Any], reference: "Plan | None"
) -> "SimOptions":
    from triton_backend.sim.options import SimOptions

    models = given["models"]
    rest = {name: value for name, value in given.items() if name != "models"}
    return SimOptions(
        models=None if models is None else tuple(models),
        reference=reference,
        arrivals=_arrivals(drawn),
        **rest,
    )


def _arrivals(drawn: Mapping[str, Any]) -> "Arrivals":
    from triton_backend.core.units import s_to_us
    from triton_backend.sim.arrivals import (
        POISSON,
        Deterministic,
        Gamma,
        TraceFormat,
        read_arrivals,
    )

    processes = {
        "poisson": POISSON,
        "gamma": Gamma(shape=drawn["shape"]),
        "deterministic": Deterministic(),
    }
    if drawn["arrivals"] in processes:
        return processes[drawn["arrivals"]]
    interval_s = drawn["interval_s"]
    trace = TraceFormat(
        time_column=drawn["time_column"],
        model_column=drawn["model_column"],
        names=drawn["names"] or None,
        interval_us=None if interval_s is None else s_to_us(interval_s),
    )
    return read_arrivals(Path(drawn["arrivals"]), trace)


def simulate_again(plan: "Plan", stated: Mapping[str, Any]) -> "SimResult":
    """The same simulation from its stored options; equal to the bit.

    Raises:
        InputError: its trace is gone.
    """
    from triton_backend.core.plan import Plan
    from triton_backend.sim.run import simulate

    reference = None if stated["reference"] is None else Plan.from_dict(stated["reference"])
    return simulate(plan, _options(stated["run"], stated["drawn"], reference))


def _run(plan: "Plan", asked: "SimOptions", attainment: float | None) -> "SimResult":
    from flows.clock import Stopwatch
    from triton_backend.sim.goodput import goodput_report
    from triton_backend.sim.run import simulate

    watch = Stopwatch()
    result = simulate(plan, asked, clock_ns=lambda: round(watch.seconds() * 1e9))
    if attainment is None:
        return result
    return replace(result, goodput=goodput_report(plan, asked, attainment))


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
