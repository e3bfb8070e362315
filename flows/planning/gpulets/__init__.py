"""GPUs cut into unequal parts that models share in turns (gpulets)."""

from flows.planning.gpulets.baselines import entries
from flows.planning.gpulets.plan import plan
from flows.planning.registry import Option, Planner

OPTIONS = (
    Option(
        name="max_models_per_vgpu",
        kind=int,
        default=3,
        help="Models that may take turns on one part of a GPU.",
        least=1,
        most=6,
    ),
    Option(
        name="interference",
        kind=str,
        default="planned",
        help="Whether neighbours on a GPU are reckoned to slow each other down, where that is known.",
        choices=("planned", "off"),
    ),
    Option(
        name="interference_quantile",
        kind=float,
        default=0.95,
        help="Share of pairs that slow down no more than planned.",
        least=0.0,
        most=1.0,
    ),
    Option(
        name="headroom",
        kind=str,
        default="none",
        help="Rates to plan for: none (as asked), a factor, or poisson99.",
    ),
)

PLANNERS = (
    Planner(
        name="gpulets",
        plan=plan,
        space="gpu-patterns",
        objectives=("throughput", "gpus", "cost", "power"),
        options=OPTIONS,
        most_stages=1,
        rates_from=(),
        slo_margin=0.1,
    ),
    *(
        Planner(
            name=name,
            plan=entry,
            space="its own rule",
            objectives=("throughput", "gpus", "cost", "power"),
            options=OPTIONS,
            most_stages=1,
            rates_from=(),
            slo_margin=0.1,
        )
        for name, entry in entries()
    ),
)
