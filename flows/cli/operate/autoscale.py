"""`autoscale`: plans that follow the rates of the running system every few seconds."""

from flows.cli.console import show
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, BuildingCluster, WarehouseFile
from flows.operations.replanning.options import AutoscaleOptions


@command(
    "autoscale",
    "poolpipe autoscale --period 20 --max-gpus 8",
    "poolpipe autoscale --period 20 --advisory",
)
def autoscale(
    *,
    how: AutoscaleOptions,
    cluster: BuildingCluster = None,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Re-plan in place as request rates change, on as few GPUs as carry them.

    Rates are those of models, entries and applications, with the rows that their modules ran. Plans
    are made by the planner and with the options of the plan in force; one is made where a rate has
    moved far enough. Beyond the GPUs there are, all get the same share of what they ask for.
    """
    from flows.operations.running import follow_served
    from flows.workspace import workspace

    follow_served(workspace(warehouse), how, cluster, show)
