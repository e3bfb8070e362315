"""Options that every planner takes, declared once.

Importing them loads neither planners nor numpy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan

from flows.options import option
from triton_backend.contract.workload import MOST_RPS, MOST_STAGES

OBJECTIVES = ("throughput", "cost", "power", "gpus", "share")
SOLVERS = ("highs", "gurobi")
SWEPT = ("objective", "max_partitions", "slo_margin", "time_limit_s")
"""Those that a what-if takes beside its planners."""

_PLANNING, _CONSTRAINTS = "Planning", "Constraints"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """How to plan, whatever the planner."""

    planner: str = option(
        "pool",
        help="The planner; `poolpipe planners` lists them.",
        metavar="NAME",
        panel=_PLANNING,
    )
    objective: str = option(
        "throughput",
        help="Maximise throughput, or minimise hourly cost, watts, GPUs, or percents of GPUs at the"
        " workload's rates.",
        choices=OBJECTIVES,
        panel=_PLANNING,
    )
    max_partitions: int = option(
        2,
        help="Split a model into at most this many stages.",
        least=1,
        most=MOST_STAGES,
        panel=_PLANNING,
    )
    slo_margin: float = option(
        nan,
        help="Share of every SLO to keep free for waiting; by default the planner's own.",
        least=0.0,
        most=0.99,
        metavar="SHARE",
        panel=_PLANNING,
    )
    slo_margins: Mapping[str, float] = option(
        {}, help="The same for single models, by name.", least=0.0, most=0.99, spelled=""
    )
    profile_factor: float = option(
        1.0,
        help="Plan with every latency this many times that of its profile: with 1.2 the rates hold"
        " when all stages are a fifth slower than profiled.",
        least=1.0,
        most=10.0,
        metavar="FACTOR",
        panel=_PLANNING,
    )
    solver: str = option(
        "highs", help="The solver of the integer programs.", choices=SOLVERS, panel=_PLANNING
    )
    time_limit_s: float | None = option(
        None,
        help="Stop planning after this time with the best plan so far; by default there is "
        "no limit. Compiling, once per machine, does not count.",
        least=0.1,
        most=1e6,
        metavar="SECONDS",
        spelled="--time-limit",
        panel=_PLANNING,
    )
    gap: float = option(
        1e-4,
        help="Stop once the plan is proven within this relative gap.",
        least=0.0,
        most=0.99,
        metavar="SHARE",
        panel=_PLANNING,
    )
    allowed_classes: Mapping[str, tuple[str, ...]] = option(
        {},
        help="Let this model use these GPU classes only.",
        metavar="MODEL=CLASS,CLASS",
        spelled="--allow",
        panel=_CONSTRAINTS,
    )
    excluded_classes: Mapping[str, tuple[str, ...]] = option(
        {},
        help="Keep this model (or `*`, every model) off these GPU classes.",
        metavar="MODEL=CLASS,CLASS",
        spelled="--exclude",
        panel=_CONSTRAINTS,
    )
    minimum_rps: Mapping[str, float] = option(
        {},
        help="Guarantee this model at least this rate.",
        least=0.0,
        most=MOST_RPS,
        metavar="MODEL=RPS",
        spelled="--keep",
        panel=_CONSTRAINTS,
    )
    pinned_models: tuple[str, ...] = option(
        (),
        help="Keep the pools that this model has in the --previous plan.",
        metavar="MODEL",
        spelled="--pin",
        panel=_CONSTRAINTS,
    )
