"""`autoscale` and `steer`: plans of the running system that follow its load. Thin."""

from typing import Any

from prefect import flow
from prefect.logging import get_run_logger

from flows.deployments.orchestration.complaints import of_form
from flows.deployments.orchestration.limits import flow_workspace
from flows.deployments.parameters import AutoscaleParameters, SteerParameters
from flows.operations.running import follow_served, steer_served
from flows.release.server.running import served_plan_id


@of_form
@flow(name="autoscale", timeout_seconds=1001 * 3600)
def autoscale(parameters: AutoscaleParameters) -> dict[str, Any]:
    """Go on for the hours given, or until the run is cancelled; every decision is logged.

    Raises:
        InputError: nothing is being served, or no plan serves every model.
    """
    work = flow_workspace(parameters.warehouse)
    follow_served(work, parameters.options(), parameters.cluster, get_run_logger().info)
    return {"plan_id": served_plan_id(work.state.serve)}


@of_form
@flow(name="steer", timeout_seconds=1001 * 3600)
def steer(parameters: SteerParameters) -> dict[str, Any]:
    """Go on for the hours given, or until the run is cancelled; every decision is logged.

    Raises:
        InputError: nothing is being served, or the plan has no entries.
    """
    work = flow_workspace(parameters.warehouse)
    steer_served(work, parameters.options(), parameters.cluster, get_run_logger().info)
    return {"plan_id": served_plan_id(work.state.serve)}
