"""Requests that are handed on: bounded, in time, and answered whatever happens."""

import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.fakes.clock import VirtualClock
from tests.triton_backend.serving.system import wait_for
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.liveness.limits import DEAD_BY_NOW_US
from triton_backend.serving.server.forwarding import AT_ONCE, Forwarding

NO_UTF8 = -2  # the request whose text cannot be read
LIMIT, SLO_US = 100, 50_000


class Given(NamedTuple):
    """A request of a client that allows so long, and may have given up."""

    name: int
    timeout_us: int = 0
    gave_up: bool = False

    def timeout(self) -> int:
        return self.timeout_us

    def is_cancelled(self) -> bool:
        return self.gave_up


class Held:
    """A model whose answers come when they are let go."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.asked: list[tuple[int, int]] = []
        self.answers: dict[int, Any] = {}
        self.let_go = threading.Event()
        self.forwarding = Forwarding("cut", LIMIT, SLO_US, self.clock, self._ask)

    def _ask(self, request: Given, waited_us: int) -> str:
        self.asked.append((request.name, waited_us))
        self.let_go.wait()
        if request.name == NO_UTF8:
            return b"caf\xe9".decode()
        if request.name < 0:
            message = "not to be asked"
            raise ValueError(message)
        return f"answer {request.name}"

    def take(self, request: Given) -> None:
        self.forwarding.take(request, lambda answer: self.answers.update({request.name: answer}))

    def fill(self) -> None:
        """Have every thread wait for an answer."""
        for number in range(1000, 1000 + AT_ONCE):
            self.take(Given(number))
        wait_for(lambda: len(self.asked) == AT_ONCE)


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held()
    made.forwarding.start()
    yield made
    made.let_go.set()
    made.forwarding.stop()


def statuses(answers: dict[int, Any]) -> dict[int, str]:
    return {name: a.status for name, a in answers.items() if isinstance(a, Refusal)}


def test_what_waits_when_its_model_is_unloaded_is_refused_and_what_was_asked_is_answered(
    held: Held,
) -> None:
    held.fill()
    for number in range(LIMIT):
        held.take(Given(number))
    stopping = threading.Thread(target=held.forwarding.stop)
    stopping.start()
    wait_for(lambda: len(held.answers) == LIMIT)
    assert statuses(held.answers) == dict.fromkeys(range(LIMIT), "UNAVAILABLE")
    held.take(Given(LIMIT))  # Triton may have one more
    assert "is being unloaded" in held.answers[LIMIT].message
    held.let_go.set()
    stopping.join()
    asked = {n: answer for n, answer in held.answers.items() if n >= 1000}
    assert asked == {n: f"answer {n}" for n in range(1000, 1000 + AT_ONCE)}


def test_requests_of_a_model_that_died_keep_no_others_from_being_asked(held: Held) -> None:
    """Triton answers none of what a process had that was killed."""
    held.fill()
    held.take(Given(0, timeout_us=1_000_000_000))
    held.clock.sleep_until_us(SLO_US + DEAD_BY_NOW_US)
    held.take(Given(1))
    assert not held.answers
    held.clock.sleep_until_us(SLO_US + DEAD_BY_NOW_US + 1)
    held.take(Given(2, timeout_us=1_000_000_000))
    wait_for(lambda: len(held.asked) == AT_ONCE + 3)
    assert statuses(held.answers) == dict.fromkeys(range(1000, 1000 + AT_ONCE), "UNAVAILABLE")
    assert "no answer came" in held.answers[1000].message
    held.let_go.set()
    wait_for(lambda: len(held.answers) == AT_ONCE + 3)
    assert {n for n, answer in held.answers.items() if isinstance(answer, str)} == {0, 1, 2}


def test_a_model_is_unloaded_though_the_one_that_it_asked_died(held: Held) -> None:
    held.fill()
    stopping = threading.Thread(target=held.forwarding.stop)
    stopping.start()
    held.clock.sleep_until_us(SLO_US + DEAD_BY_NOW_US + 1)
    stopping.join()
    assert statuses(held.answers) == dict.fromkeys(range(1000, 1000 + AT_ONCE), "UNAVAILABLE")


def test_no_more_wait_than_the_limit(held: Held) -> None:
    held.fill()
    for number in range(LIMIT + 1):
        held.take(Given(number))
    assert statuses(held.answers) == {LIMIT: "UNAVAILABLE"}
    assert "100 requests are waiting" in held.answers[LIMIT].message


def test_what_nobody_waits_for_any_more_is_not_asked(held: Held) -> None:
    held.fill()
    held.take(Given(0, gave_up=True))
    held.take(Given(1))  # waits as long as the SLO
    held.take(Given(2, timeout_us=SLO_US // 2))
    held.take(Given(3, timeout_us=2 * SLO_US))
    held.take(Given(4, timeout_us=-1))  # the front says what is wrong with it
    held.clock.sleep_until_us(SLO_US)
    held.let_go.set()
    wait_for(lambda: len(held.answers) == AT_ONCE + 5)
    assert statuses(held.answers) == {0: "CANCELLED", 1: "UNAVAILABLE", 2: "UNAVAILABLE"}
    assert "waited 50.0 ms of the 25.0 ms allowed" in held.answers[2].message
    assert sorted(held.asked[AT_ONCE:]) == [(3, SLO_US), (4, SLO_US)]


def test_a_text_that_is_no_utf8_is_the_clients_fault(held: Held) -> None:
    held.let_go.set()
    held.take(Given(NO_UTF8))
    wait_for(lambda: NO_UTF8 in held.answers)
    assert held.answers == {
        NO_UTF8: Refusal(
            "INVALID_ARG", "model 'cut': its id, a parameter or a header is no UTF-8: byte 0xe9"
        )
    }


@pytest.mark.parametrize("broken", ["answer", "reply"])
def test_an_error_costs_one_request(
    held: Held, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    held.let_go.set()

    def failing(_: Any) -> None:
        message = "gone"
        raise OSError(message)

    replies: dict[str, Callable[[Any], None]] = {"reply": failing}
    taken: list[Any] = []
    held.forwarding.take(Given(-1), replies.get(broken, taken.append))
    held.take(Given(5))
    wait_for(lambda: held.answers == {5: "answer 5"})
    wait_for(lambda: "of model cut" in caplog.text)
    expected = ["INTERNAL"] * (broken == "answer")
    wait_for(lambda: [refusal.status for refusal in taken] == expected)
