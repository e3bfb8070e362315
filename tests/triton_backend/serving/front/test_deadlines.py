"""The watch over deadlines sleeps while no request waits, and no client waits for it then."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.triton_backend.serving.system import wait_for
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serving.front.counters import FrontCounters, latency_bounds_s
from triton_backend.serving.front.deadlines import DeadlineWatch
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.front.requests.pending import PendingRequests
from triton_backend.serving.front.requests.request import Request

pytestmark = pytest.mark.slow


class Watched:
    """A watch over requests, which notes what it was asked to cancel."""

    def __init__(self, folder: Path) -> None:
        self.clock = SystemClock()
        counters = FrontCounters(latency_bounds_s(100_000))
        self.pending = PendingRequests("m", folder, self.clock, counters)
        self.cancelled: list[int] = []
        self.is_over = False
        self.go_on = threading.Event()
        self.go_on.set()
        self.watch = DeadlineWatch(
            self.pending,
            self.clock,
            counters,
            self.cancelled.append,
            self._give_up_us,
        )
        self.pending.start()
        self.watch.start()

    def _give_up_us(self, request: Request) -> int:
        self.go_on.wait()
        return request.deadline_us

    def ask(self, allowed_us: int, *, cancelled: bool = False) -> list[object]:
        """Have a request wait; its answers."""
        answers: list[object] = []
        now_us = self.clock.now_us()
        request = Request(
            tensors={},
            samples=1,
            arrival_us=now_us,
            deadline_us=now_us + allowed_us,
            reply=answers.append,
            is_cancelled=lambda: cancelled,
        )
        assert self.pending.admit(request, limit=10)
        self.watch.look_soon()
        return answers

    def sleeps(self) -> bool:
        """True if it has looked at no request since before."""
        before_us = self.clock.now_us()
        return self.watch.looked_us >= before_us


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    yield made
    if not made.is_over:
        made.watch.stop()
    made.pending.stop()


def test_a_request_that_wakes_the_watch_is_given_up_at_its_deadline(watched: Watched) -> None:
    for _ in range(3):  # it sleeps again after each
        wait_for(watched.sleeps)
        answers = watched.ask(allowed_us=1)
        wait_for(lambda answers=answers: len(answers) == 1)
        assert isinstance(answers[0], Refusal)
    assert len(watched.cancelled) == 3


def test_requests_that_come_at_any_instant_are_all_given_up(watched: Watched) -> None:
    asked = [watched.ask(allowed_us=1 + 97 * (number % 50)) for number in range(10)]
    for _ in range(100):
        wait_for(lambda: watched.pending.is_empty)  # right when the watch falls asleep
        asked.append(watched.ask(allowed_us=1))
    wait_for(lambda: all(len(answers) == 1 for answers in asked))


def test_a_client_that_gives_up_is_noticed_by_a_watch_that_slept(watched: Watched) -> None:
    watched.ask(allowed_us=10_000_000, cancelled=True)
    wait_for(lambda: len(watched.cancelled) == 1)


def test_a_watch_that_sleeps_is_alive_and_one_that_hangs_is_not(watched: Watched) -> None:
    wait_for(watched.sleeps)
    watched.go_on.clear()
    watched.ask(allowed_us=1)
    assert not watched.sleeps()
    looked_us = watched.watch.looked_us
    wait_for(lambda: watched.clock.now_us() > looked_us + 50_000)
    assert watched.watch.looked_us == looked_us
    watched.go_on.set()
    wait_for(watched.sleeps)


def test_a_request_that_comes_after_the_end_is_no_error(watched: Watched) -> None:
    watched.watch.stop()
    watched.is_over = True
    assert watched.ask(allowed_us=1) == []
