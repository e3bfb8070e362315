"""Options that several commands share, each declared once: name, help, environment variable."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.state import WAREHOUSE_DEFAULT, WAREHOUSE_VARIABLE

WAREHOUSE = Path(WAREHOUSE_DEFAULT)

WarehouseFile = Annotated[
    Path,
    typer.Option("--warehouse", metavar="FILE", envvar=WAREHOUSE_VARIABLE, help="The DuckDB file."),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout, nothing else.")
]
# Every command that takes a plan takes it in both ways; `project.the_plan` settles which.
PlanArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="PLAN", help="A plan.json, the id of a stored plan, or the beginning of one."
    ),
]
PlanOption = Annotated[str | None, typer.Option("--plan", metavar="PLAN", help="The same.")]
ClusterFile = Annotated[Path, typer.Option("--cluster", metavar="FILE", help="cluster.yaml.")]
BuildingCluster = Annotated[
    Path | None,
    typer.Option(
        "--cluster", metavar="FILE", help="Whose runtimes build new stages; without it, none are."
    ),
]
EndAfter = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="End after so many; without it, when interrupted."),
]
Advisory = Annotated[bool, typer.Option("--advisory", help="Everything but the changes.")]
WorkloadFile = Annotated[Path, typer.Option("--workload", metavar="FILE", help="workload.yaml.")]

Planner = Annotated[
    str, typer.Option(metavar="NAME", help="Who plans; `poolpipe planners` lists them.")
]
Objective = Annotated[str, typer.Option(metavar="throughput|cost|power|gpus|share")]
MaxPartitions = Annotated[int, typer.Option(min=1, metavar="N", help="Most stages of a pipeline.")]
Solver = Annotated[str, typer.Option(metavar="highs|gurobi")]
TimeLimit = Annotated[
    float | None,
    typer.Option(min=0.1, max=1e6, metavar="S", help="Seconds that planning may take."),
]

PolicyOfAll = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="NAME",
        help="Dispatch policy of all models; without it each has the one that its plan says.",
    ),
]
Nic = Annotated[
    str,
    typer.Option(
        metavar="shared|isolated",
        help="One pair of links per node for all that runs there, or a pair per pipeline.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="Every random draw follows from it.")]
Duration = Annotated[float, typer.Option(min=0.001, max=1e7, metavar="S", help="Seconds of load.")]
LoadFactor = Annotated[
    float | None,
    typer.Option(
        min=0.0001, max=1e6, metavar="X", help="Times the planned rates of the reference plan."
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        min=0.0001, max=1e9, metavar="RPS", help="Requests per second over all models instead."
    ),
]
ReferencePlan = Annotated[
    str | None,
    typer.Option(metavar="PLAN", help="Plan whose rates are scaled; the plan itself without it."),
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model", metavar="NAME", help="Load this model alone (may be given several times)."
    ),
]
ArrivalsFrom = Annotated[
    str,
    typer.Option(
        "--arrivals", metavar="poisson|gamma|deterministic|FILE", help="A process or a trace."
    ),
]
Shape = Annotated[
    float,
    typer.Option(
        min=0.0001, max=1e6, metavar="X", help="Shape of gamma arrivals; below 1 is bursty."
    ),
]
TraceTime = Annotated[
    str, typer.Option(metavar="COLUMN", help="Time column of a trace, in seconds.")
]
TraceModel = Annotated[str | None, typer.Option(metavar="COLUMN", help="Model column of a trace.")]
TraceInterval = Annotated[
    float | None,
    typer.Option(
        min=0.001, max=1e7, metavar="S", help="The trace has a row of counts per S seconds."
    ),
]
TraceNames = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="SERIES=MODEL", help="A name in the trace, and the plan's."),
]

Port = Annotated[int, typer.Option(min=1, max=65_535, metavar="PORT")]
Address = Annotated[str, typer.Option(metavar="HOST", help="Where to listen; loopback by default.")]
AcceptOldServer = Annotated[
    bool,
    typer.Option(
        "--accept-old-server", help="Let the wheel's Triton of 2024 listen beyond loopback."
    ),
]
Gateways = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        max=2,
        help="Servers on the same ports: of two, one may die. Metrics of the second: the next port."
        " Rendered, both are in one container, of a plan on one node.",
    ),
]
CutModels = Annotated[
    bool,
    typer.Option(
        "--cut-models",
        help="A Triton model NAME_cut_BLOCK for every open cut of a model with entries, which takes that cut's"
        " tensors alone. Requests reach NAME through it, half a millisecond later.",
    ),
]

InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape",
        metavar="NAME=SIZES",
        help="Shape of an input without the batch, as x=3x320x320, where sizes are open.",
    ),
]
InputRanges = Annotated[
    list[str] | None,
    typer.Option(
        "--input-range",
        metavar="NAME=LOW..HIGH",
        help="Draw an input's values from LOW to HIGH, both included, for all checks.",
    ),
]
Samples = Annotated[
    Path | None,
    typer.Option(
        "--samples",
        metavar="FILE|FOLDER",
        help="Check with these samples: .npz, arrays called as the inputs, each [samples, ...].",
    ),
]
AllowUnproven = Annotated[
    bool,
    typer.Option(
        "--allow-unproven", help="Cut also where two different inputs do not differ any more."
    ),
]

Runtime = Annotated[
    Literal["onnxruntime", "tensorrt"],
    typer.Option(help="For classes with a `runtime` (CPUs), or for all others (GPUs)."),
]
Precision = Annotated[
    Literal["fp32", "fp16"], typer.Option(help="tensorrt: of stages and boundaries.")
]
Library = Annotated[
    Literal["tensorrt", "tensorrt-rtx"] | None,
    typer.Option(help="tensorrt: which one; the first installed without it."),
]
Capability = Annotated[
    list[str] | None,
    typer.Option(metavar="CLASS=8.9", help="tensorrt: of classes with names of their own."),
]


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

    found: dict[str, float] = {}
    for key, text in pairs(option, texts).items():
        try:
            found[key] = float(text)
        except ValueError as error:
            raise InputError(option, f"{text!r} is not a number; write MODEL=NUMBER") from error
        if not 0 <= found[key] < float("inf"):
            raise InputError(option, f"{key}={text} is not a rate (requests/s)")
    return found
