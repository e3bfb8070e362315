"""GPUs cut into unequal parts that models share in turns (gpulets)."""

from collections.abc import Callable

from flows.planning.gpulets.open_seats import SPACE
from flows.planning.gpulets.open_seats import plan as plan_open
from flows.planning.gpulets.plan import plan
from flows.planning.promises.headroom import HEADROOM
from flows.planning.registry import DEFAULT_MARGIN, Inputs, Option, Outcome, Planner

Solve = Callable[[Inputs], Outcome]

OPTIONS = (
    Option(
        name="max_models_per_vgpu",
        default=3,
        help="Models that may take turns on one part of a GPU.",
        least=1,
        most=6,
    ),
    Option(
        name="interference",
        default="planned",
        help="Whether neighbours on a GPU are reckoned to slow each other down, where that "
        "is known.",
        choices=("planned", "off"),
    ),
    Option(
        name="interference_quantile",
        default=0.95,
        help="Share of pairs that slow down no more than planned.",
        least=0.0,
        most=1.0,
    ),
    HEADROOM,
)


def planner_of_turns(
    name: str, entry: Solve, space: str = "its own rule", *, mig: bool = False
) -> Planner:
    """A planner of whole models that take turns on parts of GPUs, with the options of all such."""
    return Planner(
        name=name,
        plan=entry,
        space=space,
        objectives=("throughput", "gpus", "cost", "power"),
        options=OPTIONS,
        most_stages=1,
        rates_from=(),
        slo_margin=0.1,
        mig=mig,
    )


OPEN_OPTIONS = (
    *OPTIONS,
    Option(
        name="pipeline_margin",
        default=DEFAULT_MARGIN,
        help="Share of the SLO that pipelines keep free; --slo-margin is what turns do.",
        least=0.0,
        most=0.99,
        stated=True,
    ),
)

PLANNERS = (
    planner_of_turns("gpulets", plan, "gpu-patterns", mig=True),
    Planner(
        name="gpulets-open",
        plan=plan_open,
        space=SPACE,
        options=OPEN_OPTIONS,
        rates_from=("no-partitioning", "pool"),
        slo_margin=0.1,
    ),
)
