"""Whole models that share the GPUs of sub-clusters (Symphony)."""

from flows.planning.registry import Option, Planner
from flows.planning.subclusters.plan import AUTO, plan

PLANNERS = (
    Planner(
        name="subclusters",
        plan=plan,
        space="sub-clusters",
        objectives=("throughput", "cost", "power", "gpus"),
        options=(
            Option(
                name="subclusters",
                kind=str,
                default=AUTO,
                help=f"How many; {AUTO}: the least whose models fit a GPU's memory.",
            ),
            Option(
                name="utilisation",
                kind=float,
                default=0.9,
                help="Share of a GPU's time that is planned; the rest is for waiting.",
                least=0.01,
                most=1.0,
                stated=True,
            ),
        ),
        most_stages=1,
        rates_from=(),
        slo_margin=0.0,
    ),
)
