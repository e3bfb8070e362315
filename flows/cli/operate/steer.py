"""`steer`: plans that follow clients of the running system as they move their cuts."""

from flows.cli.console import show
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, BuildingCluster, WarehouseFile
from flows.operations.replanning.options import SteerOptions


@command("steer", "poolpipe steer", "poolpipe steer --advisory")
def steer(
    *,
    how: SteerOptions,
    cluster: BuildingCluster = None,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Re-plan within seconds as edge clients change where they split the model.

    Looks four times a second at what clients announced to `poolpipe_offload` and at what came in
    beyond that. A plan is made by the planner and with the options of the plan in force: at once
    where a cut has no pool or too little, and where 15 % of the shares would be saved for half a
    minute. A change that was interrupted is finished or undone first.
    """
    from flows.operations.running import steer_served
    from flows.workspace import workspace

    steer_served(workspace(warehouse), how, cluster, show)
