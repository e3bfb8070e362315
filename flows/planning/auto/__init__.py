"""The planner that asks the others: what each plan serves in the simulator decides."""

from flows.planning.promises.headroom import HEADROOM
from flows.planning.registry import Planner

PLANNERS = (
    Planner(
        name="auto",
        plan=None,
        space="that of the planner it chose",
        objectives=("throughput", "cost", "power", "gpus", "share"),
        demands=("models", "entries", "applications"),
        options=(HEADROOM,),
        pins=True,
        mig=True,
    ),
)
