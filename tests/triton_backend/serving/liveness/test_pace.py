"""The pace of workers and links, and corrections of the scheduler's tables."""

import pytest

from triton_backend.scheduler.measured.paces import FEWEST_RUNS, LAST_RUNS, QUIET_US
from triton_backend.serving.liveness.pace import FEWEST_PROBES, LAST_MOVES, LinkPaces, WorkerPaces

POOL = 0
PLANNED_US = 10_000


def ran(workers: WorkerPaces, vgpu: int, factor: float) -> None:
    for _ in range(FEWEST_RUNS):
        workers.ran(vgpu, round(factor * PLANNED_US), PLANNED_US)


# Workers


def test_workers_that_are_all_slow_are_left_alone() -> None:
    workers = WorkerPaces([POOL] * 3)
    for _ in range(LAST_RUNS):
        for vgpu in range(3):
            workers.ran(vgpu, took_us=40_000, expected_us=10_000)
    assert not any(workers.is_slow(vgpu, (0, 1, 2)) for vgpu in range(3))
    for _ in range(LAST_RUNS):
        workers.ran(2, took_us=100_000, expected_us=10_000)
    assert [workers.is_slow(vgpu, (0, 1, 2)) for vgpu in range(3)] == [False, False, True]
    assert not workers.is_slow(2, (2,))
    workers.forget(2)
    assert not workers.is_slow(2, (0, 1, 2))


def test_a_few_late_runs_are_not_slowness() -> None:
    workers = WorkerPaces([POOL] * 2)
    for run in range(LAST_RUNS):
        workers.ran(0, took_us=1_000, expected_us=1_000)
        workers.ran(1, took_us=90_000 if run % 3 == 0 else 1_000, expected_us=1_000)
    assert not workers.is_slow(1, (0, 1))


@pytest.mark.parametrize(("peers", "recovered"), [(1, False), (4, True)])
def test_bounds_are_those_of_its_peers(peers: int, *, recovered: bool) -> None:
    """Where the machine has become slow for all, four times the profile is well."""
    workers = WorkerPaces([POOL] * 2)
    ran(workers, 1, peers)
    for _ in range(FEWEST_PROBES):
        assert not workers.has_recovered(0, (1,))
        workers.probed(0, 4 * PLANNED_US, PLANNED_US)
    assert workers.has_recovered(0, (1,)) == recovered


# Links

NODES = [10.0, 10.0, 10.0, 2.5]  # Gbit/s


def move(
    links: LinkPaces,
    sender: int,
    receiver: int,
    factor: float,
    at_us: int = 0,
    count: int = LAST_MOVES,
) -> int:
    """Transfers one after the other; each should take 10 ms and takes `factor` times as long."""
    for _ in range(count):
        end_us = at_us + round(factor * PLANNED_US)
        links.moved(sender, receiver, at_us, end_us, PLANNED_US)
        at_us = end_us
    return at_us


def test_links_as_fast_as_planned_are_left_alone() -> None:
    links = LinkPaces(NODES, 0)
    for sender, receiver in ((0, 1), (0, 2), (1, 3)):
        move(links, sender, receiver, 1.2)
    assert links.changes(1) == []


def test_a_slow_link_is_told_from_those_at_the_other_ends() -> None:
    links = LinkPaces(NODES, 0)
    now_us = 0
    for sender, receiver, factor in ((0, 1, 4.0), (0, 2, 4.0), (1, 2, 1.0), (2, 1, 1.0)):
        now_us = move(links, sender, receiver, factor, now_us)
    assert links.changes(now_us) == [(0, 400, 100)]
    assert links.changes(now_us) == []


def test_where_only_one_pair_is_known_both_of_its_ends_are_corrected() -> None:
    links = LinkPaces(NODES, 0)
    now_us = move(links, 0, 1, 4.0)
    assert links.changes(now_us) == [(0, 400, 100), (1, 100, 400)]


def test_a_transfer_that_is_as_slow_as_the_slower_nic_says_nothing_of_the_faster() -> None:
    links = LinkPaces(NODES, 0)
    now_us = move(links, 1, 3, 1.0, move(links, 0, 3, 1.0))
    assert links.changes(now_us) == []
    # 4 times as slow as planned for 2.5 Gbit/s: that is 16 times as slow as node 0's own rate.
    now_us = move(links, 0, 3, 4.0, now_us)
    assert links.changes(now_us) == [(0, 1600, 100)]


def test_what_waited_for_the_batch_before_it_is_not_slow() -> None:
    links = LinkPaces(NODES, 0)
    for number in range(1, LAST_MOVES + 1):  # all ready at once, then one after the other
        links.moved(0, 1, 0, number * PLANNED_US, PLANNED_US)
    assert links.changes(1) == []


def test_a_link_is_busy_while_anything_is_on_its_way_over_it() -> None:
    links = LinkPaces(NODES, 0)
    links.moved(0, 1, 0, 500, PLANNED_US)
    links.moved(0, 2, 200, 700, PLANNED_US)  # 300 of these beside the first
    links.moved(0, 1, 1_000, 1_100, PLANNED_US)
    now_us = 1_100 + QUIET_US
    links.changes(now_us)
    links.moved(0, 1, now_us, now_us + 50, PLANNED_US)
    links.moved(0, 1, now_us, now_us + 50, 0)  # nothing to move
    assert links.up_busy_us == [850, 0, 0, 0]
    assert links.down_busy_us == [0, 650, 500, 0]


def test_a_downlink_is_as_fast_as_all_that_come_over_it_together() -> None:
    """Two senders, each fast to another receiver, share a downlink at a quarter of its rate."""
    links = LinkPaces(NODES, 0)
    now_us = move(links, 1, 0, 1.0, move(links, 0, 1, 1.0))
    for _ in range(LAST_MOVES):
        end_us = now_us + 8 * PLANNED_US  # each at half of what there is
        links.moved(0, 2, now_us, end_us - 1, PLANNED_US)
        links.moved(1, 2, now_us, end_us, PLANNED_US)
        now_us = end_us
    assert links.changes(now_us) == [(2, 100, 400)]


def test_a_pair_that_was_forgotten_at_one_end_says_nothing_at_the_other() -> None:
    links = LinkPaces(NODES, 0)
    now_us = move(links, 0, 2, 4.0)
    assert links.changes(now_us) == [(0, 400, 100), (2, 100, 400)]
    now_us = move(links, 1, 2, 4.0, now_us + QUIET_US)
    assert links.changes(now_us) == [(0, 250, 100), (1, 400, 100)]


def test_a_link_that_paused_once_is_not_slow() -> None:
    links = LinkPaces(NODES, 0)
    now_us = move(links, 0, 1, 1.0, count=LAST_MOVES - 1)
    links.moved(0, 1, now_us, now_us + 100 * PLANNED_US, PLANNED_US)
    assert links.changes(now_us) == []


def test_small_transfers_on_a_busy_machine_are_left_alone() -> None:
    links = LinkPaces(NODES, 0)
    for number in range(LAST_MOVES):
        links.moved(0, 1, number * 1_000, number * 1_000 + 400, 100)
    assert links.changes(1) == []


def test_a_correction_of_a_link_ends_or_fades() -> None:
    links = LinkPaces(NODES, 0)
    now_us = move(links, 0, 1, 5.0)
    assert links.changes(now_us) == [(0, 500, 100), (1, 100, 500)]
    now_us += QUIET_US + 1
    assert links.changes(now_us) == [(0, 300, 100), (1, 100, 300)]
    now_us = move(links, 0, 1, 1.0, now_us)
    assert links.changes(now_us) == [(0, 100, 100), (1, 100, 100)]
