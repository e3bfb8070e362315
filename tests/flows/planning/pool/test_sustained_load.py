"""Among plans of the best objective, the one whose models sustain most of their rates."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.planning import PlanOptions, make_plan
from flows.planning.pool.bound import goal_of
from flows.planning.pool.integer import lowest_share
from flows.planning.pool.search import Found, search
from flows.planning.pool.sustained_load import Sustained, needed_by
from flows.planning.pool.tie_break import break_ties
from flows.planning.verify.numbers import verify_plan
from flows.planning.watch import Watch
from tests.flows.planning.small import cluster, problem_of, profile, workload
from triton_backend.contract.workload import ModelDemand

pytestmark = pytest.mark.slow

SLO_US = 12_000
OPTIONS = PlanOptions()
MARGINS_US = np.full(2, OPTIONS.slo_margin * SLO_US)
DEMANDS = tuple(
    ModelDemand(name=name, slo_us=SLO_US, weight=1.0, batch_building_rate_rps=1e9)
    for name in ("net", "other")
)


def value(found: Found, promised_rps: float) -> float:
    """The load a plan sustains, of the rates promised by the plan searched for."""
    promised = np.full(2, promised_rps)
    needed = needed_by(found.problem, found.columns, MARGINS_US, promised)
    return Sustained(columns=found.columns, needed=needed, promised_rps=promised).value(found.vgpus)


@settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    other_us=st.lists(st.integers(400, 1600), min_size=3, max_size=3),
    fast=st.integers(2, 5),
    slow=st.integers(2, 9),
)
def test_ties_cost_nothing_of_the_objective_and_sustain_no_less(
    other_us: list[int], fast: int, slow: int
) -> None:
    profiles = {"net": profile(), "other": profile("other", fast_us=tuple(map(float, other_us)))}
    tiny = cluster(fast, slow)
    problem = problem_of(profiles, tiny, workload(*DEMANDS), OPTIONS)
    goal = goal_of(problem, "throughput", {}, np.zeros(len(problem.classes)))
    found = search(problem, goal, OPTIONS)
    settled = break_ties(found, goal, OPTIONS, {}, MARGINS_US, Watch())
    assert lowest_share(settled.columns, settled.vgpus, goal) >= found.score * (1 - 1e-9)
    assert value(settled, found.score) >= value(found, found.score) - 2e-3
    plan = make_plan(profiles, tiny, workload(*DEMANDS), OPTIONS)
    assert verify_plan(plan, profiles) == []
    assert plan.objective.value == pytest.approx(settled.score)
    assert len(plan.certificate["ties"]["sustained"]) == 2
