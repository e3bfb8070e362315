"""`plan`: profiles, cluster and workload to a stored, certified plan. Thin."""

from typing import Any

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE

from flows.deployments.orchestration.complaints import of_form
from flows.deployments.orchestration.limits import flow_workspace
from flows.deployments.parameters import PlanParameters
from flows.files import read_cluster, read_workload
from flows.planning import PlanOptions
from flows.planning.stored_plans import Planned, plan_step
from flows.reporting.plan_diff import plan_diff
from flows.workspace import Workspace, find_plan
from triton_backend.contract.plan import Plan
from triton_backend.contract.shares import share_text


@task(name="solve", cache_policy=NO_CACHE)
def solve(work: Workspace, parameters: PlanParameters, previous: Plan | None) -> Planned:
    """Solve, verify, store."""
    options = parameters.planning(PlanOptions(previous=previous))
    cluster, workload = read_cluster(parameters.cluster), read_workload(parameters.workload)
    return plan_step(work, cluster, workload, options)


@of_form
@flow(name="plan", timeout_seconds=3600)
def make_plan(parameters: PlanParameters) -> dict[str, Any]:
    """Plan; the table, and what moves against the plan in force, become artifacts.

    Raises:
        InputError: the inputs do not fit, or no plan can meet an SLO.
    """
    work = flow_workspace(parameters.warehouse)
    previous = find_plan(work, parameters.previous) if parameters.previous else None
    planned = solve(work, parameters, previous)
    plan = planned.plan
    create_table_artifact(table=plan_rows(plan), key="plan", description=f"plan {plan.plan_id}")
    if previous is not None:
        lines = "\n".join(f"* {line}" for line in plan_diff(previous, plan))
        create_markdown_artifact(lines, key="plan-diff", description="what moves where")
    return {
        "plan_id": plan.plan_id,
        "value": plan.objective.value,
        "gap": plan.objective.gap,
        "gpus_used": dict(plan.gpus_used),
        "warnings": list(planned.warnings),
    }


def plan_rows(plan: Plan) -> list[dict[str, Any]]:
    """One row per stage, as the table artifact shows it."""
    return [
        {
            "model": model.name,
            "pipeline": p,
            "batch": stage.batch or pipeline.batch,
            "blocks": f"{stage.blocks[0]}-{stage.blocks[1]}",
            "pool": pool.name,
            "class": pool.gpu_class,
            "vGPUs": f"{pool.vgpus} x {share_text(pool.share)}",
            "latency ms": stage.latency_us / 1e3,
            "rps": round(pipeline.throughput_rps, 2),
        }
        for model in plan.models
        for p, pipeline in enumerate(model.pipelines)
        for stage in pipeline.stages
        for pool in (plan.pool_of(stage),)
    ]
