"""A client alone: turns on its device, its link, refusals, and what it may know when."""

import heapq
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import pytest

from triton_backend.client.link import Trace
from triton_backend.contract.errors import InputError
from triton_backend.simulator.clients.client import ClientSpec, Missed, Sent, VirtualClient

MS = 1_000


def spec(trace: Trace | None = None, **more: Any) -> ClientSpec:
    """Two blocks of 20 ms each; the input takes 10 ms at 80 Mbit/s, what crosses the cut 1 ms."""
    fields: dict[str, Any] = {
        "name": "c",
        "model": "net",
        "fps": 10.0,
        "slo_us": 100 * MS,
        "heads_us": (0, 20 * MS, 140 * MS),
        "upload_bytes": (100_000, 10_000),
        "trace": trace or Trace([(0.0, 80.0)]),
    }
    return ClientSpec(**(fields | more))


class World:
    """Events in order, and a server that does as it is asked."""

    def __init__(
        self,
        one: ClientSpec,
        server: Callable[["World", int, Sent], None],
        cuts: Mapping[int, int],
        *,
        foresight: bool = False,
    ) -> None:
        self.events: list[tuple[int, int, Callable[[int, Any], None], Any]] = []
        self.sent: list[tuple[int, Sent]] = []
        self._numbers, self._server, self.now_us = count(), server, 0
        self.client = VirtualClient(
            0, one, 1_500 * MS, 2_500 * MS, later=self.later, send=self._take,
            open_cuts=lambda _: cuts, foresight=foresight,
        )  # fmt: skip
        while self.events:
            self.now_us, _, function, argument = heapq.heappop(self.events)
            function(self.now_us, argument)

    def later(self, at_us: int, function: Callable[[int, Any], None], argument: Any) -> None:
        assert at_us >= self.now_us
        heapq.heappush(self.events, (at_us, next(self._numbers), function, argument))

    def _take(self, sent: Sent) -> None:
        self.sent.append((self.now_us, sent))
        self._server(self, self.now_us, sent)


def answers(world: World, now_us: int, sent: Sent) -> None:
    """After 30 ms."""
    at_us = now_us + 30 * MS
    world.later(at_us, lambda now, number: world.client.answered(now, now, number), sent.number)


def refuses(world: World, now_us: int, sent: Sent) -> None:
    world.later(
        now_us, lambda now, number: world.client.refused(now, number, Missed.WITHIN), sent.number
    )


def test_a_request_uploads_what_crosses_and_leaves_the_server_what_is_left() -> None:
    world = World(spec(), answers, {0: 30 * MS})
    assert [(at, sent.budget_us) for at, sent in world.sent[:2]] == [
        (1_510 * MS, 90 * MS),
        (1_610 * MS, 90 * MS),
    ]
    counts = world.client.counts
    assert (counts.offered, counts.served, counts.feasible_served, counts.reached_served) == (
        10,
    ) * 4
    assert counts.total_us == [40 * MS] * 10
    assert world.client.announced(2_500 * MS) == (0, 90 * MS - 1, 10.0)  # since it began


def test_decisions_know_past_uploads_only() -> None:
    """The link falls to a tenth at 2 s.

    The request due then still goes as if it had not, and is late.
    """
    falling = Trace([(0.0, 80.0), (2.0, 8.0)])
    world = World(spec(falling), answers, {0: 30 * MS})
    before = world.client.counts
    assert before.cuts[0] > 5  # those who find out
    assert before.feasible == before.cuts[0]
    assert before.feasible_served == 5
    assert before.offered == before.served + before.late == 10


def test_nothing_is_feasible_any_more_but_trials_find_a_link_that_comes_back() -> None:
    """From 1.8 s on nothing leaves, from 2.2 s on all does.

    A probe would have been due at 6.7 s.
    """
    gap = Trace([(0.0, 80.0), (1.8, 0.0), (2.2, 80.0)])
    counts = World(spec(gap), answers, {0: 30 * MS}).client.counts
    assert (counts.possible, counts.possible_served, counts.served) == (6, 6, 6)
    assert (counts.tried, counts.tried_served) == (5, 1)


def test_what_goes_too_slowly_is_decided_again() -> None:
    """At 8 Mbit/s the input takes as long as the SLO, what crosses the second cut 10 ms."""
    falling = Trace([(0.0, 80.0), (1.9, 8.0)])
    world = World(spec(falling), answers, {0: 30 * MS, 1: 25 * MS})
    counts = world.client.counts
    assert (counts.possible, counts.possible_served) == (10, 10)
    assert [sent.block for _, sent in world.sent] == [0] * 4 + [1] * 6
    assert counts.cuts == {0: 5, 1: 5}
    assert not counts.missed


def test_with_foresight_the_cut_is_that_of_the_link_to_come() -> None:
    falling = Trace([(0.0, 80.0), (1.9, 8.0)])
    one = World(spec(falling), answers, {0: 30 * MS, 1: 25 * MS}, foresight=True)
    assert one.client.counts.cuts == {0: 4, 1: 6}


def test_why_a_possible_request_was_missed_is_counted() -> None:
    counts = World(spec(), refuses, {0: 30 * MS}).client.counts
    assert counts.missed == {Missed.WITHIN: 4, Missed.NOT_TRIED: 2}  # the cut rests
    assert (counts.possible, counts.possible_served) == (6, 0)  # others waited for the device


def test_a_refused_request_runs_on_the_device_and_its_cut_rests() -> None:
    quick = spec(heads_us=(0, 20 * MS, 60 * MS), slo_us=90 * MS)
    world = World(quick, refuses, {0: 5 * MS})
    assert [sent.number for _, sent in world.sent] == [0, 1, 4, 8]  # after ever longer rests
    counts = world.client.counts
    assert (counts.refused, counts.device, counts.served) == (4, 10, 10)
    assert sorted(counts.total_us) == [60 * MS] * 6 + [70 * MS] * 4


def test_what_nothing_answers_in_time_is_given_up_and_the_device_stays_free() -> None:
    world = World(spec(), answers, {})
    counts = world.client.counts
    assert (counts.offered, counts.feasible, counts.late, counts.not_begun) == (10, 0, 10, 0)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("fps", 0.0, "client 'c', fps: 0 is not above 0"),
        ("slo_us", 0, "client 'c', slo_ms: is not positive"),
        ("heads_us", (0, 1), "heads_us: 2 times; a model of 2 blocks has 3 cuts"),
        ("heads_us", (0, 2, 1), "heads_us: a longer head takes less time"),
    ],
)
def test_what_a_client_cannot_be_is_named(field: str, value: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        spec(**{field: value})
