"""The planner of the Symphony paper's comparison: `nexus`."""

from flows.planning.papers.symphony.nexus import plan
from flows.planning.registry import Planner

PLANNERS = (
    Planner(
        name="nexus",
        plan=plan,
        space="its own rule",
        objectives=("throughput", "cost", "power", "gpus"),
        most_stages=1,
        rates_from=(),
        slo_margin=0.0,
    ),
)
