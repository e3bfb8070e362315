import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.planning import PlanOptions
from flows.planning.pool.bound import goal_of, least_loss, solve_bound, undominated
from flows.planning.pool.columns import enumerate_columns
from flows.planning.pool.integer import tighten
from flows.planning.solver.solve import PROOF_NODES, Limits, solve_integer
from flows.planning.watch import Watch
from tests.flows.planning.brute import best_throughput
from tests.flows.planning.pool.test_plan_brute_force import problems
from tests.flows.planning.small import problem_of
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.workload import Workload


@pytest.mark.long
@settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(problem=problems(), share=st.sampled_from([0.5, 0.9, 1 - 1e-6]))
def test_no_step_of_the_proof_loses_the_best_plan(
    problem: tuple[dict[str, ModelProfile], Cluster, Workload], share: float
) -> None:
    options = PlanOptions(slo_margin=0.0)
    best = best_throughput(*problem, 2)
    arrays = problem_of(*problem, options)
    try:
        columns = enumerate_columns(arrays, 2)
    except InfeasibleError:
        return
    goal = goal_of(arrays, "throughput", {}, np.zeros(2))
    bound = solve_bound(arrays, columns, goal)
    assert bound.score >= best * (1 - 1e-9)
    rows = undominated(arrays, columns, np.arange(len(columns)))
    loss = least_loss(arrays, columns, bound)
    kept = columns.take(rows[loss[rows] <= bound.score - best * (1 - 1e-9)])
    program = tighten(arrays, kept, goal, best * share, Watch())
    assert program is not None
    solved = solve_integer(program, Limits(relative_gap=0.0, nodes=PROOF_NODES))
    assert solved.bound >= best * (1 - 1e-9)
    assert solved.values is not None
