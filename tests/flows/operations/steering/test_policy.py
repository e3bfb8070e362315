"""When steering makes another plan, and for what."""

from contextlib import suppress
from dataclasses import replace

import pytest

from flows.operations.steering.policy import (
    entries_of,
    with_entries,
)
from tests.flows.operations.steering.steered import MS, PROBLEM, demand, own_entries, steered
from tests.flows.planning.entries.entry_cases import cluster
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import LEAST_RPS, Workload
from triton_backend.simulator.clients.closed_loop import percents


def test_demands_of_one_cut_and_nearly_one_budget_are_one_entry_with_headroom() -> None:
    found = entries_of([demand(1, 60, 10), demand(1, 61, 20), demand(1, 20, 5), demand(2, 60, 1)])
    entries = found["net"]
    assert [(e.block, round(e.rate_rps, 6)) for e in entries] == [(1, 5.5), (1, 33.0), (2, 1.1)]
    for one, asked in zip(entries, (20, 60, 60), strict=True):
        assert asked / 1.2 * MS - 1 <= one.budget_us <= asked * MS
    last = entries[-1].budget_us
    assert entries_of([demand(1, last / MS, 1)])["net"][0].budget_us == last


def test_a_plan_follows_at_once_for_more_and_for_a_new_cut_and_rests_a_second() -> None:
    steering = steered()
    assert steering.next_plan([demand(0, 60, 30)], 0.0) is None
    moved = steering.next_plan([demand(0, 60, 30), demand(2, 60, 10)], 0.5)
    assert moved is not None
    assert own_entries(moved) == [(0, 33.0), (2, 11.0)]
    assert steering.next_plan([demand(0, 60, 90)], 1.4) is None  # too soon
    more = steering.next_plan([demand(0, 60, 90)], 1.5)
    assert more is not None
    assert own_entries(more) == [(0, 99.0)]
    assert steering.next_plan([demand(0, 60, 98)], 3.0) is None  # within the headroom
    assert steering.next_plan([demand(0, 70, 90)], 4.0) is None  # tighter pools serve it


def test_demands_that_do_not_fit_are_planned_for_once_a_second_and_the_same_ones_once() -> None:
    small = replace(PROBLEM, cluster=cluster(gpus=1))
    steering = steered(small)
    made, planner = list[float](), steering.planner

    def planned(workload: Workload, in_force: Plan) -> Plan:
        made.append(workload.models[0].entries[0].rate_rps)
        return planner(workload, in_force)

    steering.planner = planned
    for look in range(8):
        with suppress(InfeasibleError):
            assert steering.next_plan([demand(0, 60, 50_000)], 0.25 * look) is None
    assert len(made) == 1
    for look in range(8, 16):
        with suppress(InfeasibleError):
            assert steering.next_plan([demand(0, 60, 50_000 + look)], 0.25 * look) is None
    assert len(made) == 3


def test_a_plan_that_would_save_follows_after_half_a_minute_of_that() -> None:
    steering = steered()
    high = steering.next_plan([demand(0, 12, 400)], 0.0)
    assert high is not None
    for second in range(5, 30, 5):
        assert steering.next_plan([demand(0, 12, 20)], second) is None
    assert steering.next_plan([demand(0, 12, 400)], 30.0) is None  # it would not have saved
    for second in range(35, 75, 5):  # a demand is kept for ten seconds
        assert steering.next_plan([demand(0, 12, 20)], second) is None
    low = steering.next_plan([demand(0, 12, 20)], 75.0)
    assert low is not None
    assert percents(low) < 0.85 * percents(high)


def test_clients_that_were_away_for_seconds_are_planned_for_and_none_twice() -> None:
    """Of 30 requests/s a third goes to another cut, and back.

    Both cuts are kept, but not more than came at once.
    """
    steering = steered()
    assert steering.next_plan([demand(0, 60, 20), demand(2, 60, 10)], 0.0) is not None
    moved = steering.next_plan([demand(0, 60, 10), demand(2, 60, 20)], 5.0)
    assert moved is not None
    assert own_entries(moved) == [(0, 11.0), (2, 22.0)]
    fewer = steering.next_plan([demand(2, 60, 23)], 9.0)
    assert fewer is not None
    assert own_entries(fewer) == [(0, 7.7), (2, 25.3)]
    later = steering.next_plan([demand(2, 60, 28)], 20.0)
    assert later is not None
    assert own_entries(later) == [(2, 30.8)]


def test_who_cannot_have_a_pool_of_their_own_is_left_to_the_shadow_pool() -> None:
    steering = steered()
    plan = steering.next_plan([demand(0, 0.5, 30), demand(1, 60, 30)], 0.0)
    assert plan is not None
    assert own_entries(plan) == [(1, 33.0)]
    assert steering.next_plan([demand(0, 0.5, 30), demand(1, 60, 30)], 5.0) is None


def test_a_model_without_demand_keeps_an_entry_of_hardly_any_rate() -> None:
    (model,) = with_entries(PROBLEM.workload, {}).models
    assert [(e.name, e.rate_rps) for e in model.entries] == [("idle", LEAST_RPS)]


def test_a_cluster_that_is_too_small_is_said() -> None:
    small = replace(PROBLEM, cluster=cluster(gpus=1))
    with pytest.raises(InfeasibleError, match=r"gpu_classes\.G"):
        steered(small).next_plan([demand(0, 60, 50_000)], 0.0)
