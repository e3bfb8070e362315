"""Which batch runs next on a vGPU, with one thread that adds batches and another that runs them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.triton_backend.serving.shared.shared_plans import with_tail
from tests.triton_backend.serving.small_plans import plan, two_stage
from triton_backend.contract.decisions import Hop
from triton_backend.runtimes.stage_tensors import complete_tensors
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.shared_memory import Segment, remove_segments
from triton_backend.serving.transport.wire import (
    NONE,
    RETAINED,
    BatchBody,
    FrameError,
    Header,
    Kind,
    SharedBatchBody,
)
from triton_backend.serving.worker.queue import (
    ABORTED_KEPT,
    BatchQueue,
    QueuedBatch,
    QueuedSharedBatch,
)

PREFIX = "poolpipe-test-queue-"
FIRST = 0  # the vGPU of the first stage


def number_of(run: QueuedBatch | QueuedSharedBatch | None) -> int | None:
    """Of a batch or a shared batch."""
    return None if run is None else run[1]


class FirstStage:
    """The batches of a first stage's worker at an instant set by hand."""

    def __init__(self, folder: Path) -> None:
        settings = ServeSettings(
            system="s", instance="i", folder=folder, socket_folder=folder, python="", token=""
        )
        self.deployment = Deployment(settings, 1, plan(two_stage()))
        self.segment = Segment.create(f"{PREFIX}1", self.deployment.worker_layout(FIRST), 4)
        self.now_us = 0
        self.queue = BatchQueue(self.segment, lambda: self.now_us)
        self.queue.serve(self.deployment, FIRST)

    def add(self, batch_id: int, start_us: int, available_us: int = 0, express: int = NONE) -> None:
        """A batch of one sample, reserved from `start_us`, whose tensors come at `available_us`."""
        hops = (Hop(FIRST, 0, 0, start_us, start_us + 10), Hop(1, 0, 0, 0, 0))
        size = self.segment.layout.payload_bytes(1)
        header = Header(Kind.BATCH, 0, 0, 0, batch_id, self.deployment.tag, size)
        self.queue.add(header, BatchBody(0, 0, 1, 0, 0, 0, available_us, express, hops, (0, 0)))

    def begin(self) -> int | None:
        """Number of the batch that begins."""
        return number_of(self.queue.begin())

    def end_and_begin(self) -> int | None:
        """Number of the batch that follows."""
        return number_of(self.queue.end_and_begin())


@pytest.fixture
def first(tmp_path: Path) -> Iterator[FirstStage]:
    yield FirstStage(tmp_path)
    remove_segments(PREFIX)


def test_of_those_due_the_batch_reserved_first_begins(first: FirstStage) -> None:
    first.add(1, start_us=30)
    first.add(2, start_us=20)
    first.add(3, start_us=10, available_us=100)
    assert first.begin() is None
    assert first.queue.next_due_us() == 20
    first.now_us = 50
    assert first.begin() == 2


def test_what_waits_of_a_plan_that_is_over_never_runs(first: FirstStage) -> None:
    first.add(1, start_us=0)
    first.add(2, start_us=0)
    assert first.begin() == 1
    first.queue.forget(first.deployment.tag)
    assert first.queue.is_over(first.deployment.tag)
    assert first.end_and_begin() is None
    assert first.queue.idle
    with pytest.raises(FrameError, match="a batch of plan"):
        first.add(3, start_us=0)


def test_nothing_begins_beside_a_run_and_what_came_meanwhile_follows_it(first: FirstStage) -> None:
    first.add(1, start_us=0)
    assert first.begin() == 1
    first.add(2, start_us=5)
    first.now_us = 10
    assert first.begin() is None
    assert first.queue.next_due_us() is None  # it needs no look: it follows
    assert not first.queue.idle
    assert first.end_and_begin() == 2
    assert first.end_and_begin() is None
    assert first.queue.idle


def test_a_run_that_nothing_may_follow_ends_and_what_waits_begins_by_itself(
    first: FirstStage,
) -> None:
    first.add(1, start_us=0)
    first.add(2, start_us=0)
    assert first.begin() == 1
    first.queue.end()
    assert not first.queue.idle  # the other still waits
    assert first.begin() == 2
    first.queue.end()
    assert first.queue.idle


def test_a_batch_that_becomes_due_after_a_run_is_looked_for(first: FirstStage) -> None:
    first.add(1, start_us=0)
    assert first.begin() == 1
    first.add(2, start_us=40)
    assert first.queue.next_due_us() == 40
    assert first.end_and_begin() is None
    first.now_us = 40
    assert first.queue.next_due_us() == 40  # due, and nothing runs that it could follow
    assert first.begin() == 2


def test_what_only_a_scheduler_that_is_gone_would_read_is_forgotten(first: FirstStage) -> None:
    for number, express in enumerate((NONE, RETAINED, NONE, RETAINED)):
        first.add(number, start_us=0, express=express)
    assert first.begin() == 0
    first.queue.forget_retained()
    assert first.end_and_begin() == 2
    assert first.end_and_begin() is None
    assert first.queue.idle


def test_a_batch_removed_does_not_run_and_more_than_slots_are_refused(first: FirstStage) -> None:
    for number in range(4):
        first.add(number, start_us=0)
    with pytest.raises(FrameError, match="more than 4 batches"):
        first.add(9, start_us=0)
    first.queue.remove(0)
    assert first.begin() == 1


def test_a_batch_that_comes_after_its_abort_does_not_run(first: FirstStage) -> None:
    first.add(1, start_us=0)
    for number in (1, 2):
        first.queue.remove(number)
    for number in (1, 2):
        first.add(number, start_us=0)
    assert first.begin() is None
    assert [batch_id for batch_id, _ in first.queue.take_let_go()] == [1, 2]
    first.add(3, start_us=0)
    assert first.begin() == 3


def test_a_batch_that_runs_or_comes_in_is_let_go_of_when_that_is_over(first: FirstStage) -> None:
    first.add(1, start_us=0)
    first.queue.begin_receiving(2)
    assert first.begin() == 1
    for number in (1, 2):
        first.queue.remove(number)
    assert not first.queue.take_let_go()
    assert first.end_and_begin() is None
    assert [batch_id for batch_id, _ in first.queue.take_let_go()] == [1]
    first.queue.end_receiving(2)
    assert [batch_id for batch_id, _ in first.queue.take_let_go()] == [2]


def test_what_was_aborted_so_long_ago_that_it_is_forgotten_does_not_run(first: FirstStage) -> None:
    for number in range(ABORTED_KEPT + 1):
        first.queue.remove(10 + number)
    for number in (10, 11, 10 + ABORTED_KEPT):
        assert first.queue.is_aborted(number)
    assert not first.queue.is_aborted(11 + ABORTED_KEPT)


@pytest.mark.parametrize(("hosts", "available_us"), [({}, 70), ({"FAST": "10.0.0.2"}, 100)])
def test_tensors_from_another_host_are_here_when_their_frame_is(
    tmp_path: Path, hosts: dict[str, str], available_us: int
) -> None:
    """In shared memory they are when their sender says so; behind a frame, when it was read."""
    settings = ServeSettings(
        system="s",
        instance="i",
        folder=tmp_path,
        socket_folder=tmp_path,
        python="",
        token="",
        hosts=hosts,
    )
    deployment = Deployment(settings, 1, plan(two_stage()))
    segment = Segment.create(f"{PREFIX}2", deployment.worker_layout(1), 4)
    queue = BatchQueue(segment, lambda: 100)
    queue.serve(deployment, 1)
    hops = (Hop(FIRST, 0, 0, 0, 60), Hop(1, 0, 0, 0, 90))
    header = Header(Kind.BATCH, 1, 0, 0, 5, deployment.tag, segment.layout.payload_bytes(1))
    queue.add(header, BatchBody(0, 0, 1, 0, 0, 60, 70, NONE, hops, (0, 0)))
    batch = queue.begin()
    segment.remove()
    assert isinstance(batch, QueuedBatch)
    assert (batch.body.transfer_start_us, batch.body.available_us) == (60, available_us)


# Shared batches


class Boarding(FirstStage):
    """A stage that boards: batches of both entries of `cut`, at the tail's worker."""

    def __init__(self, folder: Path) -> None:
        settings = ServeSettings(
            system="s", instance="i", folder=folder, socket_folder=folder, python="", token=""
        )
        self.deployment = Deployment(
            settings, 1, complete_tensors(plan(with_tail(folder, boards=True)))
        )
        self.vgpu = len(self.deployment.vgpus) - 1
        self.segment = Segment.create(f"{PREFIX}3", self.deployment.worker_layout(self.vgpu), 9)
        self.now_us = 0
        self.queue = BatchQueue(self.segment, lambda: self.now_us)
        self.queue.serve(self.deployment, self.vgpu)

    def enter(self, batch_id: int) -> None:
        """A batch that begins here."""
        hops = (Hop(self.vgpu, 0, 0, 0, 90),)
        self._add(0, batch_id, BatchBody(0, 1, 1, 0, 0, 0, 0, NONE, hops, (batch_id,)))

    def come(self, batch_id: int, available_us: int = 0) -> None:
        """A batch from the worker of the stage before."""
        hops = (Hop(FIRST, 0, 0, 0, 60), Hop(self.vgpu, 0, 0, 70, 90))
        body = BatchBody(0, 0, 1, 0, 0, 60, available_us, NONE, hops, (0, batch_id))
        self._add(1, batch_id, body)

    def _add(self, stage: int, batch_id: int, body: BatchBody) -> None:
        size = self.segment.layout.payload_bytes(1)
        header = Header(Kind.BATCH, stage, 0, 0, batch_id, self.deployment.tag, size)
        self.queue.add(header, body)

    def leaves(self) -> tuple[int, list[int]] | None:
        """The shared batch that begins, and who is aboard."""
        shared_batch = self.queue.begin()
        if shared_batch is None:
            return None
        assert isinstance(shared_batch, QueuedSharedBatch)
        self.queue.end()
        assert shared_batch.samples == len(shared_batch.members)
        return shared_batch.shared_batch_id, [batch.batch_id for batch in shared_batch.members]


@pytest.fixture
def boarding(tmp_path: Path) -> Iterator[Boarding]:
    yield Boarding(tmp_path)
    remove_segments(PREFIX)


def test_a_shared_batch_leaves_when_its_start_has_come_and_all_are_there(
    boarding: Boarding,
) -> None:
    boarding.enter(1)
    assert boarding.leaves() is None  # its shared batch is not named yet
    boarding.queue.shared_batch(7, SharedBatchBody(70, 1_000, (2, 1)))
    assert boarding.queue.next_due_us() == 1_000
    boarding.come(2, available_us=80)
    assert boarding.queue.next_due_us() == 80
    boarding.now_us = 79
    assert (boarding.leaves(), boarding.queue.arrived()) == (None, [])
    boarding.now_us = 80
    assert [batch.batch_id for batch in boarding.queue.arrived()] == [2]
    assert boarding.queue.arrived() == []
    assert boarding.leaves() == (7, [2, 1])
    assert boarding.queue.idle


def test_what_is_said_last_of_a_shared_batch_counts_until_it_has_left(boarding: Boarding) -> None:
    for batch in (1, 2, 3):
        boarding.enter(batch)
    boarding.queue.shared_batch(7, SharedBatchBody(50, 1_000, (1, 2)))
    boarding.queue.shared_batch(7, SharedBatchBody(0, 1_000, (1, 3)))
    assert boarding.leaves() == (7, [1, 3])
    boarding.queue.shared_batch(7, SharedBatchBody(0, 1_000, (2,)))
    assert boarding.leaves() is None  # it has left
    boarding.queue.shared_batch(8, SharedBatchBody(0, 1_000, (2,)))
    boarding.queue.shared_batch(8, SharedBatchBody(0, 0, ()))
    assert boarding.leaves() is None
    boarding.queue.remove(2)
    assert boarding.queue.idle


def test_a_shared_batch_without_news_starts_with_its_present_members(
    boarding: Boarding,
) -> None:
    """Its scheduler has died, and so has the worker of a member."""
    boarding.enter(1)
    boarding.queue.shared_batch(7, SharedBatchBody(0, 1_000, (1, 2)))
    boarding.queue.shared_batch(8, SharedBatchBody(0, 900, (3,)))
    boarding.now_us = 999
    assert boarding.leaves() is None
    boarding.now_us = 1_000
    assert boarding.leaves() == (7, [1])
    boarding.come(3, available_us=0)  # its shared batch was over before
    boarding.now_us = 70 + 400_000
    assert boarding.leaves() is None
    assert not boarding.queue.idle
    boarding.now_us += 1
    assert boarding.leaves() is None
    assert boarding.queue.idle


def test_of_batches_and_shared_batches_the_one_reserved_first_runs(boarding: Boarding) -> None:
    for batch in (1, 2):
        boarding.enter(batch)
    boarding.queue.shared_batch(7, SharedBatchBody(40, 1_000, (1,)))
    boarding.queue.shared_batch(6, SharedBatchBody(50, 1_000, (2,)))
    boarding.now_us = 50
    assert (boarding.leaves(), boarding.leaves()) == ((7, [1]), (6, [2]))
