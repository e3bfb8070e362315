"""A worker's two threads, and what they have to send."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.triton_backend.serving.small_plans import BATCH, plan, two_stage
from tests.triton_backend.serving.system import LocalSystem, wait_for
from triton_backend.contract.errors import InvariantError
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.transport.shared_memory import Arrays
from triton_backend.serving.worker import executor
from triton_backend.serving.worker.executor import Outbox

PATIENT_US = 2_000_000
FIRST = 1000  # the worker of the first stage in generation 1


def test_the_outbox_sends_once_and_in_order_whoever_flushes_it() -> None:
    outbox, done = Outbox(), list[int]()
    threads = [threading.Thread(target=outbox.flush) for _ in range(4)]
    for number in range(1000):
        outbox.enqueue(done.append, number)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == list(range(1000))
    assert not outbox.waiting


def test_who_flushes_the_outbox_waits_for_what_another_thread_has_begun() -> None:
    outbox, done = Outbox(), list[str]()
    begun, release = threading.Event(), threading.Event()

    def send() -> None:
        begun.set()
        release.wait()
        done.append("sent")

    def flush_then_write() -> None:
        outbox.flush()
        done.append("next batch written")

    outbox.enqueue(send)
    polls = threading.Thread(target=outbox.flush_unless_begun)
    polls.start()
    begun.wait()
    runs = threading.Thread(target=flush_then_write)
    runs.start()
    outbox.enqueue(lambda: done.append("said later"))
    outbox.flush_unless_begun()  # returns at once: the other thread sees to it
    release.set()
    polls.join()
    runs.join()
    assert done == ["sent", "said later", "next batch written"]


# Failures of ours


@pytest.fixture
def system(tmp_path: Path) -> Iterator[LocalSystem]:
    made = LocalSystem(tmp_path / "serve", plan(two_stage()))
    yield made
    made.stop()


def picture() -> Arrays:
    """A whole batch, which waits for no other request."""
    return {"image": np.ones((BATCH, 3, 16), np.float32), "mask": np.ones((BATCH, 4), np.uint8)}


def failing(times: int, then: Callable[..., object]) -> Callable[..., object]:
    """Raise so many times, then do as before."""
    left = iter(range(times))

    def call(*arguments: object, **named: object) -> object:
        if next(left, None) is not None:
            message = "ours"
            raise KeyError(message)
        return then(*arguments, **named)

    return call


def is_answered(system: LocalSystem) -> bool:
    return not isinstance(system.ask("pair", picture(), PATIENT_US)(), Refusal)


@pytest.mark.parametrize(("part", "method"), [("_loop", "poll"), ("_scheduler", "report")])
def test_a_round_that_fails_is_logged_and_the_worker_goes_on(
    system: LocalSystem,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    part: str,
    method: str,
) -> None:
    worker, thread = system.workers[FIRST]
    target = getattr(worker, part)
    monkeypatch.setattr(target, method, failing(3, getattr(target, method)))
    worker._loop.wake()
    assert is_answered(system)
    assert thread.is_alive()
    assert caplog.text.count("KeyError: 'ours'") == 3


def test_a_batch_whose_receiver_cannot_be_asked_fails_and_the_next_one_runs(
    system: LocalSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, _ = system.workers[FIRST]
    outputs = worker._outputs
    monkeypatch.setattr(outputs, "target_of", failing(1, outputs.target_of))
    answer = system.ask("pair", picture(), PATIENT_US)()
    assert isinstance(answer, Refusal)
    assert answer.status == "INTERNAL"
    assert "stage 0 failed: KeyError: 'ours'" in answer.message
    assert is_answered(system)


def test_a_worker_whose_rounds_all_fail_ends_with_the_reason(
    system: LocalSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, thread = system.workers.pop(FIRST)
    ends: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(executor, "MOST_FAILURES", 3)
    monkeypatch.setattr(threading, "excepthook", ends.append)
    monkeypatch.setattr(worker._loop, "poll", failing(10**6, worker._loop.poll))
    worker._loop.wake()
    thread.join()
    (end,) = ends
    assert isinstance(end.exc_value, InvariantError)
    assert isinstance(end.exc_value.__cause__, KeyError)
    wait_for(lambda: system.status()["workers"]["up"] == 2)
