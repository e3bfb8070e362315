"""Failures in a worker: reported in a frame that fits, and retried."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import LocalSystem, deploy, wait_for
from tests.triton_backend.serving.worker.test_executor import picture
from triton_backend.contract.decisions import Hop
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.repository import WORKERS_NAME
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.transport.shared_memory import remove_segments
from triton_backend.serving.transport.wire import (
    HEADER_BYTES,
    MAX_REASON,
    NONE,
    RETAINED,
    BatchBody,
    FrameError,
    Header,
    Kind,
    pack_batch,
    pack_rows,
    parse_header,
    unpack_failure,
)
from triton_backend.serving.worker import process
from triton_backend.serving.worker.output import OutputSender
from triton_backend.serving.worker.queue import QueuedBatch
from triton_backend.serving.worker.stage import LoadedStages, open_runtimes

PATIENT_US = 20_000_000  # a busy machine stops for seconds
TAG = 5


@pytest.fixture
def system(tmp_path: Path) -> Iterator[LocalSystem]:
    made = LocalSystem(tmp_path / "serve", plan(two_stage()))
    yield made
    made.stop()


def test_a_long_reason_reaches_the_client_short_and_without_paths(
    system: LocalSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("/srv/models/a b.onnx: no kernel, '/opt/x.so'" + 400_000 * " é")

    monkeypatch.setattr(system.workers[1000][0]._stages, "run", fail)
    answer = system.ask("pair", picture(), PATIENT_US)()
    assert isinstance(answer, Refusal)
    assert answer.status == "INTERNAL"
    assert "stage 0 failed: RuntimeError: " in answer.message
    assert "no kernel" in answer.message
    assert not [path for path in ("/srv", "/opt") if path in answer.message]
    assert len(answer.message) < 2 * MAX_REASON


@pytest.mark.parametrize("count", [-1, 2**31])
def test_counts_that_are_no_rows_fail_their_batch(count: int) -> None:
    with pytest.raises(FrameError, match=str(count)):
        pack_rows([[1, count]])
    sent: list[bytes] = []
    sender = OutputSender.__new__(OutputSender)
    model = SimpleNamespace(name="one")
    rows = SimpleNamespace(row_groups={model.name: ["rows"]}.get, choices={model.name: {}}.get)
    deployment = SimpleNamespace(plan=SimpleNamespace(models=[model]), applications=rows)
    sender._served = cast("Any", {TAG: (deployment, 0)})
    sender._scheduler = cast("Any", SimpleNamespace(send=sent.append))
    body = BatchBody(0, 0, 1, 0, 0, 0, 0, RETAINED, (Hop(0, 0, 0, 0, 1),), (0,))
    made = {"rows": np.array([count])}
    target = SimpleNamespace(channel=None, views={1: made}.get)
    sender.pass_on(QueuedBatch(0, 7, 0, TAG, 0, 0, body), cast("Any", target), 1)
    (data,) = sent
    assert parse_header(data).kind is Kind.BATCH_FAILED
    assert str(count) in unpack_failure(data[HEADER_BYTES:]).reason


@pytest.mark.parametrize("loads", [False, True])
def test_a_generation_that_could_not_be_served_is_tried_again(
    system: LocalSystem, monkeypatch: pytest.MonkeyPatch, *, loads: bool
) -> None:
    worker, _ = system.workers[1000]
    deploy(system.settings.folder, system.deployment.plan, generation=2)
    failed: list[int] = []

    def lacks(*_: object) -> bool:
        return loads

    def fail(*_: object) -> None:
        failed.append(1)
        raise InputError("shared memory", "is full")

    with monkeypatch.context() as broken:
        broken.setattr(worker._stages, "lacks", lacks)
        broken.setattr(process, "open_runtimes", fail)
        broken.setattr(worker, "_serve", fail)
        worker.adopt(2)
        wait_for(lambda: bool(failed) and 2 not in worker._adopting)
    worker.adopt(2)
    wait_for(lambda: [one.generation for one, _ in worker._served] == [1, 2])


def test_of_a_generation_that_is_served_half_nothing_is_left(
    system: LocalSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would hold its stages' memory although a rollout took it back.

    It is whole when tried again.
    """
    worker, _ = system.workers[1000]
    second = deploy(system.settings.folder, system.deployment.plan, generation=2)

    def full(*_: object) -> None:
        raise InputError("shared memory", "is full")

    def held() -> set[int]:
        parts = (worker._stages._stages, worker._queue._inputs)
        known = {place[0] for part in parts for place in part}
        return known | {*worker._queue._served, *worker._inputs._served, *worker._outputs._served}

    with monkeypatch.context() as broken:
        broken.setattr(worker._outputs._retained, "make", full)
        worker.adopt(2)
    assert second.tag != system.deployment.tag
    assert held() == {system.deployment.tag}
    worker.adopt(2)
    assert held() == {system.deployment.tag, second.tag}
    assert not worker._queue.is_over(second.tag)


class Closing:
    """A runtime that says whether it is closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


def test_what_a_load_may_use_is_kept_until_it_has_ended() -> None:
    runtime = Closing()
    one = cast("Any", SimpleNamespace(runtime=runtime))
    stages = LoadedStages([one], cast("Any", None), cast("Any", None))
    stages.begin_load()
    stages.forget(TAG)
    assert not runtime.closed
    stages.end_load([])
    stages.forget_unused()
    assert runtime.closed
    assert stages.loaded == ()


def test_tensors_under_way_when_their_batch_is_aborted_keep_its_slot(system: LocalSystem) -> None:
    """Those that come later are read to nowhere.

    What the sender has sent behind them is not lost.
    """
    worker, _ = system.workers[1000]
    deployment, connection = system.deployment, cast("Any", object())
    hops = (Hop(0, 0, 0, 0, 1), Hop(1, 0, 0, 0, 1))
    body = pack_batch(BatchBody(0, 0, 1, 0, 0, 0, 0, NONE, hops, (0, 0)))
    size = deployment.worker_layout(0).payload_bytes(1)
    header = Header(Kind.BATCH, 0, len(body), 0, 7, deployment.tag, size)

    def is_in_slot() -> bool:
        before = worker._segment.first_slots(1).copy()
        for piece in worker.payload_target(connection, header, body):
            piece[:] = bytes(len(piece)) if before.any() else b"1" * len(piece)
        return bool((worker._segment.first_slots(1) != before).any())

    assert is_in_slot()
    worker._queue.remove(header.batch_id, deployment.tag)
    assert worker._queue._to_let_go
    worker.on_frame(connection, header, body)
    assert not worker._queue._to_let_go
    assert worker._queue.idle
    assert not is_in_slot()


def test_a_generation_that_the_slots_have_no_room_for_costs_none_that_is_served(
    tmp_path: Path,
) -> None:
    """It is asked for again and again; the scheduler's connection and its batches stay."""

    def planned(largest: int) -> Plan:
        one = two_stage()
        (pipeline,) = one.model.pipelines
        first, last = pipeline.stages
        last = replace(last, latency_us_by_batch=last.latency_us_by_batch[:largest])
        of_size = replace(pipeline, batch=largest, stages=(first, last))
        return plan(one.replaced(pipelines=(of_size,)), plan_id=f"of-{largest}")

    served = deploy(tmp_path / "serve", planned(1), ServeOptions(emulate_links=False))
    served.settings.socket_folder.mkdir(mode=0o700)
    deploy(tmp_path / "serve", planned(4), generation=2)
    before, after = (served.settings.generation_folder(number) for number in (1, 2))
    shutil.copy(before / WORKERS_NAME, after)  # as if the first stage's worker went on
    clock = SystemClock()
    loaded = open_runtimes(served, 0, clock)
    worker = process.StageWorker(served, 0, loaded, process.health_row(served, 0), clock)
    for _ in range(2):
        worker.adopt(2)
        assert [one.generation for one, _ in worker._served] == [1]
        assert worker._adopting == {1}
    worker.stop()
    worker.run()
    remove_segments(served.settings.segment_prefix)
    shutil.rmtree(served.settings.socket_folder)
