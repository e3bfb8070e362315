"""`replan`: measured rates to a new plan, and a rollout where it is worth one. Thin."""

from typing import Any

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE

from flows.deployments.orchestration.complaints import of_form
from flows.deployments.orchestration.limits import flow_workspace
from flows.deployments.parameters import ReplanParameters
from flows.files import read_cluster, read_workload
from flows.operations.replanning.replan import Replanned, replan
from flows.release.artifacts import attach_devices
from flows.release.rollout.guarded import RolloutOptions, RolloutResult, roll_out
from flows.release.rollout.lock import holder_of
from flows.release.server.running import served_plan_id
from flows.reporting.plan_diff import plan_diff
from flows.workspace import Workspace, find_plan
from triton_backend.contract.plan import Plan


@task(name="forecast-plan-simulate", cache_policy=NO_CACHE)
def look_ahead(work: Workspace, parameters: ReplanParameters, in_force: Plan | None) -> Replanned:
    """Everything but the rollout."""
    cluster, workload = read_cluster(parameters.cluster), read_workload(parameters.workload)
    loop = holder_of(work.state.loop_lock)
    return replan(work, cluster, workload, in_force, parameters.options(in_force), loop)


@task(name="roll-out", cache_policy=NO_CACHE)
def bring_into_force(work: Workspace, plan: Plan, options: RolloutOptions) -> RolloutResult:
    """Guarded, and never retried, as the `rollout` deployment does it."""
    return roll_out(work, plan, options)


# A run that hangs ends before the next night, which waits for it. The next rollout finishes or
# undoes one that was cut off.
@of_form
@flow(name="replan", timeout_seconds=20 * 3600)
def replan_flow(parameters: ReplanParameters) -> dict[str, Any]:
    """Replan; the new plan is rolled out unless it gains too little or only advice was asked for.

    Beside `autoscale` or `steer`, only a plan for other GPUs or other demands is.

    Raises:
        InputError: nothing was measured, or no plan can meet an SLO.
    """
    work = flow_workspace(parameters.warehouse)
    served = served_plan_id(work.state.serve)
    in_force = find_plan(work, served) if served else None
    found = look_ahead(work, parameters, in_force)
    _show(found, in_force)
    outcome = "advice only" if parameters.advisory else "kept"
    if found.recommendation.roll_out and not parameters.advisory:
        plan = attach_devices(work, found.plan, parameters.cluster)
        options = parameters.rollout(f"replan: {found.recommendation.reason}")
        outcome = bring_into_force(work, plan, options).state
    return {
        "plan_id": found.plan.plan_id,
        "roll_out": found.recommendation.roll_out,
        "reason": found.recommendation.reason,
        "outcome": outcome,
        "forecast_rps": dict(found.forecast_rps),
        "share_shift": found.share_shift,
    }


def _show(found: Replanned, in_force: Plan | None) -> None:
    rows = [
        {
            "plan": side.plan_id,
            "lowest attainment": f"{side.lowest_attainment:.2%}",
            "served rps": round(side.served_rps, 1),
            "GPUs": side.gpus,
        }
        for side in (found.old, found.new)
        if side is not None
    ]
    create_table_artifact(table=rows, key="replan", description=found.recommendation.reason)
    lines = "\n".join(f"* {line}" for line in plan_diff(in_force, found.plan))
    create_markdown_artifact(lines, key="replan-diff", description="what would move where")
