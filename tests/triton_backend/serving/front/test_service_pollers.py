"""The threads of a front that poll in turn: a reply that takes long keeps no other waiting."""

import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.triton_backend.serving.small_plans import BATCH, plan, two_stage
from tests.triton_backend.serving.system import Answer, LocalSystem, wait_for
from tests.triton_backend.serving.test_system import PATIENT_US, picture
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.front.requests.request import Request
from triton_backend.serving.front.service import POLLERS

pytestmark = pytest.mark.slow


def test_a_request_that_cannot_be_announced_is_answered_and_leaves_nothing(tmp_path: Path) -> None:
    system = LocalSystem(tmp_path / "serve", plan(two_stage()), ServeOptions(emulate_links=False))
    front = system.fronts["pair"]
    answer = system.ask("pair", picture(1), 2**64 - 1)()
    assert isinstance(answer, Refusal)
    assert answer.status == "INTERNAL"
    assert front.unanswered == 0
    assert not isinstance(system.ask("pair", picture(1), PATIENT_US)(), Refusal)
    system.stop()


def submit(system: LocalSystem, reply: Callable[[Answer], None]) -> None:
    """A request that waits for no others to fill its batch."""
    now_us = system.clock.now_us()
    request = Request(
        tensors=picture(BATCH),
        samples=BATCH,
        arrival_us=now_us,
        deadline_us=now_us + PATIENT_US,
        reply=reply,
        is_cancelled=lambda: False,
    )
    system.fronts["pair"].submit(request)


def front_threads_that_poll() -> list[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return [
        name
        for thread, frame in sys._current_frames().items()
        if (name := names.get(thread, "")).startswith("front-")
        and any(at.name == "poll" for at in traceback.extract_stack(frame))
    ]


def test_the_thread_that_answers_the_only_request_polls_on(tmp_path: Path) -> None:
    system = LocalSystem(tmp_path / "serve", plan(two_stage()), ServeOptions(emulate_links=False))
    answering: list[str] = []
    go_on = threading.Event()

    def reply(_answer: Answer) -> None:
        answering.append(threading.current_thread().name)
        go_on.wait()

    submit(system, reply)
    wait_for(lambda: bool(answering))
    go_on.set()
    wait_for(lambda: bool(front_threads_that_poll()))
    assert front_threads_that_poll() == answering
    system.stop()


def test_replies_that_block_keep_no_other_request_waiting(tmp_path: Path) -> None:
    system = LocalSystem(tmp_path / "serve", plan(two_stage()), ServeOptions(emulate_links=False))
    begun: list[Answer] = []
    go_on = threading.Event()

    def reply(answer: Answer) -> None:
        begun.append(answer)
        go_on.wait()

    for number in range(1, POLLERS + 2):
        submit(system, reply)
        wait_for(lambda number=number: len(begun) == number)
    # More replies block than there are threads that poll, and still one polls.
    assert not isinstance(system.ask("pair", picture(BATCH), PATIENT_US)(), Refusal)
    assert not any(isinstance(answer, Refusal) for answer in begun)
    go_on.set()
    system.stop()
