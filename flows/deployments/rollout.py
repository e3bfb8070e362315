"""`rollout`: a stored plan brought into force, guarded. Thin; the state lies in the warehouse."""

from typing import Any

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from flows.deployments.orchestration.complaints import of_form
from flows.deployments.orchestration.limits import flow_workspace
from flows.deployments.parameters import RolloutParameters
from flows.release.rollout.guarded import RolloutOptions, RolloutResult, roll_out
from flows.workspace import Workspace, find_plan
from triton_backend.contract.plan import Plan


# Never retried: a second one would take the plan that the first one left for a finished rollout.
@task(name="roll-out", cache_policy=NO_CACHE)
def bring_into_force(work: Workspace, plan: Plan, options: RolloutOptions) -> RolloutResult:
    """Check, preload, flush, swap, watch; back on breach."""
    return roll_out(work, plan, options)


# No time limit: its options, and rollouts that it waits for, say how long it takes.
@of_form
@flow(name="rollout")
def rollout(parameters: RolloutParameters) -> dict[str, Any]:
    """Roll a plan out.

    Raises:
        InputError: no such plan, nothing is being served, or a check before the rollout fails.
    """
    work = flow_workspace(parameters.warehouse)
    plan = find_plan(work, parameters.plan_id)
    result = bring_into_force(work, plan, parameters.options())
    create_markdown_artifact(
        f"**{result.state}**: {result.outcome}. Plan {result.plan_id} is in force.", key="rollout"
    )
    return {
        "rollout_id": result.rollout_id,
        "plan_id": result.plan_id,
        "state": result.state,
        "outcome": result.outcome,
    }
