"""How many clients of any phase a vGPU serves.

No phases make one late, against brute force over all of them.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.entries.tables import ModelTable, clients_of, read_tables
from flows.planning.verify.numbers import verify_plan
from tests.flows.planning.entries.entry_cases import EVEN, Case, case, inputs_of
from tests.flows.planning.entries.test_plan import planned
from triton_backend.contract.arrivals import StatedRequests
from triton_backend.contract.plan import Plan
from triton_backend.simulator.offered import Stated
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions


def most_waited(phases: Sequence[int], period: int, latency: int, batch: int, vgpus: int) -> int:
    """The longest wait if every free vGPU takes the longest-waiting request."""
    arrivals = sorted(p + k * period for p in phases for k in range(4))
    return longest_wait(arrivals, latency, batch, vgpus)


def longest_wait(arrivals: Sequence[int], latency: int, batch: int, vgpus: int) -> int:
    """The longest wait of requests that come at these times, in order."""
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


@pytest.mark.parametrize("seed", range(1, 5))
def test_pools_for_any_phase_serve_clients_that_come_together(seed: int) -> None:
    problem = case(seed, 7, blocks=2, rates=(2.0,), loose=6)
    even = planned(problem, max_partitions=1)
    plan = planned(problem, max_partitions=1, own={"phases": "any"})
    assert late_in_some_phases(problem, even)
    assert not late_in_some_phases(problem, plan)
    assert plan.objective.value >= even.objective.value
    assert plan.objective.gap == 0


def late_in_drawn_phases(problem: Case, plan: Plan, random: np.random.Generator) -> bool:
    """True if simulated clients at equal gaps, of drawn phases, miss half a percent."""
    times = [
        np.arange(random.uniform(0, 1e6 / e.rate_rps), 4e6, 1e6 / e.rate_rps).astype(np.int64)
        for e in problem.entries
    ]
    count = sum(map(len, times))
    requests = StatedRequests(
        arrival_us=np.concatenate(times),
        deadline_us=np.full(count, -1),
        samples=np.ones(count, dtype=np.int64),
        models=("",) * count,
        entries=tuple(e.name for e, own in zip(problem.entries, times, strict=True) for _ in own),
    )
    arrivals = Stated(requests=requests)
    result = simulate(plan, SimOptions(arrivals=arrivals, duration_s=5, keep_uses=False))
    return result.attainment < 0.995


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rates", [(20.0,), (40.0, 90.0), (5.0, 12.5, 30.0, 120.0)])
def test_plans_attain_their_planned_rates_in_drawn_phases(
    seed: int, rates: tuple[float, ...]
) -> None:
    problem = case(seed, 16, rates=rates, blocks=1 + seed % 2, loose=3)
    random = np.random.default_rng(seed)
    options = PlanOptions(planner="pool", objective="share")
    plan = make_plan(problem.profiles, problem.cluster, problem.workload, options)
    assert verify_plan(plan, problem.profiles) == []
    assert not any(late_in_drawn_phases(problem, plan, random) for _ in range(3))


def test_plans_by_rates_alone_miss_some_phases() -> None:
    random = np.random.default_rng(0)
    problems = [case(seed, 16, rates=(40.0, 90.0), blocks=1, loose=3) for seed in range(3)]
    assert any(late_in_drawn_phases(problem, planned(problem), random) for problem in problems)


@pytest.mark.parametrize("periods", [(12, 6), (12, 5), (10, 8), (9, 4)])
@pytest.mark.parametrize(("latency", "batch", "vgpus"), [(2, 1, 1), (3, 2, 1), (4, 1, 2)])
def test_no_request_waits_longer_beside_clients_of_another_rate(
    periods: tuple[int, int], latency: int, batch: int, vgpus: int
) -> None:
    """Against brute force over all phases of three clients."""
    three = (*periods, periods[0])
    worst = 0
    for phases in itertools.product(*map(range, three)):
        arrivals = sorted(
            p + k * period
            for p, period in zip(phases, three, strict=True)
            for k in range(4 * periods[0] // period)
        )
        worst = max(worst, longest_wait(arrivals, latency, batch, vgpus))
    for reference in periods:
        counted = sum(math.ceil(reference / period) for period in three)
        for wait in range(worst):
            assert counted > vgpus * clients_of(wait, latency, batch, reference)


@pytest.mark.parametrize("seed", range(3))
def test_entries_of_several_rates_are_bounded_by_plans_by_rates(seed: int) -> None:
    problem = case(seed, 6, rates=(2.0, 3.0))
    plan, even = planned(problem, own={"phases": "any"}), planned(problem)
    assert plan.objective.value >= plan.objective.upper_bound
    assert plan.objective.upper_bound == pytest.approx(even.objective.upper_bound)
    assert any("several rates" in note for note in plan.certificate["notes"])


def options_of(table: ModelTable) -> dict[tuple[int, int, int], list[list[float]]]:
    """Every option of every range, as lists."""
    ranges = itertools.combinations(range(table.blocks + 1), 2)
    return {
        (first, last, kind): [
            getattr(table.options(first, last, kind), part.name).tolist()
            for part in fields(table.options(first, last, kind))
        ]
        for first, last in ranges
        for kind in range(len(table.kinds))
    }


def layout_of(table: ModelTable) -> list[list[float]]:
    layout = table.layout(np.unique([entry.block for entry in table.entries]))
    return [getattr(layout, part.name).tolist() for part in fields(layout)]


@pytest.mark.parametrize("phases", ["any", "even"])
@pytest.mark.parametrize("rates", [(20.0,), (40.0, 90.0)])
@pytest.mark.parametrize("seed", range(2))
def test_tables_like_others_have_the_options_of_tables_that_are_read_alone(
    seed: int, rates: tuple[float, ...], phases: str
) -> None:
    problem = case(seed, 5, rates=rates, classes=("G", "H"))
    options = replace(EVEN, own={**EVEN.own, "phases": phases})
    inputs = inputs_of(problem, options)
    like, found = read_tables(inputs), set[str]()
    for level, dearer, waste in [
        (1.0, 1.0, 0.0),
        (2.0, 1.0, 0.0),
        (2.0, 1.2, 0.0),
        (2.0, 3.0, 0.3),
    ]:
        asked = (inputs, level, {"G": dearer}, waste)
        (alone,), (table,) = read_tables(*asked), read_tables(*asked, like)
        assert options_of(table) == options_of(alone)
        assert layout_of(table) == layout_of(alone)
        found.add(str(options_of(table)))
        like = [table]
    assert len(found) > 1
