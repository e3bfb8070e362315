"""The baselines that a pool plan is compared with (PPipe, section 7)."""

from flows.planning.baselines.baselines import dart_r, no_partitioning
from flows.planning.registry import Planner

PLANNERS = (
    Planner(
        name="no-partitioning", plan=no_partitioning, space="whole models on whole GPUs",
        most_stages=1,
    ),
    Planner(name="dart-r", plan=dart_r, space="its own rule"),
)  # fmt: skip
