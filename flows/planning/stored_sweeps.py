"""A sweep of plans over one input, kept as rows of the warehouse."""

from collections.abc import Mapping, Sequence
from typing import Any

from flows.clock import now_utc
from flows.planning.registry import PlanOptions
from flows.planning.stored_plans import load_interference, load_profiles
from flows.planning.sweep import Point, Situation
from flows.workspace import Workspace
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.workload import Workload
from warehouse.details import WhatIfRow, add_whatif_rows
from warehouse.runs import add_run


def situation_of(
    work: Workspace, cluster: Cluster, workload: Workload, options: PlanOptions
) -> tuple[Situation, list[str]]:
    """The inputs of a sweep, and warnings about profiles.

    Raises:
        InputError: a model was not measured on any class of the cluster.
    """
    profiles, warnings = load_profiles(work, cluster, workload)
    situation = Situation(
        profiles=profiles,
        cluster=cluster,
        workload=workload,
        options=options,
        interference=load_interference(work),
    )
    return situation, warnings


def keep_sweep(
    work: Workspace, document: Mapping[str, Any], curves: Mapping[str, Sequence[Point]]
) -> str:
    """Store the curves by planner; the run's id.

    Args:
        work: where the warehouse is.
        document: `vary`, `objective` and what else is worth keeping.
        curves: points by planner.
    """
    rows = [
        WhatIfRow(
            varied=document["vary"],
            setting=f"{point.value:g}",
            objective=point.objective,
            document={"planner": name, **point.to_dict()},
        )
        for name, points in curves.items()
        for point in points
    ]
    asked = {"vary": document["vary"], "objective": document["objective"]}
    with work.open() as store, store.transaction():
        run_id = add_run(store, "whatif", None, (asked, dict(document)), now_utc())
        add_whatif_rows(store, run_id, rows)
    return run_id
