"""`steer`: plans that follow clients of the running system as they move their cuts."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from flows.cli.console import show
from flows.cli.operate.autoscale import RunningSystem
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, Advisory, BuildingCluster, EndAfter, WarehouseFile

if TYPE_CHECKING:
    from flows.operations.replanning.steering import Demand


@command("steer", "poolpipe steer", "poolpipe steer --advisory")
def steer(
    *,
    looks: EndAfter = None,
    advisory: Advisory = False,
    cluster: BuildingCluster = None,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Re-plan within seconds as edge clients change where they split the model.

    Looks four times a second at what clients announced to `poolpipe_offload` and at what came in
    beyond that. A plan is made by the planner and with the options of the plan in force: at once
    where a cut has no pool or too little, and where 15 % of the shares would be saved for half a
    minute. A change that was interrupted is finished or undone first.
    """
    from flows.clock import Stopwatch
    from flows.operations.replanning.steering import steer_live, steering_of
    from flows.release.rollout.guarded import finish_interrupted
    from flows.workspace import workspace

    work = workspace(warehouse)
    steering = steering_of(work, finish_interrupted(work, show))
    system = SteeredServer(work, cluster, Stopwatch())
    steer_live(
        steering,
        system,
        show,
        steering_of=partial(steering_of, work),
        decisions=looks,
        advisory=advisory,
    )


class SteeredServer(RunningSystem):
    """The system served from this project, by entries and what clients announce."""

    reason = "steer"

    def offered(self) -> Mapping[tuple[str, str], int]:
        """Requests so far, by model and entry."""
        found: dict[tuple[str, str], int] = {}
        for key, count in self.counters()["entries"].items():
            model, _, entry = key.partition("/")
            found[model, entry] = int(count)
        return found

    def announced(self) -> Sequence["Demand"]:
        """Of all leases."""
        from flows.operations.replanning.steering import Demand
        from triton_backend.serve_folder.repository import OFFLOAD_MODEL

        answer = self.server().ask(OFFLOAD_MODEL, {"command": "announced"})
        return [Demand(**demand) for demand in answer["demands"]]
