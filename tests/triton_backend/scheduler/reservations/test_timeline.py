"""Intervals of one resource: gaps, order, delays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.plans import Own, make_plan
from triton_backend.scheduler.compiled import NONE
from triton_backend.scheduler.invariants import check_invariants
from triton_backend.scheduler.plan_rows import build_topology
from triton_backend.scheduler.reservations.timeline import (
    delay,
    earliest_move,
    earliest_start,
    release,
    reserve,
)
from triton_backend.scheduler.tables import VGPU, Tables, interval_of, new_tables


def tables_of(gpus: int = 1) -> Tables:
    plan = make_plan([[Own(latency_us=(10,), gpus=gpus)]])
    return new_tables(build_topology(plan))


def busy(tables: Tables, resource: int = 0) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    i = int(tables.resources[resource]["first"])
    while i != NONE:
        row = tables.intervals[i]
        found.append((int(row["start_us"]), int(row["end_us"])))
        i = int(row["next"])
    return found


def fill(tables: Tables, *intervals: tuple[int, int], resource: int = 0) -> list[int]:
    numbers: list[int] = []
    for start_us, end_us in intervals:
        free = int(np.flatnonzero(tables.intervals["resource"][VGPU::3] == NONE)[0])
        number = interval_of(tables, free // tables.offers.shape[1], free % 2, VGPU)
        reserve(tables, number, resource, start_us, end_us)
        numbers.append(number)
    return numbers


def test_the_first_gap_that_is_long_enough_is_found() -> None:
    tables = tables_of()
    fill(tables, (10, 20), (25, 40), (60, 70))
    assert [earliest_start(tables, 0, 0, length) for length in (10, 11, 20, 21)] == [0, 40, 40, 70]
    assert earliest_start(tables, 0, 21, 4) == 21
    assert earliest_start(tables, 0, 21, 5) == 40


def test_both_links_of_a_transfer_must_be_free_at_once() -> None:
    tables = tables_of(gpus=2)
    fill(tables, (0, 10), (15, 30), resource=0)
    fill(tables, (10, 15), (32, 40), resource=1)
    assert earliest_move(tables, 0, 1, 0, 5) == 40
    assert earliest_move(tables, 0, 1, 0, 2) == 30
    assert earliest_move(tables, NONE, 1, 0, 10) == 0


def test_released_time_is_free_again() -> None:
    tables = tables_of()
    first, middle, last = fill(tables, (0, 10), (10, 20), (20, 30))
    release(tables, middle)
    assert busy(tables) == [(0, 10), (20, 30)]
    release(tables, first)
    release(tables, last)
    assert busy(tables) == []
    release(tables, last)


def test_a_delay_moves_what_follows_and_keeps_the_order() -> None:
    tables = tables_of()
    first, *_ = fill(tables, (0, 10), (12, 20), (40, 50))
    delay(tables, first, 5)
    assert busy(tables) == [(5, 15), (15, 23), (40, 50)]
    delay(tables, first, 30)
    assert busy(tables) == [(30, 40), (40, 48), (48, 58)]


def test_a_delay_reads_of_its_work_list_no_more_than_it_wrote() -> None:
    tables = tables_of()
    first, *_ = fill(tables, (0, 10), (12, 20))
    tables.pending[:] = len(tables.intervals)  # left of an earlier one
    delay(tables, first, 5)
    assert busy(tables) == [(5, 15), (15, 23)]


@pytest.mark.long
@settings(deadline=None, derandomize=True, max_examples=50)
@given(
    jobs=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), min_size=1, max_size=30),
    released=st.sets(st.integers(0, 29)),
)
def test_jobs_placed_in_the_first_gap_never_overlap_and_start_as_early_as_possible(
    jobs: list[tuple[int, int]], released: set[int]
) -> None:
    tables = tables_of()
    taken = np.zeros(2_000, dtype=bool)
    for number, (at_us, length_us) in enumerate(jobs):
        start_us = earliest_start(tables, 0, at_us, length_us)
        free = [t for t in range(at_us, 1_900) if not taken[t : t + length_us].any()]
        assert start_us == free[0]
        interval = interval_of(tables, number, 0, VGPU)
        reserve(tables, interval, 0, start_us, start_us + length_us)
        taken[start_us : start_us + length_us] = True
        if number in released:
            release(tables, interval)
            taken[start_us : start_us + length_us] = False
    check_invariants(tables)
