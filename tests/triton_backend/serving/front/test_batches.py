"""The slots of a front: no answer is written over, whatever becomes of a batch."""

import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.triton_backend.serving.small_plans import (
    BATCH,
    SLO_US,
    alone,
    model,
    plan,
    stage,
    tensor,
    two_stage,
)
from tests.triton_backend.serving.system import WAIT_SECONDS, deploy, wait_for
from triton_backend.contract.decisions import Hop
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.front.batches import Batch, FrontBatches
from triton_backend.serving.front.counters import FrontCounters, latency_bounds_s
from triton_backend.serving.front.replies import Refusal, Result
from triton_backend.serving.front.requests.pending import PendingRequests
from triton_backend.serving.front.requests.request import Request
from triton_backend.serving.liveness.limits import dead_after_us
from triton_backend.serving.transport.channel import Channels
from triton_backend.serving.transport.connection import CloseReason, Connection
from triton_backend.serving.transport.event_loop import EventLoop
from triton_backend.serving.transport.shared_memory import (
    SHARED_FOLDER,
    Arrays,
    Segment,
    remove_segments,
)
from triton_backend.serving.transport.wire import (
    HEADER_BYTES,
    NONE,
    AnswerBody,
    BatchBody,
    DispatchBody,
    FailureBody,
    FrameError,
    Header,
    Kind,
    parse_header,
    unpack_batch,
)

# Until when the answer of a batch that is given up at once may be written, and of an express one.
HELD_US = 1 + SLO_US + dead_after_us(5_000)
SLOW_US, PATIENT_US = 12_000_000, 30_000_000
HOPS, SLOTS = (Hop(0, 0, 0, 0, 1), Hop(1, 0, 0, 0, 1)), (0, 0)


class Nobody:
    """Hears nothing."""

    def on_frame(self, connection: Connection, header: Header, body: bytes) -> None: ...

    def on_close(self, connection: Connection, reason: CloseReason) -> None: ...

    def payload_target(
        self, connection: Connection, header: Header, body: bytes
    ) -> list[memoryview]:
        del connection, header, body
        return []


class FirstWorker:
    """The socket and the slots of vGPU 0."""

    def __init__(self, deployment: Deployment) -> None:
        self.segment = Segment.create(
            deployment.worker_segment(0), deployment.worker_layout(0), deployment.segment_slots(0)
        )
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(deployment.worker_address(0, same_host=True).removeprefix("unix:"))
        self._listener.listen()
        self._peer: socket.socket | None = None

    def batch(self) -> BatchBody:
        """The next BATCH."""
        if self._peer is None:
            self._peer, _ = self._listener.accept()
            self._peer.settimeout(WAIT_SECONDS)
        header = parse_header(self._peer.recv(HEADER_BYTES))
        return unpack_batch(self._peer.recv(header.body_bytes))

    def close(self) -> None:
        self._listener.close()
        if self._peer is not None:
            self._peer.close()


class Front:
    """Batches of a front whose scheduler and workers are played by the test."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        settings, clock = deployment.settings, SystemClock()
        settings.socket_folder.mkdir(mode=0o700, exist_ok=True)
        self.worker = FirstWorker(deployment)
        counters = FrontCounters(latency_bounds_s(SLO_US))
        self.pending = PendingRequests("pair", settings.folder / "logs", clock, counters)
        self.pending.start()
        self.loop = EventLoop(Nobody(), clock, b"key")
        self.reports: list[tuple[Kind, int]] = []
        self.answers: list[Result] = []
        self.batches = FrontBatches(
            "pair",
            Channels(self.loop, settings, None),
            self.pending,
            lambda kind, header, _: self.reports.append((kind, header.batch_id)),
            checksum_up_to_bytes=0,
        )
        self.batches.add(deployment)
        self.batches.use(deployment)
        (self.generation,) = self.batches._generations.values()

    def request(self, samples: int = 1, *, width: int = 16) -> Request:
        """A new request that waits; one of another width than the model's cannot be gathered."""
        tensors: Arrays = {
            "image": np.zeros((samples, 3, width), np.float32),
            "mask": np.zeros((samples, 4), np.uint8),
        }
        made = Request(
            tensors=tensors,
            samples=samples,
            arrival_us=0,
            deadline_us=SLO_US,
            reply=self.answers.append,
            is_cancelled=lambda: False,
        )
        assert self.pending.admit(made, limit=10_000)
        return made

    def header(self, kind: Kind, batch_id: int, payload_bytes: int = 0) -> Header:
        return Header(kind, 0, 0, 0, batch_id, self.deployment.tag, payload_bytes)

    def dispatch(
        self, batch_id: int, *requests: Request, now_us: int = 0, hops: tuple[Hop, ...] = HOPS
    ) -> None:
        numbers = tuple(request.number for request in requests or (self.request(),))
        body = DispatchBody(0, len(numbers), hops, SLOTS, numbers)
        self.batches.dispatch(self.header(Kind.DISPATCH, batch_id), body, now_us)

    def sent(
        self, batch_id: int, *requests: Request, now_us: int = 0, hops: tuple[Hop, ...] = HOPS
    ) -> int:
        """Dispatch a batch; the answer slot that its workers are told."""
        self.dispatch(batch_id, *requests, now_us=now_us, hops=hops)
        return self.worker.batch().answer_slot

    def answered(
        self, batch_id: int, slot: int, *, express: int = NONE, now_us: int = 0
    ) -> Batch | None:
        """A last worker answers a batch of one sample."""
        size = self.generation.answers.layout.payload_bytes(1)
        body = AnswerBody(slot, 1, 0, express)
        return self.batches.answered(self.header(Kind.ANSWER, batch_id, size), body, now_us)

    def served(self, batch_id: int) -> int:
        """A batch from its dispatch until its replies have left; the slot it had."""
        slot = self.sent(batch_id)
        batch = self.answered(batch_id, slot)
        assert batch is not None
        self.batches.replied(batch)
        self.batches.free_replied(0)
        return slot

    def close(self) -> None:
        self.loop.close()
        self.batches.close()
        self.worker.close()
        self.pending.stop()
        remove_segments(self.deployment.settings.segment_prefix)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return deploy(tmp_path, plan(alone(two_stage())), ServeOptions())


@pytest.fixture
def front(deployment: Deployment) -> Iterator[Front]:
    made = Front(deployment)
    yield made
    made.close()


# Slots of batches


def test_a_dispatch_read_an_slo_after_its_start_is_not_gathered(front: Front) -> None:
    """This process stood still: the slots that the dispatch names may be another batch's."""
    request = front.request()
    request.tensors["image"][...] = 1
    front.dispatch(1, request, now_us=SLO_US + 1)
    assert front.reports == [(Kind.BATCH_LOST, 1)]
    assert request.batch_id is None
    assert not front.worker.segment.first_slots(1).any()
    assert front.sent(2, request, now_us=SLO_US) == 0


def test_the_slot_freed_last_is_used_first(front: Front) -> None:
    assert {front.served(number) for number in range(5)} == {0}


def test_the_slot_of_an_aborted_batch_is_not_used_until_its_worker_has_answered(
    front: Front,
) -> None:
    request = front.request()
    slot = front.sent(1, request)
    front.batches.abort(1, now_us=0)
    assert request.batch_id is None
    again = front.sent(2, request)  # runs again, beside what the first worker may still write
    assert again != slot
    assert slot not in {front.served(number) for number in range(3, 9)}
    assert front.answered(1, slot) is None
    assert front.served(9) == slot
    batch = front.answered(2, again)
    assert batch is not None
    assert batch.requests == [request]


def test_the_slot_of_an_aborted_batch_is_used_when_no_worker_of_it_can_be_alive(
    front: Front,
) -> None:
    slot = front.sent(1)
    front.batches.abort(1, now_us=5)
    front.batches.look(HELD_US - 1)
    assert front.served(2) != slot
    front.batches.look(HELD_US)
    assert front.served(3) == slot
    assert front.answered(1, slot) is None  # much too late, and not wanted


def test_a_batch_that_nobody_reports_of_is_given_up_and_its_slot_held(front: Front) -> None:
    request = front.request()
    slot = front.sent(1, request)
    front.batches.look(HELD_US)
    assert request.batch_id == 1
    front.batches.look(HELD_US + 1)
    assert request.batch_id is None
    assert front.served(2) != slot
    front.batches.look(2 * HELD_US)
    assert front.served(3) == slot


@pytest.fixture
def slow_first(tmp_path: Path) -> Iterator[Front]:
    """Of a first stage that takes many times as long as the second one, and an SLO beyond that."""
    first = stage(
        (0, 5),
        "FAST",
        0,
        boundary=(tensor("middle", 8, 16),),
        latency_us_by_batch=tuple(SLOW_US + us for us in range(BATCH)),
    )
    inputs = (tensor("image", 3, 16), tensor("mask", 4, dtype="UINT8"))
    slow = model(
        "pair",
        (first, stage((5, 10), "SLOW", 1, vgpus=2)),
        slo_us=PATIENT_US,
        inputs=inputs,
        outputs=(tensor("scores", 10),),
    )
    made = Front(deploy(tmp_path, plan(alone(slow)), ServeOptions()))
    yield made
    made.close()


def test_a_batch_that_runs_as_planned_is_answered_however_slow_its_first_stage_is(
    slow_first: Front,
) -> None:
    request = slow_first.request()
    hops = (Hop(0, 0, 0, 0, SLOW_US), Hop(1, SLOW_US, SLOW_US, SLOW_US, SLOW_US + 1))
    slot = slow_first.sent(1, request, hops=hops)
    slow_first.batches.look(SLOW_US)
    assert request.batch_id == 1
    batch = slow_first.answered(1, slot, now_us=SLOW_US + 1)
    assert batch is not None
    assert batch.requests == [request]


def test_a_slot_is_held_while_a_worker_that_is_late_may_still_write_it(slow_first: Front) -> None:
    """It begins an SLO late at most, and takes ten times its latency before it is killed."""
    hops = (Hop(0, 0, 0, 0, SLOW_US), Hop(1, SLOW_US, SLOW_US, SLOW_US, SLOW_US + 1))
    slot = slow_first.sent(1, hops=hops)
    slow_first.batches.abort(1, now_us=0)
    until_us = SLOW_US + 1 + PATIENT_US + dead_after_us(SLOW_US + BATCH - 1)
    slow_first.batches.look(until_us - 1)
    assert slow_first.served(2) != slot
    slow_first.batches.look(until_us)
    assert slow_first.served(3) == slot


def test_a_batch_that_failed_gives_its_slot_back_at_once(front: Front) -> None:
    request = front.request()
    slot = front.sent(1, request)
    failed = front.batches.failed(
        front.header(Kind.BATCH_FAILED, 1), FailureBody("broken", NONE, NONE), 0
    )
    assert failed is not None
    assert failed.requests == [request]
    assert front.served(2) == slot


def test_slots_that_are_held_keep_no_batch_waiting(front: Front) -> None:
    usual = front.deployment.front_slots(0)
    held = [front.sent(number) for number in range(usual)]
    for number in range(usual):
        front.batches.abort(number, now_us=0)
    more = [front.sent(number) for number in range(usual, 2 * usual)]
    assert len({*held, *more, *front.deployment.express_slots(0)}) == 3 * usual


def test_a_batch_without_a_slot_goes_out_when_one_is_free(front: Front) -> None:
    most = 2 * front.deployment.front_slots(0)
    slots = [front.sent(number) for number in range(most)]
    front.dispatch(most)
    front.dispatch(most + 1)
    front.batches.abort(most, now_us=0)  # waits no longer
    batch = front.answered(7, slots[7])
    assert batch is not None
    assert front.batches.replied(batch)
    front.batches.free_replied(0)
    assert front.worker.batch().answer_slot == slots[7]
    assert front.batches.get(front.header(Kind.ANSWER, most + 1), AnswerBody(0, 1, 0)) is not None


def test_an_answer_that_does_not_fit_its_batch_is_refused(front: Front) -> None:
    slot = front.sent(1)
    with pytest.raises(FrameError, match="does not fit"):
        front.answered(1, slot + 1)
    with pytest.raises(FrameError, match="not known here"):
        front.batches.dispatch(
            Header(Kind.DISPATCH, 0, 0, 0, 9, 123, 0), DispatchBody(0, 1, HOPS, SLOTS, (1,)), 0
        )
    assert front.answered(2, slot) is None


def test_segments_of_a_plan_are_kept_while_a_worker_may_write(front: Front) -> None:
    path = SHARED_FOLDER / front.deployment.front_segment("pair")
    front.sent(1)
    front.batches.abort(1, now_us=0)
    front.batches.retire_before(2, now_us=0)
    front.batches.retire_before(2, now_us=HELD_US)
    assert path.exists()
    front.batches.look(HELD_US)
    front.batches.retire_before(1, now_us=HELD_US)
    assert path.exists()
    front.batches.retire_before(2, now_us=HELD_US)
    assert not path.exists()


def test_a_dispatch_decided_before_the_plan_changed_finds_its_slots(front: Front) -> None:
    path = SHARED_FOLDER / front.deployment.front_segment("pair")
    front.batches.retire_before(2, now_us=0)
    front.batches.retire_before(2, now_us=front.generation.patience_us)
    assert path.exists()
    front.sent(1)


# Inputs that cannot be gathered


def test_a_batch_whose_requests_are_all_answered_is_reported(front: Front) -> None:
    request = front.request()
    front.pending.refuse(request.number, Refusal("UNAVAILABLE", "late"))
    front.dispatch(1, request)
    assert front.reports == [(Kind.BATCH_FAILED, 1)]


def test_a_batch_whose_worker_is_gone_is_reported_as_lost(front: Front) -> None:
    request = front.request()
    front.worker.close()
    front.dispatch(1, request)
    assert front.reports == [(Kind.BATCH_LOST, 1)]
    assert front.pending.get(request.number) is request  # it runs again


def test_a_request_that_cannot_be_copied_is_refused_with_its_batch_and_harms_no_other(
    front: Front,
) -> None:
    front.dispatch(1, front.request(width=17))
    assert front.reports == [(Kind.BATCH_FAILED, 1)]
    wait_for(lambda: len(front.answers) == 1)
    (answer,) = front.answers
    assert isinstance(answer, Refusal)
    assert answer.status == "INTERNAL"
    assert front.served(2) == 0


# Express slots


def write(front: Front, samples: int = 1) -> tuple[Request, int | None]:
    """A new request in an express slot, if it got one."""
    request = front.request(samples)
    ticket = front.batches.write_express(request)
    return request, None if ticket is None else ticket.slot


def fill(front: Front) -> dict[int, Request]:
    """All express slots, taken."""
    made: dict[int, Request] = {}
    for _ in front.deployment.express_slots(0):
        request, slot = write(front)
        assert slot is not None
        made[slot] = request
    return made


def test_a_request_without_a_free_express_slot_goes_without(front: Front) -> None:
    taken = fill(front)
    assert set(taken) == set(front.deployment.express_slots(0))
    assert write(front)[1] is None
    slot, request = taken.popitem()
    batch = front.answered(9, slot, express=request.number)
    assert batch is not None
    assert request.batch_id == 9
    assert write(front)[1] is None  # its answer is on its way to the client
    front.batches.replied(batch)
    front.batches.free_replied(0)
    assert write(front)[1] == slot


def test_only_the_request_in_a_slot_is_answered_from_it(front: Front) -> None:
    request, slot = write(front)
    assert slot is not None
    assert front.answered(9, slot, express=request.number + 1) is None
    assert front.answered(9, slot + 1, express=request.number) is None
    batch = front.answered(9, slot, express=request.number)
    assert batch is not None
    assert batch.requests == [request]


def test_an_express_slot_is_held_when_its_request_was_answered_in_another_way(
    front: Front,
) -> None:
    taken = fill(front)
    front.batches.look(0)
    slot, request = next(iter(taken.items()))
    front.pending.refuse(request.number, Refusal("UNAVAILABLE", "late"))
    front.batches.look(10)
    front.batches.look(HELD_US - 2)
    assert write(front)[1] is None
    front.batches.look(HELD_US - 1)
    assert write(front)[1] == slot


def test_a_late_express_answer_ends_the_hold(front: Front) -> None:
    taken = fill(front)
    slot, request = next(iter(taken.items()))
    front.pending.refuse(request.number, Refusal("UNAVAILABLE", "late"))
    front.batches.look(10)
    assert front.answered(9, slot, express=request.number) is None
    again, same = write(front)
    assert same == slot
    front.batches.look(10 + HELD_US)
    assert front.answered(10, slot, express=again.number) is not None


def test_a_failure_of_an_express_run_that_was_aborted_is_nobodys(front: Front) -> None:
    request, slot = write(front)
    assert slot is not None
    front.batches.abort(9, now_us=0)
    message = FailureBody("gone", request.number, slot)
    assert front.batches.failed(front.header(Kind.BATCH_FAILED, 9), message, 0) is None
    failed = front.batches.failed(front.header(Kind.BATCH_FAILED, 10), message, 0)
    assert failed is not None
    assert failed.requests == [request]


def test_more_samples_than_the_plan_runs_at_once_go_without_an_express_slot(front: Front) -> None:
    assert write(front, samples=2)[1] is None
    assert len(fill(front)) == len(front.deployment.express_slots(0))
