"""Whole models that share the GPUs of sub-clusters (Symphony)."""

from flows.planning.promises.headroom import HEADROOM
from flows.planning.registry import Option, Planner
from flows.planning.subclusters.division import AUTO
from flows.planning.subclusters.on_demand import plan

PLANNERS = (
    Planner(
        name="subclusters",
        plan=plan,
        space="sub-clusters",
        objectives=("throughput", "cost", "power", "gpus"),
        demands=("models", "variants"),
        options=(
            Option(
                name="subclusters",
                default=AUTO,
                help=f"How many; {AUTO}: the least whose models fit a GPU's memory.",
            ),
            Option(
                name="utilisation",
                default=0.9,
                help="Share of the time of many GPUs that is planned. Of few GPUs all but one is, "
                "or its square.",
                least=0.01,
                most=1.0,
                stated=True,
            ),
            Option(
                name="least_accuracy",
                default=0.0,
                help="Mean accuracy that suffices of a model with variants; 0: the most that fits.",
                least=0.0,
                most=1.0,
            ),
            Option(
                name="dispatch",
                default="timeout",
                help="Dispatch policy of the plan; deferred (Symphony's) is for many GPUs only.",
                choices=("timeout", "deferred"),
            ),
            Option(
                name="on_demand",
                default=False,
                help="Pin the hottest models where memory does not hold all; load others when they "
                "are asked for.",
            ),
            HEADROOM,
        ),
        most_stages=1,
        rates_from=(),
        slo_margin=0.0,
    ),
)
