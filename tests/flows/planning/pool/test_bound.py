"""The relaxation's bound against the same linear program, whole, by another solver's interface."""

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from flows.planning import PlanOptions
from flows.planning.engine.pricing import Duals
from flows.planning.inputs import Problem
from flows.planning.pool.bound import Configurations, Goal, goal_of, solve_bound
from flows.planning.pool.columns import Columns, enumerate_columns
from tests.flows.planning.pool.test_plan_brute_force import problems
from tests.flows.planning.small import cluster, problem_of, profile, workload
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.workload import ModelDemand, Workload

OPTIONS = PlanOptions(slo_margin=0.0)


def relaxed(problem: Problem, columns: Columns, goal: Goal) -> float | None:
    """The most that z less the price of GPUs can be; None where rates are out of reach.

    Variables: a rate per configuration, GPUs in use per class, z.
    """
    n, classes, models = len(columns), len(problem.gpus), len(problem.models)
    cost = np.concatenate([np.zeros(n), goal.price, [0.0 if goal.fixed else -1.0]])
    of_model = (columns.model == np.arange(models)[:, None]).astype(float)
    share = np.hstack([-of_model, np.zeros((models, classes)), goal.weight[:, None]])
    floor = np.hstack([-of_model, np.zeros((models, classes + 1))])
    room = np.hstack([columns.usage.T, -np.eye(classes), np.zeros((classes, 1))])
    upper = np.concatenate([np.zeros(models), -goal.minimum_rps, np.zeros(classes)])
    limits: list[tuple[float, float | None]] = [
        *([(0, None)] * n),
        *((0, float(g)) for g in problem.gpus),
        (1, 1) if goal.fixed else (0, None),
    ]
    answer: Any = linprog(cost, np.vstack([share, floor, room]), upper, bounds=limits)
    return -float(answer.fun) if answer.success else None


@pytest.mark.long
@settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    problem=problems(),
    objective=st.sampled_from(["throughput", "cost"]),
    floor_rps=st.sampled_from([0.0, 400.0]),
)
def test_the_bound_is_the_value_of_the_whole_linear_program(
    problem: tuple[dict[str, ModelProfile], Cluster, Workload], objective: str, floor_rps: float
) -> None:
    profiles, cluster, workload = problem
    rated = Workload(models=tuple(replace(m, rate_rps=300.0) for m in workload.models))
    arrays = problem_of(profiles, cluster, rated, replace(OPTIONS, objective=objective))
    try:
        columns = enumerate_columns(arrays, 2)
    except InfeasibleError:
        return
    price = np.array([3.0, 1.0]) if objective == "cost" else np.zeros(2)
    goal = goal_of(arrays, objective, {workload.models[0].name: floor_rps}, price)
    expected = relaxed(arrays, columns, goal)
    if expected is None:
        with pytest.raises(InfeasibleError):
            solve_bound(arrays, columns, goal)
        return
    bound = solve_bound(arrays, columns, goal)
    assert bound.score == pytest.approx(expected, rel=1e-6)
    assert np.all(bound.gpu_price >= 0)
    slack = columns.usage @ bound.gpu_price - bound.rate_price[columns.model]
    assert np.all(slack >= -1e-9 * np.abs(bound.rate_price).max())


@pytest.mark.parametrize("objective", ["throughput", "cost"])
@settings(max_examples=50, deadline=None)
@given(prices=st.lists(st.floats(0.0, 10.0), min_size=5, max_size=5))
@example(prices=[0.0, 0.0, 0.0, sys.float_info.min, sys.float_info.min])
@example(prices=[0.0, 0.0, 0.0, 0.0, sys.float_info.min])
def test_the_pricer_keeps_what_a_pricer_promises(objective: str, prices: list[float]) -> None:
    profiles = {"net": profile(), "other": profile("other", (500, 2000, 500))}
    demands = [
        ModelDemand(name=name, slo_us=12_000, weight=1.0, batch_building_rate_rps=1e9)
        for name in profiles
    ]
    arrays = problem_of(profiles, cluster(4, 8), workload(*demands), OPTIONS)
    columns = enumerate_columns(arrays, 2)
    goal = goal_of(arrays, objective, {"other": 100.0}, np.array([3.0, 1.0]))
    pricer = Configurations(columns=columns, goal=goal)
    rate = np.array(prices[:2]) / 1e3
    demand = rate if goal.fixed else np.append(rate, prices[2] / 1e3)
    asked = Duals(demand=demand, resource=np.array(prices[3:]))
    priced = pricer.price(asked, np.full(len(demand), np.inf))
    paid = columns.usage @ (goal.price + asked.resource)
    worth = rate + (0.0 if goal.fixed else np.array([0.0, prices[2] / 1e3]))
    for model in range(2):
        least = (paid - worth[model])[columns.model == model].min()
        assert priced.least[model] == pytest.approx(least)
    assert asked.reduced(priced.columns) == pytest.approx(priced.least)
    if priced.feasible is not None:
        every = pricer.as_columns(np.arange(len(columns)))
        scale = np.abs(priced.feasible.rows).max()
        assert priced.feasible.reduced(every).min() >= -1e-9 * scale
