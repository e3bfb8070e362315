from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.triton_backend.serving import small_plans
from tests.triton_backend.serving.served_applications import (
    application,
    module,
    one_stage,
    with_applications,
)
from tests.triton_backend.serving.system import deploy
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.front.counters import FrontCounters, latency_bounds_s
from triton_backend.serving.front.jobs import FrontJobs
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.front.requests.pending import PendingRequests
from triton_backend.serving.front.requests.request import Request
from triton_backend.serving.transport.event_loop import EventLoop
from triton_backend.serving.transport.fetching import Fetches
from triton_backend.serving.transport.retained import RetainedSegments
from triton_backend.serving.transport.shared_memory import Arrays, remove_segments
from triton_backend.serving.transport.wire import NONE, FrameError, JobDoneBody, RowSlice

PIECE = RowSlice(0, 2, 0, NONE, 1, 0, generation=1, vgpu=1, slot=3, row=1)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    chain = application("chain", module("a"), module("b", "a"))
    made = deploy(
        tmp_path, with_applications(small_plans.plan(one_stage("m_a"), one_stage("m_b")), chain)
    )
    yield made
    remove_segments(made.settings.segment_prefix)


@pytest.fixture
def pending(tmp_path: Path) -> PendingRequests:
    counters = FrontCounters(latency_bounds_s(1_000_000))
    return PendingRequests("chain", tmp_path / "logs", SystemClock(), counters)


@pytest.fixture
def jobs(deployment: Deployment, pending: PendingRequests) -> FrontJobs:
    loop = EventLoop(cast("Any", None), SystemClock(), b"")
    made = FrontJobs("chain", deployment.settings, pending, Fetches(loop))
    made.add(deployment)
    made.use(deployment)
    return made


def taken(pending: PendingRequests) -> Request:
    request = Request(
        tensors={"input": np.full((2, 4096), 7, np.uint8)},
        samples=2,
        arrival_us=0,
        deadline_us=10**12,
        reply=lambda _: None,
        is_cancelled=lambda: False,
    )
    assert pending.admit(request, 10**6)
    return request


def test_a_request_keeps_its_slot_until_it_has_left(
    deployment: Deployment, pending: PendingRequests, jobs: FrontJobs
) -> None:
    first = taken(pending)
    ticket = jobs.write(first)
    assert ticket is not None
    assert jobs.write(first) == ticket  # announced again
    assert jobs.bytes_in == 2 * 4096
    slots = deployment.request_slots(deployment.served["chain"])
    others = [jobs.write(taken(pending)) for _ in range(slots - 1)]
    assert None not in others
    last = taken(pending)
    assert jobs.write(last) is None
    pending.refuse(first.number, Refusal("UNAVAILABLE", "it took too long"))
    jobs.look(deployment.generation, 0)
    again = jobs.write(last)
    assert again is not None
    assert again.slot == ticket.slot
    jobs.close()


def test_an_answer_is_read_where_it_lies_and_not_where_rows_are_missing(
    deployment: Deployment, jobs: FrontJobs
) -> None:
    retained = RetainedSegments(deployment.settings)
    retained.make(deployment, 1)
    slots = retained.of_model(deployment, 1, "m_b")
    slots.views(3, 4)["output"][...] = np.arange(4, dtype=np.uint8)[:, None]
    late = PIECE._replace(at=2, rows=1, row=0)
    for pieces, rows in (((PIECE,), [1, 2]), ((late, PIECE), [1, 2, 0]), ((), [])):
        answers: list[Arrays | None] = []
        jobs.answer(deployment.tag, JobDoneBody(1, pieces), answers.append)
        (answer,) = answers
        assert answer is not None
        assert answer["b.output"][:, 0].tolist() == rows
    assert jobs.bytes_out == 5 * 4096
    for wrong in (PIECE._replace(at=1), PIECE._replace(slot=10**6), PIECE._replace(row=3)):
        with pytest.raises(FrameError, match=r"are missing|is nowhere|ends beyond"):
            jobs.answer(deployment.tag, JobDoneBody(1, (wrong,)), lambda _: None)
    with pytest.raises(FrameError, match="is not known here"):
        jobs.answer(7, JobDoneBody(1, (PIECE,)), lambda _: None)
    jobs.close()
