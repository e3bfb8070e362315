"""Whole models on whole GPUs; batch-building rates that a workload lacks come from its plan."""

from flows.planning.promises.headroom import HEADROOM
from flows.planning.registry import Planner
from flows.planning.whole_models.plan import plan

PLANNERS = (
    Planner(
        name="no-partitioning",
        plan=plan,
        space="whole models on whole GPUs",
        options=(HEADROOM,),
        most_stages=1,
    ),
)
