"""`simulate`: a plan against offered load, in virtual time."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli import shared_options
from flows.cli.console import note, print_json, progress, show, table
from flows.cli.registry import command
from flows.cli.shared_options import (
    WAREHOUSE,
    AsJson,
    PlanArgument,
    PlanOption,
    WarehouseFile,
    pairs,
)

if TYPE_CHECKING:
    from triton_backend.simulator.results import SimResult


@command(
    "simulate",
    "poolpipe simulate --plan plan.json --load-factor 0.9 --duration 60",
    "poolpipe simulate --plan plan.json --arrivals trace.csv.gz --trace-time t_s"
    " --trace-model service --map code=resnet --find-goodput 0.99",
    "poolpipe simulate --plan plan.json --change 20=second.json --change 40=plan.json",
    "poolpipe simulate --plan plan.json --application traffic --arrivals deterministic --rows fixed",
    "poolpipe simulate --plan plan.json --clients clients.yaml --links links.csv --steer --duration 600",
)
def simulate(
    plan: PlanArgument = None,
    *,
    plan_option: PlanOption = None,
    policy: shared_options.PolicyOfAll = None,
    heads: Annotated[
        str | None,
        typer.Option(
            metavar="window|head",
            rich_help_panel="Dispatch",
            help="Late binding: drop the oldest requests to keep batches whole (`window`), or "
            "only those that are too late (`head`).",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="planned|measured",
            rich_help_panel="Dispatch",
            help="Late binding: aim at the planned batch size, or at the size that the measured "
            "rate fills.",
        ),
    ] = None,
    rank: Annotated[
        str | None,
        typer.Option(
            metavar="latest|deadline|efficiency",
            rich_help_panel="Dispatch",
            help="Late binding: the rule that picks one of the queues that compete for a free "
            "vGPU.",
        ),
    ] = None,
    batch_timeout_ms: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            min=0.0,
            rich_help_panel="Dispatch",
            help="Policy `timeout`: longest time that a batch stays open.",
        ),
    ] = None,
    batch_timeout_share: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            rich_help_panel="Dispatch",
            help="Policy `timeout`: the same as a share of each model's SLO.",
        ),
    ] = None,
    lead_us: Annotated[
        int,
        typer.Option(
            metavar="US",
            min=0,
            rich_help_panel="Dispatch",
            help="Late binding: lead time by which a batch is sent before its start.",
        ),
    ] = 0,
    lead_us_per_sample: Annotated[
        int,
        typer.Option(
            metavar="US",
            min=0,
            rich_help_panel="Dispatch",
            help="Additional lead time per sample in the batch.",
        ),
    ] = 0,
    arrivals: shared_options.ArrivalsFrom = "poisson",
    shape: shared_options.Shape = 0.3,
    load_factor: shared_options.LoadFactor = None,
    rate: shared_options.Rate = None,
    reference_plan: shared_options.ReferencePlan = None,
    model: shared_options.Models = None,
    application: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel="Load",
            help="Send load to this application only; repeat it for several applications.",
        ),
    ] = None,
    rows: Annotated[
        str,
        typer.Option(
            metavar="poisson|fixed",
            rich_help_panel="Load",
            help="Rows per module: drawn for every job, or constant and as near to the mean as "
            "whole numbers allow.",
        ),
    ] = "poisson",
    nic: shared_options.Nic = "shared",
    count_io: Annotated[
        bool,
        typer.Option(
            "--count-io",
            rich_help_panel="Emulated hardware",
            help="Also send inputs and answers over the network links.",
        ),
    ] = False,
    rides: Annotated[
        bool,
        typer.Option(
            rich_help_panel="Dispatch",
            help="Share batches between pipelines in the stages where the plan joins them; with "
            "--no-rides each pipeline runs its own.",
        ),
    ] = True,
    admission: Annotated[
        bool,
        typer.Option(
            "--admission",
            rich_help_panel="Dispatch",
            help="Refuse requests on arrival as the gateway does under overload.",
        ),
    ] = False,
    duration: shared_options.Duration = 30.0,
    seed: shared_options.Seed = 0,
    noise: Annotated[
        float,
        typer.Option(
            metavar="FACTOR",
            min=0.0,
            max=10.0,
            rich_help_panel="Emulated hardware",
            help="Coefficient of variation of a stage's run time.",
        ),
    ] = 0.0,
    interference: Annotated[
        str,
        typer.Option(
            metavar="planned|overlap|off",
            rich_help_panel="Emulated hardware",
            help="Slow-down on shared GPUs: the planned factor, computed from the actual "
            "overlap, or none.",
        ),
    ] = "planned",
    interference_noise: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            max=10.0,
            rich_help_panel="Emulated hardware",
            help="With --interference overlap: 90th percentile of the relative error of the "
            "slow-down.",
        ),
    ] = 0.0,
    find_goodput: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            max=1.0,
            rich_help_panel="Goodput",
            help="Search the highest load at which this share of requests is served in time.",
        ),
    ] = None,
    goodput_step: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            min=0.001,
            max=1.0,
            rich_help_panel="Goodput",
            help="Step of the search, as a load factor; 0.05 by default.",
        ),
    ] = None,
    fail: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE[:GPU]@FROM-TO",
            rich_help_panel="Changes",
            help="Take a node, a GPU or a vGPU (vgpu:3@5-10) away between two instants, in "
            "seconds.",
        ),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SECONDS=PLAN",
            rich_help_panel="Changes",
            help="Switch to this plan at this instant, with work in flight; repeat it for several.",
        ),
    ] = None,
    flush: Annotated[
        bool,
        typer.Option(
            "--flush",
            rich_help_panel="Changes",
            help="Switch plans only when no work is in flight.",
        ),
    ] = False,
    epoch: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=1e-3,
            rich_help_panel="Changes",
            help="Report per epoch of this length, with the scaling advice after each.",
        ),
    ] = None,
    autoscale: Annotated[
        bool,
        typer.Option(
            "--autoscale",
            rich_help_panel="Changes",
            help="Apply the advice after every --epoch; plans of shared GPUs are planned again "
            "instead.",
        ),
    ] = False,
    clients: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel="Edge clients",
            help="Clients that run the first blocks themselves: name, model, fps, slo_ms, "
            "heads_us, link.",
        ),
    ] = None,
    links: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel="Edge clients",
            help="Their uplinks over time: columns time_s, mbit_per_s and, for several links, "
            "link.",
        ),
    ] = None,
    steer: Annotated[
        bool,
        typer.Option(
            "--steer",
            rich_help_panel="Edge clients",
            help="Make new plans as clients change their cuts, as `poolpipe steer` does.",
        ),
    ] = False,
    plan_ms: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            min=0.0,
            rich_help_panel="Edge clients",
            help="With --steer: time that planning takes; by default the time that it does take.",
        ),
    ] = None,
    start_s: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.0,
            rich_help_panel="Edge clients",
            help="With --steer: time that new workers take to start.",
        ),
    ] = 2.0,
    trace_time: shared_options.TraceTime = "arrival_s",
    trace_model: shared_options.TraceModel = None,
    trace_interval: shared_options.TraceInterval = None,
    trace_names: shared_options.TraceNames = None,
    trace_as_is: Annotated[
        bool,
        typer.Option(
            "--trace-as-is",
            rich_help_panel="Traces",
            help="Send requests at the times of the trace, unscaled, with its columns "
            "deadline_ms, samples and entry.",
        ),
    ] = False,
    records: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write one row per request to this Parquet file."),
    ] = None,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Run a plan against load, in virtual time.

    The scheduler is the one that serves. Of events at one instant, ends come first, then timers, then
    arrivals one by one, in the order of the trace.
    """
    from flows.cli.project import keep_run, the_plan
    from flows.cli.simulate.epochs import show_epochs
    from flows.cli.simulate.request import (
        OfferedLoad,
        SimulationRequest,
        parse_change,
        parse_failure,
    )
    from flows.workspace import find_plan, workspace
    from triton_backend.contract.errors import InputError
    from triton_backend.simulator.results import OPTIONAL, request_columns
    from triton_backend.simulator.scenario import PlanChange, SimOptions, policies_of
    from warehouse.parquet import write_columns

    work = workspace(warehouse)
    request = SimulationRequest(
        options=SimOptions(
            policy=policy,
            heads=heads,
            target=target,
            rank=rank,
            batch_timeout_ms=batch_timeout_ms,
            batch_timeout_share=batch_timeout_share,
            lead_us=lead_us,
            lead_us_per_sample=lead_us_per_sample,
            load_factor=1.0 if load_factor is None else load_factor,
            rate_rps=rate,
            reference=None if reference_plan is None else find_plan(work, reference_plan),
            models=None if model is None else tuple(model),
            applications=None if application is None else tuple(application),
            rows=rows,
            nic=nic,
            count_io=count_io,
            rides=rides,
            admission=admission,
            duration_s=duration,
            seed=seed,
            latency_noise_cv=noise,
            interference=interference,
            interference_noise=interference_noise,
            failures=tuple(map(parse_failure, fail or ())),
            changes=tuple(
                PlanChange(at_s=at_s, plan=find_plan(work, name), flush=flush)
                for at_s, name in map(parse_change, change or ())
            ),
        ),
        load=OfferedLoad(
            arrivals=arrivals,
            shape=shape,
            time_column=trace_time,
            model_column=trace_model,
            interval_s=trace_interval,
            names=pairs("--map", trace_names),
            as_is=trace_as_is,
        ),
    )
    if trace_as_is:
        scaled = (load_factor, "--load-factor"), (rate, "--rate"), (find_goodput, "--find-goodput")
        for value, option in scaled:
            if value is not None:
                raise InputError(option, "scales arrivals, which --trace-as-is keeps as they are")
    found = the_plan(plan, plan_option, warehouse)
    if policy is not None and policy != (stated := policies_of(found)):
        note(f"policy {policy} in place of the plan's {stated}")
    if clients is not None or links is not None or steer:
        from flows.cli.simulate.clients import show_clients

        if clients is None:
            raise InputError("--steer" if steer else "--links", "needs --clients")
        unused = {
            "--find-goodput": find_goodput,
            "--records": records,
            "--epoch": epoch,
            "--autoscale": autoscale,
            "--fail": fail,
            "--change": change,
            "--load-factor": load_factor,
            "--rate": rate,
            "--application": application,
        }
        options, how = request.options, (steer, plan_ms, start_s)
        show_clients(found, options, (clients, links), how, unused, work, as_json=as_json)
        return
    if epoch is not None or autoscale:
        unused = {"--find-goodput": find_goodput, "--records": records}
        show_epochs(found, request, (epoch, autoscale), unused, work, as_json=as_json)
        return
    with progress("simulating"):
        result = request.run(found, find_goodput, goodput_step)
        if records is not None:
            write_columns(records, request_columns(result), OPTIONAL)
    out = result.to_dict()
    run_id = keep_run(warehouse, "simulate", found, (request.to_dict(), out))
    if as_json:
        print_json(out | ({} if run_id is None else {"run_id": run_id}))
        return
    _print(result)
    show(f"stored as {run_id}" if run_id else "not stored")


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
            words.milliseconds(model.latency_ms.p50),
            words.milliseconds(model.latency_ms.p99),
            model.mean_batch,
        )
        for model in result.models
        if model.offered or model.batches or not result.applications
    ]
    head = ("model", "offered", "served", "late", "dropped", "attainment", "p50", "p99", "batch")
    show(table(head, rows))
    _print_entries(result)
    _print_applications(result)
    busy = ", ".join(
        f"{words.percent(share)} of {name}" for name, share in result.utilisation.items()
    )
    show(f"attainment {words.percent(result.attainment, 2)}; busy: {busy}")
    if result.goodput:
        rows = [(name, found["load_factor"], found["rps"]) for name, found in _found(result)]
        show(table(("goodput", "load factor", "requests/s"), rows))


def _print_entries(result: "SimResult") -> None:
    from flows.reporting import words

    rows = [
        (
            model,
            name,
            found.outcome.offered,
            found.outcome.served,
            found.outcome.late,
            found.outcome.dropped,
            words.percent(found.outcome.attainment, 2),
            words.milliseconds(found.latency_ms.p50),
            words.milliseconds(found.latency_ms.p99),
            f"{fill.samples:.2f}" if fill else "–",
            f"{fill.entries:.2f}" if fill else "–",
        )
        for model, entries in result.entries.items()
        for name, found in entries.items()
        for fill in [found.ride_fill]
    ]
    head = ("model", "entry", "offered", "served", "late", "dropped", "attainment", "p50", "p99")
    if rows:
        show(table((*head, "samples/ride", "entries/ride"), rows, texts=2))


def _print_applications(result: "SimResult") -> None:
    from flows.reporting import words

    for name, found in result.applications.items():
        jobs = found.outcome
        rows = [
            (
                name,
                jobs.offered,
                jobs.served,
                jobs.late,
                jobs.dropped,
                words.percent(jobs.attainment, 2),
                words.milliseconds(found.latency_ms.p50),
                words.milliseconds(found.latency_ms.p99),
            )
        ]
        head = ("application", "offered", "served", "late", "dropped", "attainment", "p50", "p99")
        show(table(head, rows))
        rows = [
            (
                name,
                module.tasks,
                module.rows,
                module.done,
                words.milliseconds(module.queueing_ms.p50),
                words.milliseconds(module.latency_ms.p50),
                words.milliseconds(module.latency_ms.p99),
            )
            for name, module in found.modules.items()
        ]
        show(table(("module", "tasks", "rows", "done", "queueing", "p50", "p99"), rows))


def _found(result: "SimResult") -> list[tuple[str, dict[str, float]]]:
    return [("all together", result.goodput["joint"]), *result.goodput["models"].items()]
