"""The search for a plan above a score: the same plan, or the word that there is none."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.planning import PlanOptions
from flows.planning.inputs import build_problem
from flows.planning.pool.bound import goal_of
from flows.planning.pool.search import search
from tests.flows.planning.brute import best_throughput
from tests.flows.planning.pool.test_plan_brute_force import problems
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.workload import Workload


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
    arrays = build_problem(*problem, options)
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
