"""Pools of entries of several rates: against brute force over phases, and simulated."""

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from flows.planning.entries.groups import GroupingProblem
from flows.planning.entries.phases import fitted, least_vgpus
from flows.planning.entries.plan import Solved, exactly, in_any_phase
from flows.planning.entries.pooling import Pooled
from flows.planning.entries.pricer import Groups
from flows.planning.entries.tables import ModelTable, in_periods_of, read_tables
from flows.planning.registry import Inputs
from flows.planning.watch import Watch
from tests.flows.planning.entries.entry_cases import EVEN, Case, Held, case, inputs_of


class Clients:
    """Clients of one pool: periods, waits, the latency of a batch and its size."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        count = int(random.integers(2, 4))
        self.latency, self.batch = int(random.integers(2, 9)), int(random.integers(1, 4))
        self.periods = random.choice([4, 5, 6, 8, 9, 10, 12], size=count).tolist()
        self.waits = random.integers(0, 15, size=count).tolist()

    def needed(self, most: int) -> int:
        waits, periods = np.array(self.waits, float), np.array(self.periods, float)
        return least_vgpus(waits, periods, float(self.latency), self.batch, most)

    def late(self, phases: Sequence[int], vgpus: int) -> bool:
        """True if a request starts after its wait; free vGPUs take the most urgent ones."""
        requests = sorted(
            (arrival, arrival + wait)
            for phase, period, wait in zip(phases, self.periods, self.waits, strict=True)
            for arrival in range(phase, 4 * max(self.periods) + 40, period)
        )
        free, waiting, at = [0] * vgpus, list[int](), 0
        while at < len(requests) or waiting:
            now = heapq.heappop(free)
            if not waiting:
                now = max(now, requests[at][0])
            while at < len(requests) and requests[at][0] <= now:
                heapq.heappush(waiting, requests[at][1])
                at += 1
            taken = [heapq.heappop(waiting) for _ in range(min(self.batch, len(waiting)))]
            if taken[0] < now:
                return True
            heapq.heappush(free, now + self.latency)
        return False

    def ever_late(self, vgpus: int) -> bool:
        return any(
            self.late(phases, vgpus) for phases in itertools.product(*map(range, self.periods))
        )


@pytest.mark.parametrize("block", range(10))
def test_no_phases_make_a_client_of_any_pool_late(block: int) -> None:
    exact = looked_at = 0
    for seed in range(20 * block, 20 * block + 20):
        clients = Clients(seed)
        needed = clients.needed(6)
        if needed <= 6:
            assert not clients.ever_late(needed), seed
            looked_at += 1
            exact += needed == 1 or clients.ever_late(needed - 1)
    assert looked_at
    assert exact


def test_more_vgpus_than_are_looked_at_are_said_to_be_needed() -> None:
    assert least_vgpus(np.zeros(9), np.full(9, 10.0), 5.0, 1, 4) == 5


def test_a_client_alone_needs_what_its_rate_asks() -> None:
    assert least_vgpus(np.array([0.0]), np.array([100.0]), 90.0, 4, 3) == 1
    assert least_vgpus(np.array([200.0]), np.array([100.0]), 180.0, 1, 3) == 2


def test_two_clients_fill_a_vgpu_nearly_whole() -> None:
    """The proof takes thousands of instants, for hardly any of its time is spare."""
    waits, periods = np.full(2, 50.01), np.full(2, 100.0)
    assert least_vgpus(waits, periods, 49.98, 1, 1) == 1


@pytest.mark.parametrize("rates", [(40.0, 90.0), (5.0, 12.5, 30.0, 120.0)])
def test_pools_for_their_own_clients_hold_less_than_for_clients_of_one_period(
    rates: tuple[float, ...],
) -> None:
    fewer = 0
    for seed in range(4):
        problem = case(seed, 16, rates=rates, blocks=1 + seed % 2, loose=3)
        for solved, own in plans_at_each_period(problem):
            assert own.cost <= solved.cost + 1e-9
            assert [key for key, _ in own.pools] == [key for key, _ in solved.pools]
            fewer += own.cost < solved.cost
    assert fewer


def test_every_period_has_its_part_of_the_time() -> None:
    options = replace(EVEN, own={**EVEN.own, "phases": "any"})
    clock, limits = Held(), list[float]()
    watch = Watch(limit_s=100.0, _clock=clock)
    inputs = inputs_of(case(0, 16, rates=(40.0, 90.0)), options, watch=watch)
    (table,) = read_tables(inputs)
    count = len(table.references_us)
    assert count > 1

    def rule(asked: ModelTable, given: Inputs) -> Solved:
        limits.append(given.watch.limit_s or 0.0)
        clock.now_s = limits[-1]
        return exactly(asked, given)

    in_any_phase(rule, table, inputs)
    assert limits == pytest.approx([25.0 + 75.0 * n / count for n in range(count + 1)])


def test_a_plan_that_has_no_time_left_begins_no_further_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = replace(EVEN, own={**EVEN.own, "phases": "any"})
    clock = Held()
    inputs = inputs_of(case(0, 60, rates=(40.0, 90.0)), options)
    (table,) = read_tables(inputs)

    def slow(field: GroupingProblem) -> Groups:
        clock.now_s += 1.0
        return Groups(field)

    monkeypatch.setattr("flows.planning.entries.search.Groups", slow)
    short = replace(inputs, watch=Watch(limit_s=2.0, _clock=clock))
    solved = in_any_phase(exactly, table, short)
    assert clock.now_s <= 3.0
    members = sorted(m for chain in solved.pooled.chains for m in chain.item.members)
    assert members == list(range(60))
    assert solved.bound is not None
    assert 0 < solved.bound <= solved.pooled.cost


def plans_at_each_period(problem: Case) -> Iterator[tuple[Pooled, Pooled]]:
    """Plans read at every period, and the same with pools for their own clients."""
    options = replace(EVEN, own={**EVEN.own, "phases": "any"})
    inputs = inputs_of(problem, options, prove=False)
    (table,) = read_tables(inputs)
    for period_us in table.references_us:
        solved = exactly(in_periods_of(table, period_us), inputs).pooled
        yield solved, fitted(solved, table)
