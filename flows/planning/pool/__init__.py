"""The pool planner: pipelines over pools of vGPUs of several classes, with a proven bound (PPipe)."""

from flows.planning.pool.plan import plan
from flows.planning.registry import Option, Planner

PLANNERS = (
    Planner(
        name="pool",
        plan=plan,
        space="pool",
        objectives=("throughput", "cost", "power"),
        options=(
            Option(
                name="overflow",
                kind=bool,
                default=False,
                help="Let free GPUs run whole models beside the plan, within part of the margin.",
            ),
        ),
        pins=True,
        rates_from=("no-partitioning", "pool"),
    ),
)
