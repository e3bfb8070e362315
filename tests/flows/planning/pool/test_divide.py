"""Dividing the GPUs among models reaches, and proves, what trying everything reaches."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.planning import PlanOptions
from flows.planning.inputs import Problem
from flows.planning.pool import divide
from flows.planning.pool.attempts import Attempts
from flows.planning.pool.bound import Goal, goal_of, solve_bound
from flows.planning.pool.columns import enumerate_columns
from flows.planning.pool.incumbent import Incumbent
from flows.planning.registry import Trace
from flows.planning.solver.solve import Solution
from flows.planning.watch import Watch
from tests.flows.planning.brute import best_throughput, least_price
from tests.flows.planning.pool.test_plan_brute_force import problems
from tests.flows.planning.small import cluster, problem_of, profile, workload
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.workload import ModelDemand, Workload

OPTIONS = PlanOptions(slo_margin=0.0, gap=1e-6)
SLOW_INSTANCES = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


def divided(problem: Problem, goal: Goal, stages: int) -> tuple[float, float]:
    """Score and bound of a division that starts without any plan."""
    columns = enumerate_columns(problem, stages)
    bound = solve_bound(problem, columns, goal)
    best = Incumbent(problem, columns, goal)
    proven = Attempts(best, bound, OPTIONS, Trace(), Watch())._divide(bound.score)
    return best.score, proven


@pytest.mark.long
@SLOW_INSTANCES
@given(problem=problems(), stages=st.integers(1, 3))
def test_the_best_throughput_is_found_and_proven(
    problem: tuple[dict[str, ModelProfile], Cluster, Workload], stages: int
) -> None:
    best = best_throughput(*problem, stages)
    arrays = problem_of(*problem, OPTIONS)
    goal = goal_of(arrays, "throughput", {}, np.zeros(2))
    try:
        score, proven = divided(arrays, goal, stages)
    except InfeasibleError:
        assert best == 0.0
        return
    assert proven >= best * (1 - 1e-9)
    assert proven == pytest.approx(best, rel=1e-5)
    assert best == 0.0 or score == pytest.approx(best, rel=1e-5)


@pytest.mark.long
@SLOW_INSTANCES
@given(problem=problems(), rate_rps=st.sampled_from([200.0, 1000.0, 3000.0]))
def test_the_least_cost_is_found_and_proven(
    problem: tuple[dict[str, ModelProfile], Cluster, Workload], rate_rps: float
) -> None:
    profiles, tiny, given_workload = problem
    demands = tuple(replace(m, weight=None, rate_rps=rate_rps) for m in given_workload.models)
    asked, options = Workload(models=demands), replace(OPTIONS, objective="cost")
    least = least_price(profiles, tiny, asked, 2, {"a": 3.0, "b": 1.0})
    arrays = problem_of(profiles, tiny, asked, options)
    try:
        score, proven = divided(arrays, goal_of(arrays, "cost", {}, np.array([3.0, 1.0])), 2)
    except InfeasibleError:
        assert least == float("inf")
        return
    assert -score == pytest.approx(least)
    assert -proven <= least * (1 + 1e-9)


def test_a_master_program_that_ends_before_its_first_answer_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profiles = {"net": profile(), "other": profile("other", (500, 2000, 500))}
    demands = tuple(
        ModelDemand(name=name, slo_us=12_000, weight=1.0, batch_building_rate_rps=1e9)
        for name in profiles
    )
    arrays = problem_of(profiles, cluster(4, 8), workload(*demands), OPTIONS)
    ended = Solution(values=None, bound=np.inf, status="time limit reached", nodes=0, iterations=0)

    def solved(*_: object) -> Solution:
        return ended

    monkeypatch.setattr(divide, "solve_integer", solved)
    goal = goal_of(arrays, "throughput", {}, np.zeros(2))
    score, proven = divided(arrays, goal, 2)
    assert score == -np.inf
    assert proven == solve_bound(arrays, enumerate_columns(arrays, 2), goal).score


def test_rounds_that_only_tell_prices_are_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    demands = (
        ModelDemand(name="net", slo_us=12_000, weight=1.0, batch_building_rate_rps=1e9),
        ModelDemand(name="other", slo_us=12_000, weight=1.0, batch_building_rate_rps=1e9),
    )
    profiles = {"net": profile(), "other": profile("other", (500, 2000, 500))}
    arrays = problem_of(profiles, cluster(4, 8), workload(*demands), OPTIONS)
    best = Incumbent(
        arrays, enumerate_columns(arrays, 2), goal_of(arrays, "throughput", {}, np.zeros(2))
    )
    bound = solve_bound(arrays, best.columns, best.goal).score
    rounds: list[float] = []

    def open_yet(proven: float) -> bool:
        rounds.append(proven)
        return False

    def only_prices(*_: object) -> bool:
        return True

    monkeypatch.setattr(divide.GpuSplit, "_price", only_prices)
    attempts = Attempts(
        best, solve_bound(arrays, best.columns, best.goal), OPTIONS, Trace(), Watch()
    )
    split = divide.GpuSplit(best, bound, attempts._alone, Watch())
    split.improve(3, open_yet)
    assert len(rounds) == 7  # before and after each of three masters, and at the end


def test_a_rate_to_keep_is_kept_when_gpus_are_divided() -> None:
    profiles = {"net": profile(), "other": profile("other", (500, 2000, 500))}
    demands = tuple(
        ModelDemand(name=name, slo_us=12_000, weight=1.0, batch_building_rate_rps=1e9)
        for name in profiles
    )
    arrays = problem_of(profiles, cluster(4, 8), workload(*demands), OPTIONS)
    free, _ = divided(arrays, goal_of(arrays, "throughput", {}, np.zeros(2)), 2)
    floors = {"net": free * 1.6}
    kept, proven = divided(arrays, goal_of(arrays, "throughput", floors, np.zeros(2)), 2)
    assert 0 < kept < free
    assert proven == pytest.approx(kept, rel=1e-5)
