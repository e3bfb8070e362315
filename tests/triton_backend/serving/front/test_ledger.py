"""Requests of a front leave once, and never while Triton is asked about them."""

import threading
from pathlib import Path

import pytest

from tests.triton_backend.serving.system import wait_for
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serving.front.counters import FrontCounters, latency_bounds_ms
from triton_backend.serving.front.ledger import Ledger
from triton_backend.serving.front.requests import Refusal, Request

LATE = Refusal("UNAVAILABLE", "late")


class Asked:
    """A request of Triton's: freed with its answer, and not to be asked from then on."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.answers: list[object] = []

    def is_cancelled(self) -> bool:
        self.begun.set()
        self.go_on.wait()
        assert not self.answers, "asked after it was freed"
        return True

    def request(self) -> Request:
        return Request(
            tensors={},
            samples=1,
            arrival_us=0,
            deadline_us=1,
            reply=self.answers.append,
            is_cancelled=self.is_cancelled,
        )


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger("m", tmp_path, SystemClock(), FrontCounters(latency_bounds_ms(100_000)))
    made.start()
    return made


def test_an_answer_waits_until_its_request_is_no_longer_asked(ledger: Ledger) -> None:
    asked, other = Asked(), Asked()
    request, second = asked.request(), other.request()
    assert ledger.enter(request, limit=2)
    assert ledger.enter(second, limit=2)
    cancelled: list[bool] = []
    asking = threading.Thread(target=lambda: cancelled.append(ledger.is_cancelled(request)))
    asking.start()
    asked.begun.wait()
    for number in (request.number, second.number):
        ledger.refuse(number, LATE)
        ledger.refuse(number, LATE)
    wait_for(lambda: other.answers == [LATE])
    assert not asked.answers
    asked.go_on.set()
    asking.join()
    wait_for(lambda: asked.answers == [LATE])
    assert cancelled == [True]
    ledger.stop()


def test_a_request_that_was_answered_is_not_asked(ledger: Ledger) -> None:
    asked = Asked()
    request = asked.request()
    ledger.enter(request, limit=1)
    ledger.refuse(request.number, LATE)
    assert not ledger.is_cancelled(request)
    assert not asked.begun.is_set()
    ledger.stop()


def test_numbers_of_a_front_that_died_are_not_given_again(tmp_path: Path) -> None:
    numbers: list[int] = []
    for _ in range(2):
        life = Ledger("m", tmp_path, SystemClock(), FrontCounters(latency_bounds_ms(100_000)))
        life.start()
        for _ in range(5):
            asked = Asked().request()
            assert life.enter(asked, limit=5)
            numbers.append(asked.number)
        life.stop()
    assert len(set(numbers)) == len(numbers)
