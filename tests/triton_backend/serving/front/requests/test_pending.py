"""Requests of a front leave once, and never while Triton is asked about them."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.decisions import DropReason
from triton_backend.runtimes.clock import SystemClock
from triton_backend.scheduler.measured.guard import Guard
from triton_backend.serving.front.counters import FrontCounters, latency_bounds_s
from triton_backend.serving.front.replies import Refusal, Result
from triton_backend.serving.front.requests.pending import PendingRequests, arrival_frame
from triton_backend.serving.front.requests.reading import MAX_TIMEOUT_US
from triton_backend.serving.front.requests.request import Request
from triton_backend.serving.front.texts import SeenOutputs
from triton_backend.serving.server.metrics import front_values
from triton_backend.serving.transport.shared_memory import Arrays
from triton_backend.serving.transport.wire import HEADER_BYTES, unpack_arrival

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
def pending(tmp_path: Path) -> PendingRequests:
    made = PendingRequests("m", tmp_path, SystemClock(), FrontCounters(latency_bounds_s(100_000)))
    made.start()
    return made


def test_an_answer_waits_until_its_request_is_no_longer_asked(pending: PendingRequests) -> None:
    asked, other = Asked(), Asked()
    request, second = asked.request(), other.request()
    assert pending.admit(request, limit=2)
    assert pending.admit(second, limit=2)
    cancelled: list[bool] = []
    asking = threading.Thread(target=lambda: cancelled.append(pending.is_cancelled(request)))
    asking.start()
    asked.begun.wait()
    for number in (request.number, second.number):
        pending.refuse(number, LATE)
        pending.refuse(number, LATE)
    wait_for(lambda: other.answers == [LATE])
    assert not asked.answers
    asked.go_on.set()
    asking.join()
    wait_for(lambda: asked.answers == [LATE])
    assert cancelled == [True]
    pending.stop()


def test_a_request_that_was_answered_is_not_asked(pending: PendingRequests) -> None:
    asked = Asked()
    request = asked.request()
    pending.admit(request, limit=1)
    pending.refuse(request.number, LATE)
    assert not pending.is_cancelled(request)
    assert not asked.begun.is_set()
    pending.stop()


def test_a_request_that_is_given_up_counts_once_as_dropped(pending: PendingRequests) -> None:
    asked = Asked()
    request = asked.request()
    assert pending.admit(request, limit=1)
    pending.expire(request)
    pending.expire(request)
    wait_for(lambda: bool(asked.answers))
    (answer,) = asked.answers
    assert isinstance(answer, Refusal)
    assert "after the deadline, in the queue" in answer.message
    assert (dict(pending.counters.dropped), pending.counters.failed) == ({"expired": 1}, 0)


def test_outputs_that_cannot_be_read_are_refused(pending: PendingRequests) -> None:
    class Broken(SeenOutputs):
        def __init__(self) -> None: ...

        def seen(self, outputs: Arrays) -> Arrays | Refusal:
            raise RuntimeError(f"{len(outputs)} outputs")

    pending.outputs = Broken()
    asked, other = Asked(), Asked()
    alone, second = asked.request(), other.request()
    left: list[str] = []
    for request in (alone, second):
        assert pending.admit(request, limit=2)
    pending.answer_one(alone, {}, None, lambda: left.append("one"))
    pending.answer_all([(second, {})], lambda: left.append("all"))
    wait_for(lambda: sorted(left) == ["all", "one"])
    refusal = Refusal("INTERNAL", "model 'm': the outputs cannot be read")
    assert (asked.answers, other.answers) == ([refusal], [refusal])
    assert (pending.counters.failed, pending.counters.internal_errors) == (2, 2)
    pending.stop()


def test_an_answer_that_cannot_be_sent_is_counted(pending: PendingRequests) -> None:
    def fail(_result: Result) -> None:
        raise RuntimeError("no shared memory is free")

    request = replace(Asked().request(), reply=fail)
    assert pending.admit(request, limit=1)
    pending.refuse(request.number, LATE)
    wait_for(lambda: pending.counters.internal_errors == 1)
    pending.stop()


def test_numbers_of_a_front_that_died_are_not_given_again(tmp_path: Path) -> None:
    numbers: list[int] = []
    for _ in range(2):
        life = PendingRequests(
            "m", tmp_path, SystemClock(), FrontCounters(latency_bounds_s(100_000))
        )
        life.start()
        for _ in range(5):
            asked = Asked().request()
            assert life.admit(asked, limit=5)
            numbers.append(asked.number)
        life.stop()
    assert len(set(numbers)) == len(numbers)


def test_low_requests_leave_half_of_the_room_to_others(pending: PendingRequests) -> None:
    asked = Asked()
    for number in range(5):
        low = replace(asked.request(), low=True)
        assert pending.admit(low, limit=4) == (number < 2)
    assert pending.admit(asked.request(), limit=4)
    assert pending.counters.low.dropped[DropReason.QUEUE_FULL.text] == 3
    assert not pending.counters.dropped
    pending.stop()


def test_requests_of_an_entry_that_shares_are_counted_there_too(pending: PendingRequests) -> None:
    for number, (entry, low) in enumerate(
        (("former", False), ("canary", False), ("canary", True), ("", False))
    ):
        request = replace(Asked().request(), shared_by=entry, low=low)
        assert pending.admit(request, limit=20), number
        pending.refuse(request.number, LATE)
    counters = pending.counters
    assert (counters.offered, counters.failed) == (3, 3)
    assert (counters.low.offered, counters.low.failed) == (1, 1)
    assert {n: (c.offered, c.failed) for n, c in counters.shares.items()} == {
        "former": (1, 1),
        "canary": (1, 1),
    }
    values = front_values("m", counters, held=0)
    labels = (("model", "m"), ("entry", "canary"), ("outcome", "failed"))
    assert values["poolpipe_shared_requests_total", labels] == 1
    pending.stop()


def test_the_longest_timeout_is_announced() -> None:
    request = Request({}, 1, 0, MAX_TIMEOUT_US, print, bool, number=7)
    data = arrival_frame(request, Guard())
    arrival = unpack_arrival(data[HEADER_BYTES:])
    assert arrival.guard_us == MAX_TIMEOUT_US // 10
    assert arrival.deadline_us + arrival.guard_us == MAX_TIMEOUT_US
