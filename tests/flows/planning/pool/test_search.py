"""The search for a plan: where it begins, and one above a score, or the word that there is none."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.planning import PlanOptions
from flows.planning.pool.attempts import Attempts
from flows.planning.pool.bound import goal_of
from flows.planning.pool.search import search
from tests.flows.planning.brute import best_throughput
from tests.flows.planning.pool.test_plan_brute_force import problems
from tests.flows.planning.small import cluster, problem_of, profile, workload
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.workload import ModelDemand, Workload


@pytest.mark.long
@settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(problem=problems(), share=st.sampled_from([0.5, 0.99, 1.01, 2.0]))
def test_a_plan_above_a_score_is_found_where_there_is_one_and_the_bound_holds(
    problem: tuple[dict[str, ModelProfile], Cluster, Workload], share: float
) -> None:
    options = PlanOptions(slo_margin=0.0)
    best = best_throughput(*problem, 2)
    arrays = problem_of(*problem, options)
    goal = goal_of(arrays, "throughput", {}, np.zeros(2))
    try:
        found = search(arrays, goal, options, above=share * best)
    except InfeasibleError:
        assert best <= 0
        return
    assert found.bound >= best * (1 - 1e-9)
    if share < 1:
        assert found.score == pytest.approx(best, rel=options.gap)
        assert found.vgpus.any()
    else:
        assert not found.vgpus.any()
        assert found.bound <= share * best * (1 + options.gap) * (1 + 1e-9)


def test_a_plan_is_there_before_any_search_where_the_relaxation_rounds_to_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two models on two GPUs: relaxed, one of them has parts of both."""
    names = ("one", "other")
    demands = (
        ModelDemand(name=name, slo_us=50_000, weight=1.0, batch_building_rate_rps=1e9)
        for name in names
    )
    profiles = {name: profile(name) for name in names}
    arrays = problem_of(profiles, cluster(1, 1), workload(*demands), PlanOptions())

    def nothing(attempts: Attempts) -> float:
        return attempts.bound.score

    monkeypatch.setattr(Attempts, "solve", nothing)
    found = search(arrays, goal_of(arrays, "throughput", {}, np.zeros(2)), PlanOptions())
    assert set(found.columns.model[found.vgpus.any(axis=1)].tolist()) == {0, 1}
    assert found.score > 0
