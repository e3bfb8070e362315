"""`whatif`: a plan per value of one input, in parallel; on a Dask cluster where that is asked for.

Thin.
"""

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.task_runners import ThreadPoolTaskRunner

from flows.deployments.orchestration.complaints import of_form
from flows.deployments.orchestration.limits import flow_workspace
from flows.deployments.parameters import WhatIfParameters
from flows.files import read_cluster, read_workload
from flows.planning import PlanOptions
from flows.planning.options import CommonOptions
from flows.planning.stored_sweeps import keep_sweep, situation_of
from flows.planning.sweep import Point, Situation, check_any_fits, varied, what_if
from triton_backend.contract.errors import InputError


# Solving takes a core; a task that is repeated on a lost worker gives the same plan.
@task(name="plan-one", cache_policy=NO_CACHE)
def plan_one(situation: Situation, vary: str, value: float) -> Point:
    """One point of the curve."""
    (point,) = what_if(situation, vary, [value])
    return point


@flow(name="sweep")
def sweep(situations: dict[str, Situation], parameters: WhatIfParameters) -> dict[str, list[Point]]:
    """Every point of every curve."""
    futures = {
        name: [plan_one.submit(each, parameters.vary, value) for value in parameters.values]
        for name, each in situations.items()
    }
    return {name: [future.result() for future in each] for name, each in futures.items()}


@of_form
@flow(name="whatif", timeout_seconds=6 * 3600)
def whatif(parameters: WhatIfParameters) -> dict[str, Any]:
    """Plan for every value and keep the curve.

    Raises:
        InputError: the inputs do not fit, or the runner is not installed.
    """
    runner = task_runner(parameters)
    work = flow_workspace(parameters.warehouse)
    cluster, workload = read_cluster(parameters.cluster), read_workload(parameters.workload)
    options = parameters.given(CommonOptions)
    start, _ = situation_of(work, cluster, workload, PlanOptions(**options))
    situations = {
        name: replace(start, options=PlanOptions(planner=name, **options))
        for name in parameters.planners
    }
    for each in situations.values():
        varied(each, parameters.vary, parameters.values)
    curves = sweep.with_options(task_runner=runner)(situations, parameters)
    check_any_fits([point for points in curves.values() for point in points])
    rows = [
        {"planner": name, parameters.vary: p.value, "objective": p.objective, "why not": p.reason}
        for name, points in curves.items()
        for p in points
    ]
    create_table_artifact(table=rows, key="whatif", description=f"{parameters.vary} varied")
    document = {
        "vary": parameters.vary,
        "objective": options["objective"],
        "curves": {name: [p.to_dict() for p in points] for name, points in curves.items()},
    }
    return {"run_id": keep_sweep(work, document, curves), "points": rows}


def task_runner(parameters: WhatIfParameters) -> Any:
    """Threads of this worker, a Dask cluster of processes on its host, or one that runs already.

    Raises:
        InputError: Dask is asked for and not installed.
    """
    if parameters.runner == "threads":
        return ThreadPoolTaskRunner(max_workers=parameters.workers)
    if find_spec("prefect_dask") is None:
        raise InputError("runner", "`dask` is not installed: pip install 'poolpipe[dask]'")
    from prefect_dask.task_runners import DaskTaskRunner  # noqa: PLC0415  # an extra

    if parameters.dask_address is not None:
        return DaskTaskRunner(address=parameters.dask_address)
    local = {"n_workers": parameters.workers, "threads_per_worker": 1, "dashboard_address": None}
    return DaskTaskRunner(cluster_kwargs=local)
