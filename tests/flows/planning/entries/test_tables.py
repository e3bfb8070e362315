"""How many clients of any phase a vGPU serves.

No phases make one late, against brute force over all of them.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from flows.planning.entries.tables import clients_of
from tests.flows.planning.entries.entry_cases import Case, case
from tests.flows.planning.entries.test_plan import planned
from triton_backend.contract.plan import Plan


def most_waited(phases: Sequence[int], period: int, latency: int, batch: int, vgpus: int) -> int:
    """The longest wait if every free vGPU takes the longest-waiting request."""
    arrivals = sorted(p + k * period for p in phases for k in range(4))
    free, worst, at = [0] * vgpus, 0, 0
    while at < len(arrivals):
        free.sort()
        now = max(free[0], arrivals[at])
        taken = [a for a in arrivals[at : at + batch] if a <= now]
        worst = max(worst, now - taken[0])
        free[0], at = now + latency, at + len(taken)
    return worst


def worst_phases(clients: int, period: int, latency: int, batch: int, vgpus: int) -> int:
    """The longest wait over all phases in whole steps."""
    others = itertools.product(range(period), repeat=clients - 1)
    return max(most_waited((0, *rest), period, latency, batch, vgpus) for rest in others)


@pytest.mark.parametrize(("period", "latency"), [(12, 4), (12, 5), (10, 7), (9, 9), (7, 10)])
@pytest.mark.parametrize(("batch", "vgpus"), [(1, 1), (2, 1), (1, 2), (3, 1)])
def test_nobody_waits_longer_in_any_phase(
    period: int, latency: int, batch: int, vgpus: int
) -> None:
    for clients in (2, 3, 4):
        worst = worst_phases(clients, period, latency, batch, vgpus)
        for wait in range(worst):
            assert clients > vgpus * clients_of(wait, latency, batch, period)


@pytest.mark.parametrize(("runs", "batch"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_one_client_more_can_be_late(runs: int, batch: int) -> None:
    wait = 100 * runs + 98
    assert clients_of(wait, 100, batch, 1_000) == 1 + batch * runs
    behind = [1_001] * (1 + batch * runs)  # just after the one who takes the vGPU
    assert most_waited([1_000, *behind], 1_000, 100, batch, 1) > wait
    assert most_waited([1_000, *behind[1:]], 1_000, 100, batch, 1) <= wait


@pytest.mark.parametrize(("latency", "batch"), [(30, 1), (70, 4), (100, 3)])
def test_who_can_wait_for_long_needs_no_more_than_his_rate(latency: int, batch: int) -> None:
    assert clients_of(latency + 100, latency, batch, 100) == pytest.approx(100 * batch / latency)


def late_in_some_phases(problem: Case, plan: Plan) -> bool:
    """True if some phases make a request wait too long at a pool of a single-stage plan."""
    random = np.random.default_rng(0)
    (model,) = plan.models
    budgets = {e.name: e.budget_us for e in problem.entries}
    for pool in plan.pools:
        own = [p for p in model.pipelines if p.stages[0].pool == pool.name]
        stage, batch = own[0].stages[0], own[0].stages[0].batch or own[0].batch
        latency = stage.latency_us_by_batch[batch - 1]
        period = round(1e6 / problem.entries[0].rate_rps)
        wait = min(budgets[p.entry or ""] for p in own) - latency
        together = [[0] * pool.vgpus + [1] * max(0, len(own) - pool.vgpus)]
        drawn = [random.integers(period, size=len(own)).tolist() for _ in range(300)]
        for phases in together + drawn:
            if most_waited(phases[: len(own)], period, latency, batch, pool.vgpus) > wait:
                return True
    return False


@pytest.mark.parametrize("seed", range(4))
def test_pools_for_any_phase_serve_clients_that_come_together(seed: int) -> None:
    problem = case(seed, 7, blocks=2, rates=(2.0,), loose=6)
    even = planned(problem, max_partitions=1)
    plan = planned(problem, max_partitions=1, own={"phases": "any"})
    assert late_in_some_phases(problem, even)
    assert not late_in_some_phases(problem, plan)
    assert plan.objective.value >= even.objective.value
    assert plan.objective.gap == 0


def test_entries_of_several_rates_are_planned_by_these() -> None:
    problem = case(0, 5, rates=(2.0, 3.0))
    plan = planned(problem, own={"phases": "any"})
    assert plan.objective.value == planned(problem).objective.value
    assert any("phases" in note for note in plan.certificate["notes"])
