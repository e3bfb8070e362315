"""After the warm-up nothing is left to compile."""

import os
from typing import Any

import pytest

from tests.fakes.plans import two_stages
from triton_backend.contract.decisions import Dispatch
from triton_backend.contract.events import (
    Arrival,
    BatchLost,
    Cancel,
    Event,
    LinkPaceChanged,
    PaceChanged,
    Pause,
    Resume,
    StageDone,
    Timer,
    TransferDone,
    WorkerBack,
    WorkerLost,
)
from triton_backend.scheduler.kernel_api import handle_event
from triton_backend.scheduler.scheduler import Scheduler
from triton_backend.serving.gateway.warm_up import warm_up

DONE = {"now_us": 3, "batch_id": 0, "start_us": 2, "end_us": 3}
LIFE: list[Event] = [
    WorkerLost(now_us=0, vgpu=5),
    WorkerBack(now_us=0, vgpu=5),
    *[Arrival(now_us=1, request_id=n, model=0, deadline_us=100_000) for n in range(9)],
    Cancel(now_us=2, request_id=8),
    StageDone(stage=0, **DONE),
    TransferDone(stage=1, **DONE),
    StageDone(stage=1, **DONE),
    BatchLost(now_us=4, batch_id=1),
    WorkerLost(now_us=4, vgpu=0),
    WorkerLost(now_us=4, vgpu=1),
    PaceChanged(now_us=5, model=0, pipeline=0, stage=0, percent=120),
    LinkPaceChanged(now_us=5, node=0, uplink_percent=200, downlink_percent=100),
    Timer(now_us=6),
    Pause(now_us=7),
    Resume(now_us=8),
    Timer(now_us=300_000),
]


@pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="kernels run as plain Python"
)
def test_no_event_compiles_anything_after_the_warm_up() -> None:
    warm_up(two_stages(), policy="reservation", nic="shared")
    kernel: Any = handle_event
    compiled = len(kernel.signatures)
    scheduler = Scheduler(two_stages(), policy="reservation-ahead", nic="isolated")
    decided = [decision for event in LIFE for decision in scheduler.handle(event)]
    assert any(isinstance(decision, Dispatch) for decision in decided)
    assert len(kernel.signatures) == compiled == 1
