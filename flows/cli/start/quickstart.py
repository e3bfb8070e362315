"""`quickstart`: the main job from end to end."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli import shared_options
from flows.cli.console import note, print_json, say, show, table
from flows.cli.prepare.choices import choices_of_models, given_inputs, split_choices
from flows.cli.registry import command
from flows.cli.serve.options import Ports
from flows.cli.shared_options import WAREHOUSE, AsJson, WarehouseFile
from triton_backend.contract.errors import InputError, PoolPipeError

if TYPE_CHECKING:
    from flows.deployments.quickstart import Finished
    from flows.quickstart.example_project import OfferedModel
    from flows.quickstart.outcome import QuickstartOutcome
    from flows.workspace import Workspace


def _flow_workspace(warehouse: Path) -> "Workspace":
    """The workspace of a flow; Prefect's settings are made before it is first imported."""
    from flows.deployments.orchestration.home import prepare_prefect
    from flows.workspace import workspace

    work = workspace(warehouse)
    prepare_prefect(work.state.prefect)
    return work


@dataclass(frozen=True, kw_only=True)
class OwnModels:
    """The user's own models in place of the examples."""

    model: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Your own ONNX model in place of the two examples; repeat it to serve several "
            "together.",
        ),
    ] = None
    slo_ms: Annotated[
        list[float] | None,
        typer.Option(
            metavar="MS",
            min=0.001,
            max=1e9,
            help="Latency objective of your models: one for all of them, or one per model in "
            "their order.",
        ),
    ] = None
    input_shape: shared_options.InputShapes = None
    size_share: Annotated[
        list[float] | None,
        typer.Option(
            metavar="SHARE",
            min=1e-6,
            max=1,
            help="Share of requests of each size, in the order of --input-shape; equal by default.",
            rich_help_panel=shared_options.INPUTS,
        ),
    ] = None
    samples: shared_options.Samples = None
    input_range: shared_options.InputRanges = None
    allow_unproven: shared_options.AllowUnproven = False

    def models(self) -> "tuple[OfferedModel, ...]":
        """The models, read and checked; none where the examples are served.

        Raises:
            InputError: options do not fit each other or the models.
        """
        given = given_inputs(self.input_shape, self.input_range, self.samples)
        shares = self.size_share or ()
        paths, slos_ms = self.model or (), self.slo_ms or ()
        if not paths and not slos_ms:
            if given != given_inputs(None, None, None) or shares or self.allow_unproven:
                reason = "goes with --model; the examples have fixed inputs"
                options = "--input-shape, --size-share, --input-range, --samples, --allow-unproven"
                raise InputError(f"quickstart {options}", reason)
            return ()
        from flows.quickstart.example_project import check_models_and_slos, own_models

        check_models_and_slos(paths, slos_ms)
        chosen = split_choices(given, allow_unproven=self.allow_unproven)
        if shares and len(shares) != len(chosen):
            sizes = f"{len(chosen)} sizes" if len(chosen) > 1 else "one size"
            raise InputError(
                "--size-share", f"{len(shares)} shares, and --input-shape gives {sizes}"
            )
        return own_models(paths, slos_ms, choices_of_models(paths, chosen), shares)


@dataclass(frozen=True, kw_only=True)
class TriedLoad:
    """The load that the served models get, and what it is judged by."""

    load_factor: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            min=0.01,
            rich_help_panel="Load",
            help="Share of the planned rate that is offered; by default 0.5, at most 400 "
            "requests/s.",
        ),
    ] = None
    duration: shared_options.Duration = 20.0
    attainment_target: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            max=1.0,
            rich_help_panel="Load",
            help="Exit with 1 if a model serves less than this share of its requests in time.",
        ),
    ] = 0.95
    seed: shared_options.Seed = 0


@command(
    "quickstart",
    "poolpipe quickstart",
    "poolpipe quickstart --application",
    "poolpipe quickstart --application ocr",
    "poolpipe quickstart --planner subclusters",
    "poolpipe quickstart --model net.onnx --slo-ms 80",
    "poolpipe quickstart --model yolo.onnx --slo-ms 300 --input-shape images=3x320x320",
    "poolpipe quickstart --model rec.onnx --slo-ms 300 --input-shape x=3x48x320 "
    "--input-shape x=3x48x640 --size-share 0.7 --size-share 0.3",
    "poolpipe quickstart --model a.onnx --slo-ms 80 --model b.onnx --slo-ms 200",
)
def quickstart(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="APPLICATION",
            help="With --application, which one: `traffic` or `ocr`.",
            show_default="traffic",
        ),
    ] = None,
    *,
    own: OwnModels,
    application: Annotated[
        bool,
        typer.Option(
            "--application",
            help="Serve an example application: a detector, crops of its boxes, and two "
            "classifiers; or `ocr`: pages of text read by trained models (extra `ocr`).",
        ),
    ] = False,
    planner: Annotated[
        str, typer.Option(metavar="NAME", help="The planner; `poolpipe planners` lists them.")
    ] = "pool",
    keep_serving: Annotated[
        bool, typer.Option("--keep-serving", help="Leave the server running at the end.")
    ] = False,
    load: TriedLoad,
    ports: Ports,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Run every step in one go, from models to a report.

    Split, build, profile, plan, simulate, roll out on Triton, load, report; what an earlier run
    left is reused, and everything started is stopped at the end. Wrong answers, and a model under
    the attainment target, end it with 1.
    """
    from flows.planning.registry import PlanOptions
    from flows.release.server.admin import check_can_start

    work, endpoints = _flow_workspace(warehouse), ports.endpoints()
    # Said at once, not after the minutes that profiling takes.
    PlanOptions(planner=planner)
    if application and (own.model or own.slo_ms or planner != "pool"):
        reason = "has models of its own, planned by pool; leave out --model, --slo-ms, --planner"
        raise InputError("quickstart --application", reason)
    chosen, models = _chosen_application(name, asked=application), own.models()
    check_can_start(work.state.serve, endpoints)
    from flows.deployments.orchestration.server import start_prefect_server

    server = start_prefect_server()
    from flows.deployments.orchestration.limits import taking_turns
    from flows.deployments.quickstart import QuickstartOptions
    from flows.deployments.quickstart import quickstart as run

    asked = QuickstartOptions(
        models=models,
        application=chosen,
        keep_serving=keep_serving,
        load_factor=load.load_factor,
        load_seconds=load.duration,
        seed=load.seed,
        ports=endpoints,
        planner=planner,
    )
    if server is None:  # others write through that one too
        work = taking_turns(work)
    else:
        server.wait()
    found = run(work, asked, say(quiet=as_json))
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found)
    _judge(found.outcome, load.attainment_target)


def _chosen_application(name: str | None, *, asked: bool) -> str | None:
    """The example application to run, if any; the packages that it needs are looked for at once."""
    from flows.quickstart.example_project import APPLICATION, APPLICATIONS, OCR

    if name is not None and not asked:
        raise InputError(f"quickstart {name}", "a name goes with --application")
    if name is not None and name not in APPLICATIONS:
        known = ", ".join(APPLICATIONS)
        raise InputError(f"quickstart --application {name}", f"there are {known}")
    if name == OCR:
        from triton_backend.runtimes.python_step.ocr import model_file

        model_file("Det")
    return (name or APPLICATION) if asked else None


def _judge(found: "QuickstartOutcome", attainment_target: float) -> None:
    from flows.quickstart.outcome import failures, overloaded, shortcomings

    missed = shortcomings(found, attainment_target)
    for reason in (overloaded(found), failures(found)):
        if reason is not None:
            note(reason)
    if missed:
        raise PoolPipeError(f"quickstart: {'; '.join(missed)}")


def _print(found: "Finished") -> None:
    from flows.reporting import words
    from triton_backend.contract.units import us_to_ms
    from triton_backend.runtimes.stage_tensors import served_model

    outcome = found.outcome
    simulated = {name: outcome.simulated_of(name) for name in outcome.measured.models}
    planned = {name: served_model(outcome.plan, name) for name in outcome.measured.models}
    rows = [
        (
            name,
            *(row.offered, row.served, row.late, row.dropped, row.failed),
            words.percent(row.attainment, 2),
            words.percent(simulated[name].outcome.attainment, 2),
            words.milliseconds(row.p50_ms),
            words.milliseconds(row.p99_ms),
            words.milliseconds(simulated[name].latency_ms.p99),
            words.milliseconds(us_to_ms(planned[name].slo_us)),
            words.rate(planned[name].throughput_rps),
        )
        for name, row in outcome.measured.models.items()
    ]
    counts = ("offered", "served", "late", "dropped", "failed")
    head = ("model", *counts, "attained", "simulated", "p50", "p99", "simulated", "SLO", "planned")
    show(table(head, rows))
    show(f"report: {found.report}")
    if found.serving is not None:
        show(f"serving on HTTP {found.serving.http_url} and gRPC {found.serving.grpc_url};")
        show("`poolpipe stop` ends it")
