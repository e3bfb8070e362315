"""Options that several commands share, each declared once: name, help, environment variable."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import typer

from flows.state import WAREHOUSE_DEFAULT, WAREHOUSE_VARIABLE

WAREHOUSE = Path(WAREHOUSE_DEFAULT)
GAMMA = "gamma"
PROCESSES = ("poisson", GAMMA, "deterministic")
SHAPE = 0.3  # of gamma arrivals, where none is given
TIME_COLUMN = "arrival_s"

WarehouseFile = Annotated[
    Path,
    typer.Option(
        "--warehouse",
        metavar="FILE",
        envvar=WAREHOUSE_VARIABLE,
        help="The project's DuckDB warehouse file.",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")
]
# Every command that takes a plan takes it in both ways; `project.the_plan` settles which.
PlanArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="PLAN",
        help="A plan.json, the id of a stored plan, or the first characters of that id.",
    ),
]
PlanOption = Annotated[
    str | None, typer.Option("--plan", metavar="PLAN", help="The same plan, given as an option.")
]
ClusterFile = Annotated[
    Path,
    typer.Option(
        "--cluster", metavar="FILE", help="The cluster.yaml that lists GPU classes and nodes."
    ),
]
BuildingCluster = Annotated[
    Path | None,
    typer.Option(
        "--cluster",
        metavar="FILE",
        help="A cluster.yaml whose runtimes build missing stages; by default none is built.",
    ),
]
EndAfter = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Stop after this many rounds; by default the command runs until interrupted.",
    ),
]
WorkloadFile = Annotated[
    Path,
    typer.Option(
        "--workload",
        metavar="FILE",
        help="The workload.yaml that lists models and applications with their SLOs.",
    ),
]

PolicyOfAll = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="NAME",
        rich_help_panel="Dispatch",
        help="Dispatch policy of all models; by default each model has the policy that its "
        "plan names.",
    ),
]
Nic = Annotated[
    str,
    typer.Option(
        metavar="shared|isolated",
        rich_help_panel="Emulated hardware",
        help="Network links: one pair per node, shared by all that runs there, or one pair "
        "per pipeline.",
    ),
]
Seed = Annotated[
    int, typer.Option(metavar="N", min=0, rich_help_panel="Load", help="Seed of every random draw.")
]
Duration = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        min=0.001,
        max=1e7,
        rich_help_panel="Load",
        help="How long requests are sent, in seconds.",
    ),
]
LoadFactor = Annotated[
    float | None,
    typer.Option(
        metavar="FACTOR",
        min=0.0001,
        max=1e6,
        rich_help_panel="Load",
        help="Offer this multiple of the planned rates of the reference plan; 1 by default.",
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        metavar="RPS",
        min=0.0001,
        max=1e9,
        rich_help_panel="Load",
        help="Offer this total rate over all models, in place of --load-factor.",
    ),
]
ReferencePlan = Annotated[
    str | None,
    typer.Option(
        metavar="PLAN",
        rich_help_panel="Load",
        help="The plan whose rates --load-factor multiplies; by default the plan itself.",
    ),
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="NAME",
        rich_help_panel="Load",
        help="Send load to this model only; repeat it for several models.",
    ),
]
ArrivalsFrom = Annotated[
    str,
    typer.Option(
        "--arrivals",
        metavar="poisson|gamma|deterministic|FILE",
        rich_help_panel="Load",
        help="The arrival process, or a trace file (.csv, .csv.gz).",
    ),
]
Shape = Annotated[
    float,
    typer.Option(
        metavar="FACTOR",
        min=0.0001,
        max=1e6,
        rich_help_panel="Load",
        help="Shape of gamma arrivals; values below 1 are bursty.",
    ),
]
TraceTime = Annotated[
    str,
    typer.Option(
        metavar="COLUMN",
        rich_help_panel="Traces",
        help="The column that holds the arrival time, in seconds.",
    ),
]
TraceModel = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        rich_help_panel="Traces",
        help="The column that names the model; by default all rows are of one model.",
    ),
]
TraceInterval = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0.001,
        max=1e7,
        rich_help_panel="Traces",
        help="Length of one row, for a table that holds counts per interval.",
    ),
]
TraceNames = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="SERIES=MODEL",
        rich_help_panel="Traces",
        help="Map a name in the trace to a model of the plan; repeat it for several.",
    ),
]


def _port(about: str) -> Any:
    return typer.Option(
        min=1, max=65_535, metavar="PORT", rich_help_panel="Endpoints", help=f"{about}."
    )


HttpPort = Annotated[int, _port("Port of the HTTP endpoint")]
GrpcPort = Annotated[int, _port("Port of the gRPC endpoint")]
MetricsPort = Annotated[int, _port("Port of the Prometheus metrics")]
Address = Annotated[
    str,
    typer.Option(
        metavar="HOST",
        rich_help_panel="Endpoints",
        help="Listen on this address; loopback by default.",
    ),
]
AcceptOldServer = Annotated[
    bool,
    typer.Option(
        "--accept-old-server",
        rich_help_panel="Endpoints",
        help="Allow the bundled Triton of 2024 to listen beyond loopback.",
    ),
]
Gateways = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        max=2,
        rich_help_panel="Endpoints",
        help="Run one or two servers on the same ports, so that one may fail. The second "
        "one has its metrics on the next port. `render` puts both into one container, "
        "for a plan on one node.",
    ),
]
CutModels = Annotated[
    bool,
    typer.Option(
        "--cut-models",
        rich_help_panel="Endpoints",
        help="Add a Triton model NAME_cut_BLOCK for every open cut of a model with entries. "
        "It takes only the tensors of that cut and adds 0.5 ms.",
    ),
]

LATE_BINDING = "Late binding"  # a panel of the help
LeadUs = Annotated[
    int,
    typer.Option(
        metavar="US",
        min=0,
        rich_help_panel=LATE_BINDING,
        help="Late binding: lead time by which a batch is sent before its start.",
    ),
]
LeadUsPerSample = Annotated[
    int,
    typer.Option(
        metavar="US",
        min=0,
        rich_help_panel=LATE_BINDING,
        help="Additional lead time per sample in the batch.",
    ),
]
Heads = Annotated[
    str | None,
    typer.Option(
        metavar="window|head",
        rich_help_panel=LATE_BINDING,
        help="Late binding: drop the oldest requests to keep batches whole (`window`), or "
        "only those that are too late (`head`).",
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        metavar="planned|measured",
        rich_help_panel=LATE_BINDING,
        help="Late binding: aim at the planned batch size, or at the size that the measured "
        "rate fills.",
    ),
]
Rank = Annotated[
    str | None,
    typer.Option(
        metavar="latest|deadline|efficiency",
        rich_help_panel=LATE_BINDING,
        help="Late binding: the rule that picks one of the queues that compete for a free vGPU.",
    ),
]
BatchTimeoutMs = Annotated[
    float | None,
    typer.Option(
        metavar="MS",
        min=0.0,
        rich_help_panel=LATE_BINDING,
        help="Policy `timeout`: longest time that a batch stays open.",
    ),
]
BatchTimeoutShare = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        min=0.0,
        rich_help_panel=LATE_BINDING,
        help="Policy `timeout`: the same as a share of each model's SLO.",
    ),
]
Guard = Annotated[
    float | None,
    typer.Option(
        "--guard",
        metavar="SHARE",
        min=0.0,
        max=0.9,
        help="Share of a request's time that the scheduler leaves to the way to and from it; by "
        "default what is measured.",
    ),
]

BesideModels = Annotated[
    list[Path] | None,
    typer.Option(
        "--beside",
        metavar="FOLDER",
        help="Load the models of this Triton repository that are not planned too, or the model "
        "of this folder; repeat it. The folder is only read.",
    ),
]

INPUTS = "Inputs of models"  # a panel of the help
InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape",
        metavar="NAME=SHAPE",
        help="Shape of an input without the batch, as x=3x320x320, where sizes are open; "
        "repeat it with another shape for a further size.",
        rich_help_panel=INPUTS,
    ),
]
InputRanges = Annotated[
    list[str] | None,
    typer.Option(
        "--input-range",
        metavar="NAME=RANGE",
        help="Draw an input's values from LOW to HIGH, both included, for all checks.",
        rich_help_panel=INPUTS,
    ),
]
Samples = Annotated[
    Path | None,
    typer.Option(
        "--samples",
        metavar="FILE|FOLDER",
        help="Check with these samples: .npz, arrays called as the inputs, each [samples, ...].",
        rich_help_panel=INPUTS,
    ),
]
AllowUnproven = Annotated[
    bool,
    typer.Option(
        "--allow-unproven",
        help="Cut also where two different inputs do not differ any more.",
        rich_help_panel=INPUTS,
    ),
]

Runtime = Annotated[
    Literal["onnxruntime", "tensorrt"],
    typer.Option(
        metavar="onnxruntime|tensorrt",
        help="`onnxruntime` for classes with a `runtime` in cluster.yaml, `tensorrt` for "
        "all others.",
    ),
]
Precision = Annotated[
    Literal["fp32", "fp16"],
    typer.Option(
        metavar="fp32|fp16",
        rich_help_panel="TensorRT",
        help="Precision of the stages and of the tensors between them.",
    ),
]
Library = Annotated[
    Literal["tensorrt", "tensorrt-rtx"] | None,
    typer.Option(
        metavar="tensorrt|tensorrt-rtx",
        rich_help_panel="TensorRT",
        help="The library to use; by default the first one that is installed.",
    ),
]
Capability = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CLASS=VALUE",
        rich_help_panel="TensorRT",
        help="Compute capability of a class whose name is not a known card, such as `mine=8.9`.",
    ),
]


class TraceOptions(Protocol):
    """Options that say how a trace is read."""

    @property
    def trace_time(self) -> str:
        """Its column of instants."""
        ...

    @property
    def trace_model(self) -> str | None:
        """Its column of names."""
        ...

    @property
    def trace_interval(self) -> float | None:
        """Length of a row of counts."""
        ...

    @property
    def trace_names(self) -> list[str] | None:
        """Its names and the plan's."""
        ...


def of_trace(options: TraceOptions) -> dict[str, object]:
    """Options of a trace, with true values where they are given."""
    return {
        "--trace-time": options.trace_time != TIME_COLUMN,
        "--trace-model": options.trace_model,
        "--trace-interval": options.trace_interval,
        "--map": options.trace_names,
    }


def check_load(
    arrivals: str,
    shape: float,
    factor: float | None,
    rate: float | None,
    trace: Mapping[str, object],
) -> None:
    """Refuse what would say nothing: two rates, and options of other arrivals than those asked for.

    Args:
        arrivals: a process, or the file of a trace.
        shape: of --shape.
        factor: of --load-factor.
        rate: of --rate.
        trace: options of a trace, with true values where they are given.

    Raises:
        InputError: there is such an option.
    """
    from triton_backend.contract.errors import InputError

    if factor is not None and rate is not None:
        raise InputError("--rate", "is in place of --load-factor; give one of them")
    if shape != SHAPE and arrivals != GAMMA:
        raise InputError("--shape", f"goes with --arrivals {GAMMA}, not {arrivals}")
    given = [option for option, value in trace.items() if value]
    if given and arrivals in PROCESSES:
        raise InputError(given[0], f"needs a trace, {arrivals} is a process")


def pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    """`A=B` texts as a mapping.

    Raises:
        InputError: a text has no `=` or names a key twice.
    """
    from triton_backend.contract.errors import InputError

    found: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key or not value or key in found:
            raise InputError(option, f"{text!r} is not NAME=VALUE with a new name")
        found[key] = value
    return found


def rates(option: str, texts: list[str] | None) -> dict[str, float]:
    """`MODEL=NUMBER` texts as a mapping.

    Raises:
        InputError: as `pairs`, or not a number that is 0 or more.
    """
    from triton_backend.contract.errors import InputError
    from triton_backend.contract.fields import check_finite

    found: dict[str, float] = {}
    for key, text in pairs(option, texts).items():
        try:
            found[key] = float(text)
        except ValueError as error:
            raise InputError(option, f"{text!r} is not a number; write MODEL=NUMBER") from error
        check_finite(f"{option} {key}", found[key])
        if not 0 <= found[key] < float("inf"):
            raise InputError(option, f"{key}={text} is not a number that is 0 or more")
    return found
