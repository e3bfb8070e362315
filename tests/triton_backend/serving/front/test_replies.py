"""Replies to requests that are not served, and those that cannot be sent."""

from collections.abc import Callable

import pytest

from triton_backend.contract.decisions import DropReason
from triton_backend.serving.front.replies import Refusal, Reply, ReplyThreads, Result
from triton_backend.serving.front.requests.refusals import dropped
from triton_backend.serving.front.requests.request import Request
from triton_backend.serving.transport.wire import DropBody

NUMBERS = "deadline 50.0 ms after arrival, best possible finish 53.1 ms, queue position 8"


def asking(deadline_us: int) -> Request:
    """A request of two samples."""
    return Request(
        tensors={},
        samples=2,
        arrival_us=1_000,
        deadline_us=deadline_us,
        reply=lambda _: None,
        is_cancelled=lambda: False,
    )


@pytest.mark.parametrize(
    ("reason", "status", "message"),
    [
        (DropReason.OVERLOAD, "UNAVAILABLE", f"model 'm' is overloaded: {NUMBERS}"),
        (
            DropReason.DEADLINE,
            "UNAVAILABLE",
            f"model 'm': the deadline cannot be met: {NUMBERS}",
        ),
        (DropReason.WORKER_LOST, "UNAVAILABLE", f"model 'm': its worker died: {NUMBERS}"),
        (
            DropReason.DEADLY,
            "INTERNAL",
            "model 'm': two workers died while they ran the request",
        ),
        (DropReason.CANCELLED, "CANCELLED", "model 'm': the client cancelled the request"),
        (DropReason.MODEL_REMOVED, "UNAVAILABLE", "model 'm' is not in the plan being served"),
        (
            DropReason.TOO_LARGE,
            "INVALID_ARG",
            "model 'm': 2 samples in one request, more than any batch planned",
        ),
    ],
)
def test_a_dropped_request_says_why_with_its_numbers(
    reason: DropReason, status: str, message: str
) -> None:
    body = DropBody(
        request=1, reason=reason, deadline_us=51_000, best_finish_us=54_100, queue_position=8
    )
    assert dropped("m", asking(51_000), body) == Refusal(status, message)


def test_time_kept_back_is_named_where_the_finish_alone_would_be_in_time() -> None:
    body = DropBody(
        request=1,
        reason=DropReason.DEADLINE,
        deadline_us=91_000,
        best_finish_us=95_000,
        queue_position=0,
    )
    assert dropped("m", asking(101_000), body).message == (
        "model 'm': the deadline cannot be met: deadline 100.0 ms after arrival, 10.0 ms of it kept"
        " back for delays, best possible finish 94.0 ms, queue position 0"
    )


def test_time_kept_back_for_modules_that_follow_is_named_too() -> None:
    body = DropBody(
        request=1,
        reason=DropReason.DEADLINE,
        deadline_us=381_000,
        best_finish_us=399_400,
        queue_position=2,
        module=1,
    )
    assert dropped("app", asking(401_000), body, "cars").message == (
        "application 'app', module 'cars': the deadline cannot be met: deadline 400.0 ms after"
        " arrival, 20.0 ms of it kept back for delays and modules that follow, best possible finish"
        " 398.4 ms, queue position 2"
    )


@pytest.mark.parametrize("breaks_when", ["made", "sent"])
def test_an_answer_that_cannot_be_sent_is_refused_once_and_counted(breaks_when: str) -> None:
    answers: list[Result] = []
    failures: list[str] = []

    def respond(result: Result) -> Callable[[], object]:
        if isinstance(result, Refusal):
            return lambda: answers.append(result)
        if breaks_when == "made":
            raise RuntimeError("no shared memory is free")
        return broken

    def broken() -> None:
        raise RuntimeError("no shared memory is free")

    replies = ReplyThreads("m", lambda: failures.append("m"))
    replies.send(Reply(respond, {}, lambda: failures.append("left its slot")))
    assert answers == [Refusal("INTERNAL", "model 'm': the answer cannot be sent")]
    assert failures == ["m", "left its slot"]


def test_a_refusal_that_cannot_be_sent_either_ends_no_thread() -> None:
    failures: list[str] = []

    def respond(_result: Result) -> None:
        raise RuntimeError("its client is gone")

    replies = ReplyThreads("m", lambda: failures.append("m"))
    replies.send(Reply(respond, {}, lambda: failures.append("left its slot")))
    assert failures == ["m", "left its slot"]
