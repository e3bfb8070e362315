"""A plan of one entry that is steered, and demands of its model."""

from typing import Any

from flows.operations.steering.policy import (
    Demand,
    Steering,
    planner_of,
)
from flows.planning import PlanOptions, make_plan
from tests.flows.planning.entries.entry_cases import Case, entry, made, profile
from triton_backend.contract.plan import Plan

MS = 1_000
PROBLEM = made(profile(7), [entry("first", 0, 60, 30)])


def steered(problem: Case = PROBLEM, **own: Any) -> Steering:
    options = PlanOptions(planner="graft", objective="share", own={"shadow_rps": 60.0} | own)
    plan = make_plan(problem.profiles, problem.cluster, problem.workload, options)
    return Steering(planner=planner_of(problem.profiles, problem.cluster, options), in_force=plan)


def demand(block: int, budget_ms: float, rate_rps: float) -> Demand:
    return Demand("net", block, round(budget_ms * MS), rate_rps)


def own_entries(plan: Plan) -> list[tuple[int, float]]:
    return [(e.block, round(e.rate_rps, 6)) for e in plan.workload.models[0].entries]
