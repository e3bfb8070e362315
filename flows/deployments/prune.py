"""`prune`: minutes and measurements beyond their retention leave the warehouse. Thin."""

from datetime import timedelta

from prefect import flow

from flows.clock import now_utc
from flows.deployments.orchestration.complaints import of_form
from flows.deployments.orchestration.limits import flow_workspace
from flows.deployments.parameters import PruneParameters
from flows.release.server.running import noted_plan_id
from warehouse.maintenance import prune as prune_warehouse


@of_form
@flow(name="prune", timeout_seconds=600)
def prune(parameters: PruneParameters) -> dict[str, int]:
    """Rows removed by table."""
    before = now_utc() - timedelta(days=parameters.keep_days)
    work = flow_workspace(parameters.warehouse)
    served = noted_plan_id(work.state.serve)
    with work.open() as warehouse:
        return prune_warehouse(warehouse, before, served)
