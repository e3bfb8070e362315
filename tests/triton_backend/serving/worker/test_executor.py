"""Whose turn it is on a vGPU, with one thread that takes batches and another that runs them."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.triton_backend.serving.plans import plan, two_stage
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.shared_memory import Segment, remove_segments
from triton_backend.serving.transport.wire import (
    NONE,
    BatchBody,
    FrameError,
    Header,
    HopGrant,
    Kind,
)
from triton_backend.serving.worker.outbox import Errands
from triton_backend.serving.worker.queue import Jobs

PREFIX = "poolpipe-test-turns-"
FIRST = 0  # the vGPU of the first stage


class Turns:
    """The batches of a first stage's worker at an instant set by hand."""

    def __init__(self, folder: Path) -> None:
        settings = ServeSettings(
            system="s", instance="i", folder=folder, socket_folder=folder, python="", token=""
        )
        self.deployment = Deployment(settings, 1, plan(two_stage()))
        self.segment = Segment.create(f"{PREFIX}1", self.deployment.worker_layout(FIRST), 4)
        self.now_us = 0
        self.jobs = Jobs(self.deployment, FIRST, self.segment, lambda: self.now_us)

    def take(self, batch_id: int, start_us: int, available_us: int = 0) -> None:
        """A batch of one sample, reserved from `start_us`, whose tensors come at `available_us`."""
        hops = (HopGrant(FIRST, 0, 0, start_us, start_us + 10), HopGrant(1, 0, 0, 0, 0))
        size = self.segment.layout.payload_bytes(1)
        header = Header(Kind.BATCH, 0, 0, 0, batch_id, self.deployment.tag, size)
        self.jobs.take(header, BatchBody(0, 0, 1, 0, 0, 0, available_us, NONE, hops))

    def begin(self) -> int | None:
        """Number of the batch that begins."""
        job = self.jobs.begin()
        return None if job is None else job.batch_id

    def follow(self) -> int | None:
        """Number of the batch that follows."""
        job = self.jobs.follow()
        return None if job is None else job.batch_id


@pytest.fixture
def turns(tmp_path: Path) -> Iterator[Turns]:
    yield Turns(tmp_path)
    remove_segments(PREFIX)


def test_of_those_due_the_batch_reserved_first_begins(turns: Turns) -> None:
    turns.take(1, start_us=30)
    turns.take(2, start_us=20)
    turns.take(3, start_us=10, available_us=100)
    assert turns.begin() is None
    assert turns.jobs.next_due_us() == 20
    turns.now_us = 50
    assert turns.begin() == 2


def test_nothing_begins_beside_a_run_and_what_came_meanwhile_follows_it(turns: Turns) -> None:
    turns.take(1, start_us=0)
    assert turns.begin() == 1
    turns.take(2, start_us=5)
    turns.now_us = 10
    assert turns.begin() is None
    assert turns.jobs.next_due_us() is None  # it needs no look: it follows
    assert not turns.jobs.idle
    assert turns.follow() == 2
    assert turns.follow() is None
    assert turns.jobs.idle


def test_a_run_that_nothing_may_follow_ends_and_what_waits_begins_by_itself(turns: Turns) -> None:
    turns.take(1, start_us=0)
    turns.take(2, start_us=0)
    assert turns.begin() == 1
    turns.jobs.end()
    assert not turns.jobs.idle  # the other still waits
    assert turns.begin() == 2
    turns.jobs.end()
    assert turns.jobs.idle


def test_a_batch_that_becomes_due_after_a_run_is_looked_for(turns: Turns) -> None:
    turns.take(1, start_us=0)
    assert turns.begin() == 1
    turns.take(2, start_us=40)
    assert turns.jobs.next_due_us() == 40
    assert turns.follow() is None
    turns.now_us = 40
    assert turns.jobs.next_due_us() == 40  # due, and nothing runs that it could follow
    assert turns.begin() == 2


def test_a_batch_dropped_has_no_turn_and_more_than_slots_are_refused(turns: Turns) -> None:
    for number in range(4):
        turns.take(number, start_us=0)
    with pytest.raises(FrameError, match="more than 4 batches"):
        turns.take(9, start_us=0)
    turns.jobs.drop(0)
    assert turns.begin() == 1


def test_errands_run_once_and_in_order_whoever_runs_them() -> None:
    errands, done = Errands(), list[int]()
    threads = [threading.Thread(target=errands.run) for _ in range(4)]
    for number in range(1000):
        errands.leave(done.append, number)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == list(range(1000))
    assert not errands.waiting


def test_who_runs_errands_waits_for_the_one_another_thread_has_begun() -> None:
    errands, done = Errands(), list[str]()
    begun, release = threading.Event(), threading.Event()

    def send() -> None:
        begun.set()
        release.wait()
        done.append("sent")

    def run_then_write() -> None:
        errands.run()
        done.append("next batch written")

    errands.leave(send)
    polls = threading.Thread(target=errands.run_unless_begun)
    polls.start()
    begun.wait()
    runs = threading.Thread(target=run_then_write)
    runs.start()
    errands.leave(lambda: done.append("said later"))
    errands.run_unless_begun()  # returns at once: the other thread sees to it
    release.set()
    polls.join()
    runs.join()
    assert done == ["sent", "said later", "next batch written"]
