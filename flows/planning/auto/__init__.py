"""The planner that asks the others: what each plan serves in the simulator decides."""

from flows.planning.registry import Planner

PLANNERS = (
    Planner(
        name="auto",
        plan=None,
        space="that of the planner it chose",
        objectives=("throughput", "cost", "power", "gpus", "share"),
        demands=("models", "entries", "applications"),
        pins=True,
        mig=True,
    ),
)
