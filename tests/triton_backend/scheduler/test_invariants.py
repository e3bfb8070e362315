"""Damage of every kind is found."""

from collections.abc import Callable

import pytest

from tests.fakes.plans import two_stages
from triton_backend.contract.errors import InvariantError
from triton_backend.scheduler.compiled import NONE
from triton_backend.scheduler.invariants import check_invariants
from triton_backend.scheduler.kernel_api import arrive, settle_one
from triton_backend.scheduler.plan_rows import build_topology
from triton_backend.scheduler.tables import Tables, new_tables


def busy_tables(requests: int = 10) -> Tables:
    """Two batches in flight and two requests in line, or as many as are asked for."""
    tables = new_tables(build_topology(two_stages()))
    for number in range(requests):
        arrive(tables, 0, number, 100_000 + number, 1)
        settle_one(tables, 0)
    check_invariants(tables)
    return tables


def overlap(tables: Tables) -> None:
    tables.intervals[0]["end_us"] += 10**6


def lost_with_work(tables: Tables) -> None:
    tables.resources[0]["lost"] = 1


def index_too_late(tables: Tables) -> None:
    tables.free_from_us[3] = 10**6


def line_out_of_order(tables: Tables) -> None:
    tables.requests[int(tables.queues[0]["first"])]["deadline_us"] += 10**6


def miscounted_line(tables: Tables) -> None:
    tables.queues[0]["samples"] += 1


def miscounted_batch(tables: Tables) -> None:
    tables.batches[0]["samples"] += 1


def forgotten_batch(tables: Tables) -> None:
    tables.counts[0]["in_flight"] -= 1


def leaked_slot(tables: Tables) -> None:
    tables.counts[0]["free_request"] = tables.requests[int(tables.counts[0]["free_request"])][
        "next"
    ]


def vanished_request(tables: Tables) -> None:
    tables.counts[0]["requests"] += 1


def wait_that_nobody_has(tables: Tables) -> None:
    tables.waiting_keep_us[0] = 5


def flag_that_nothing_counts(tables: Tables) -> None:
    tables.counts[0]["touched_late"] += 1


def timer_that_no_item_has(tables: Tables) -> None:
    tables.counts[0]["timers"] += 1


def miscounted_candidates(tables: Tables) -> None:
    tables.heaps[0]["waiting_count"] += 1


@pytest.mark.parametrize(
    "damage",
    [
        overlap,
        lost_with_work,
        index_too_late,
        line_out_of_order,
        miscounted_line,
        miscounted_batch,
        forgotten_batch,
        leaked_slot,
        vanished_request,
        wait_that_nobody_has,
        flag_that_nothing_counts,
        timer_that_no_item_has,
        miscounted_candidates,
    ],
)
def test_damage_is_found(damage: Callable[[Tables], None]) -> None:
    tables = busy_tables()
    damage(tables)
    with pytest.raises(InvariantError):
        check_invariants(tables)


def test_reservations_of_a_resource_that_overlap_are_named() -> None:
    tables = busy_tables(40)
    runs = tables.intervals
    first = next(i for i, run in enumerate(runs) if run["resource"] != NONE != run["next"])
    second = int(runs[first]["next"])
    runs[second]["start_us"] = runs[first]["end_us"] - 1
    with pytest.raises(InvariantError, match=f"intervals {first} and {second} overlap on resource"):
        check_invariants(tables)
