"""All events and decisions of the core, in files."""

import json
from pathlib import Path

from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.contract.decisions import (
    FIRST_TASK,
    Abort,
    Dispatch,
    Drop,
    DropReason,
    Hop,
    JobDone,
    JobDropped,
    ModuleSkipped,
    SetTimer,
    TaskReady,
)
from triton_backend.contract.events import (
    Arrival,
    Cancel,
    Emitted,
    JobArrival,
    JobCancel,
    LinkPaceChanged,
    PaceChanged,
    Pause,
    StageDone,
    Timer,
    WorkerLost,
)
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serving.gateway.event_log import EventLog, Gap, read_events, to_line

ITEMS = (
    Arrival(now_us=1, request_id=2, model=0, deadline_us=3, samples=4),
    Arrival(now_us=1, request_id=3, model=0, deadline_us=3, low=1),
    Cancel(now_us=1, request_id=2),
    StageDone(now_us=9, batch_id=1, stage=0, start_us=5, end_us=7),
    WorkerLost(now_us=9, vgpu=3),
    PaceChanged(now_us=9, model=0, pipeline=1, stage=2, percent=175),
    LinkPaceChanged(now_us=9, node=1, uplink_percent=400, downlink_percent=100),
    Timer(now_us=10),
    Pause(now_us=10),
    Dispatch(
        batch_id=1,
        model=0,
        pipeline=0,
        request_ids=(2, 5),
        samples=4,
        hops=(Hop(vgpu=0, transfer_start_us=1, transfer_end_us=1, start_us=2, end_us=3),),
    ),
    Drop(request_id=2, model=0, reason=DropReason.DEADLINE, deadline_us=3, queue_position=1),
    Drop(request_id=2, model=0, reason=DropReason.DEADLINE, deadline_us=3, best_finish_us=9),
    Abort(batch_id=1),
    SetTimer(at_us=77),
    JobArrival(now_us=1, job_id=3, application=0, deadline_us=9),
    Emitted(now_us=2, request_id=FIRST_TASK, rows=(0, 3)),
    JobCancel(now_us=3, job_id=3),
    JobCancel(now_us=3, job_id=3, reason=DropReason.FAILED),
    TaskReady(request_id=FIRST_TASK, job_id=3, module=1, first_row=0, rows=2, of_rows=5),
    ModuleSkipped(job_id=3, module=2),
    ModuleSkipped(job_id=3, module=2, reason=DropReason.DEADLINE, best_finish_us=9),
    JobDone(job_id=3),
    JobDropped(job_id=3, reason=DropReason.CANCELLED, deadline_us=9),
    JobDropped(job_id=3, reason=DropReason.DEADLINE, deadline_us=9, module=1, best_finish_us=10),
)


def test_every_event_and_decision_comes_back_from_its_line() -> None:
    lines = [to_line(item) for item in ITEMS]
    assert all(
        json.loads(line)["t"] == type(i).__name__ for line, i in zip(lines, ITEMS, strict=True)
    )
    assert tuple(read_events(lines)) == ITEMS


def test_a_drop_is_logged_with_the_text_of_its_reason() -> None:
    drop = Drop(request_id=2, model=0, reason=DropReason.WORKER_LOST, deadline_us=3)
    line = (
        '{"t":"Drop","request_id":2,"model":0,"reason":"worker_lost","deadline_us":3,'
        '"best_finish_us":null,"queue_position":0,"low":0}'
    )
    assert to_line(drop) == line
    assert tuple(read_events([line])) == (drop,)


def test_a_log_begins_with_its_plan_and_goes_on_when_its_disk_is_freed(tmp_path: Path) -> None:
    deployment = deploy(tmp_path / "serve", plan(two_stage()))
    events = tmp_path / "events"
    log = EventLog(events, SystemClock())
    events.rmdir()
    events.write_text("")  # where the folder should be: nothing can be written
    log.begin(deployment, 1)
    for item in ITEMS:
        log.write(item)
        log.flush()
    events.unlink()
    log.close()
    (path,) = events.iterdir()
    header, *items = read_events(path.read_text().splitlines())
    assert isinstance(header, dict)
    assert header["plan_id"] == deployment.plan.plan_id
    assert tuple(items) == ITEMS


def test_missing_lines_are_read_as_a_gap() -> None:
    assert list(read_events(['{"t":"Gap","lines":7}'])) == [Gap(lines=7)]


def test_lines_of_before_low_requests_are_read() -> None:
    line = (
        '{"t":"Arrival","now_us":1,"request_id":2,"model":0,"deadline_us":3,"samples":4,"entry":0}'
    )
    assert list(read_events([line])) == [ITEMS[0]]
