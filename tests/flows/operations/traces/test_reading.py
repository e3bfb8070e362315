"""Event files and request logs to traces: which spans a request has, whatever its files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.operations.traces.reading import TraceReader
from flows.operations.traces.spans import Span, Trace
from flows.workspace import Workspace
from tests.fakes.applications import hand_application, hand_module, with_applications
from tests.flows.operations.fake_gateway import NOON_US, STARTED_US, Log, the_plan, workspace_of
from triton_backend.contract.decisions import (
    FIRST_TASK,
    Abort,
    DropReason,
    JobDone,
    Member,
    ModuleSkipped,
    SharedBatch,
    TaskReady,
)
from triton_backend.contract.events import JobArrival, SharedBatchDone, TransferDone

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CLIENT = "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{CLIENT}-01"
AT_US = 1_000_000


def front_line(
    number: int,
    arrival_us: int,
    answered_us: int,
    *,
    model: str = "a",
    outcome: str = "served",
    parent: str = SAMPLED,
    boot_us: int = NOON_US - STARTED_US,
) -> str:
    """A line of a request log; instants are µs after noon."""
    answered_us += STARTED_US
    return json.dumps(
        {
            "wall_us": boot_us + answered_us,
            "model": model,
            "request": number,
            "request_id": "mine",
            "traceparent": parent,
            "batch": 1,
            "samples": 1,
            "arrival_us": arrival_us + STARTED_US,
            "deadline_us": 0,
            "answered_us": answered_us,
            "outcome": outcome,
            "message": "",
        }
    )


def fronts_say(work: Workspace, *lines: str, torn: str = "") -> None:
    folder = work.state.serve / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in lines) + torn
    (folder / "requests-a-00000000000000000001-0000.jsonl").write_text(text)


def traces(work: Workspace, share: float = 0.0) -> list[Trace]:
    return list(TraceReader(work, work.state.serve, share=share).read(everything=True))


def tree(span: Span) -> Any:
    """Name, begin and end in µs after `AT_US`, and what is below."""
    times = span.start_us - STARTED_US - AT_US, span.end_us - STARTED_US - AT_US
    children = [tree(child) for child in span.children]
    return (span.name, *times, children) if children else (span.name, *times)


def flat(span: Span) -> Iterator[Span]:
    yield span
    for child in span.children:
        yield from flat(child)


def served(log: Log) -> int:
    """A request of `a` that is in front from 0 to 9,000 and runs in two stages."""
    request = log.arrive(AT_US + 100)
    batch = log.dispatch((request,), (0, 2))
    log.done(batch, 0, AT_US + 1_000, AT_US + 4_000)
    moved = {"start_us": STARTED_US + AT_US + 4_000, "end_us": STARTED_US + AT_US + 4_500}
    log.say(TransferDone(now_us=moved["end_us"] + 5, batch_id=batch, stage=1, **moved))
    log.done(batch, 1, AT_US + 5_000, AT_US + 7_000)
    return request


SERVED = (
    "infer a",
    0,
    9_000,
    [
        ("front", 0, 100),
        ("wait", 100, 100),
        ("gather", 100, 1_000),
        ("vgpu 0", 1_000, 4_000),
        ("link 1", 4_000, 4_500),
        ("wait", 4_500, 5_000),
        ("vgpu 1", 5_000, 7_000),
        ("answer", 7_000, 9_000),
    ],
)


def one_request(folder: Path) -> tuple[Workspace, Log]:
    work, log = workspace_of(folder, the_plan()), Log()
    log.plan("one", 1)
    number = served(log)
    fronts_say(work, front_line(number, AT_US, AT_US + 9_000))
    return work, log


def test_a_served_request_is_one_tree_below_its_client(tmp_path: Path) -> None:
    work, log = one_request(tmp_path)
    log.write(work)
    (trace,) = traces(work)
    assert tree(trace.root) == SERVED
    assert (trace.trace_id, trace.parent, trace.error) == (TRACE, (TRACE, CLIENT, True), "")
    assert trace.boot_wall_us == NOON_US - STARTED_US
    (vgpu,) = (span for span in trace.root.children if span.name == "vgpu 1")
    assert vgpu.attributes == {
        "poolpipe.batch": 1,
        "poolpipe.model": "a",
        "poolpipe.pipeline": 0,
        "poolpipe.stage": 1,
        "poolpipe.batch_samples": 1,
        "poolpipe.pool": "gpu-2.0.0",
        "poolpipe.gpu_class": "GPU",
        "poolpipe.node": the_plan().cluster.node_name(2),
        "poolpipe.gpu": 0,
        "poolpipe.slot": 0,
    }


@pytest.mark.parametrize("outcome", ["late", "deadline"])
def test_what_became_of_a_request_is_an_attribute_and_a_drop_an_error(
    tmp_path: Path, outcome: str
) -> None:
    work, log = workspace_of(tmp_path, the_plan()), Log()
    log.plan("one", 1)
    if outcome == "late":
        number = served(log)
    else:
        number = log.arrive(AT_US + 100)
        log.arrive(AT_US + 700)
        log.drop(number)
    log.write(work)
    fronts_say(work, front_line(number, AT_US, AT_US + 9_000, outcome=outcome))
    (trace,) = traces(work)
    assert trace.root.attributes["poolpipe.outcome"] == outcome
    assert trace.error == ("" if outcome == "late" else "deadline")
    if outcome == "deadline":
        assert tree(trace.root)[3] == [("front", 0, 100), ("wait", 100, 700)]


def test_of_a_batch_that_was_given_up_what_ran_is_told_too(tmp_path: Path) -> None:
    work, log = workspace_of(tmp_path, the_plan()), Log()
    log.plan("one", 1)
    number = log.arrive(AT_US)
    first = log.dispatch((number,), (0, 2))
    log.done(first, 0, AT_US + 10, AT_US + 1_000)
    log.arrive(AT_US + 2_000)
    log.say(Abort(batch_id=first))
    second = log.dispatch((number,), (1, 3))
    log.done(second, 0, AT_US + 2_500, AT_US + 3_000)
    log.done(second, 1, AT_US + 3_000, AT_US + 4_000)
    log.write(work)
    fronts_say(work, front_line(number, AT_US, AT_US + 4_000))
    (trace,) = traces(work)
    assert [(span[0], *span[1:3]) for span in tree(trace.root)[3]] == [
        ("front", 0, 0),
        ("wait", 0, 0),
        ("gather", 0, 10),
        ("vgpu 0", 10, 1_000),
        ("wait", 2_000, 2_000),
        ("gather", 2_000, 2_500),
        ("vgpu 0", 2_500, 3_000),
        ("vgpu 1", 3_000, 4_000),
        ("answer", 4_000, 4_000),
    ]
    aborted = [span.attributes.get("poolpipe.aborted") for span in trace.root.children]
    assert aborted == [None, None, True, True, None, None, None, None, None]


def test_a_member_of_a_shared_batch_has_its_stage(tmp_path: Path) -> None:
    work, log = workspace_of(tmp_path, the_plan()), Log()
    log.plan("one", 1)
    numbers = [log.arrive(AT_US) for _ in range(2)]
    batches = [log.dispatch((number,), (0, 2)) for number in numbers]
    for batch in batches:
        log.done(batch, 0, AT_US, AT_US + 100)
    capacity = tuple(Member(batch, 1, row, 1) for row, batch in enumerate(batches))
    start_us = STARTED_US + AT_US + 200
    shared_batch: dict[str, int] = {
        "shared_batch_id": 9,
        "start_us": start_us,
        "end_us": start_us + 50,
    }
    log.say(SharedBatch(**shared_batch, capacity=2, members=capacity))
    log.say(SharedBatchDone(**shared_batch, now_us=start_us + 60))
    log.write(work)
    fronts_say(work, *(front_line(number, AT_US, AT_US + 300) for number in numbers))
    for trace in traces(work):
        (stage,) = (span for span in trace.root.children if span.name == "vgpu 1")
        assert tree(stage) == ("vgpu 1", 200, 250)
        assert stage.attributes["poolpipe.shared_batch"] == 9


def test_modules_of_a_job_are_spans_around_their_pieces(tmp_path: Path) -> None:
    modules = [
        hand_module("find", "a"),
        hand_module("name", "b", "find"),
        hand_module("rate", "b", "find"),
    ]
    graph = hand_application("app", modules)
    work, log = workspace_of(tmp_path, with_applications(the_plan(), graph)), Log()
    log.plan("one", 1)
    job, find, name = 7, FIRST_TASK, FIRST_TASK + 1
    at_us = STARTED_US + AT_US
    arrival = JobArrival(now_us=at_us + 50, job_id=job, application=0, deadline_us=at_us + 100_000)
    log.say(arrival)
    rows = {"job_id": job, "first_row": 0, "rows": 1, "of_rows": 1}
    log.say(TaskReady(request_id=find, module=0, **rows))
    batch = log.dispatch((find,), (0, 2))
    log.done(batch, 0, AT_US + 100, AT_US + 200)
    log.done(batch, 1, AT_US + 200, AT_US + 390)
    log.say(TaskReady(request_id=name, module=1, **rows))
    log.say(ModuleSkipped(job_id=job, module=2))
    batch = log.dispatch((name,), (4,), model=1)
    log.done(batch, 0, AT_US + 500, AT_US + 590)
    log.say(JobDone(job_id=job))
    log.write(work)
    fronts_say(work, front_line(job, AT_US, AT_US + 700, model="app"))
    (trace,) = traces(work)
    assert tree(trace.root) == (
        "infer app",
        0,
        700,
        [
            ("front", 0, 50),
            (
                "module find",
                50,
                390,
                [
                    ("wait", 50, 50),
                    ("gather", 50, 100),
                    ("vgpu 0", 100, 200),
                    ("vgpu 1", 200, 390),
                ],
            ),
            (
                "module name",
                400,
                590,
                [("wait", 400, 400), ("gather", 400, 500), ("vgpu 0", 500, 590)],
            ),
            ("module rate", 400, 400),
            ("answer", 600, 700),
        ],
    )


def test_only_sampled_requests_are_traced_and_a_share_of_the_others(tmp_path: Path) -> None:
    work, log = workspace_of(tmp_path, the_plan()), Log()
    log.plan("one", 1)
    numbers = [served(log) for _ in range(200)]
    log.write(work)
    told = [SAMPLED, SAMPLED[:-1] + "0", "", "wrong"]
    lines = [
        front_line(number, AT_US, AT_US + 9_000, parent=parent)
        for number, parent in zip(numbers, told, strict=False)
    ]
    fronts_say(work, *lines)
    assert [trace.trace_id for trace in traces(work)] == [TRACE]
    some = traces(work, share=0.2)
    assert some == traces(work, share=0.2)
    assert 20 < len(some) < 60
    assert len(traces(work, share=1.0)) == 200
    (own,) = {trace.parent for trace in some} - {(TRACE, CLIENT, True)}
    assert own is None
    untold = [trace for trace in some if "poolpipe.request_id" not in trace.root.attributes]
    assert tree(untold[0].root)[1:3] == (100, 7_000)
    assert len({trace.trace_id for trace in some}) == len(some)


def test_a_request_whose_events_are_gone_keeps_what_its_front_says(tmp_path: Path) -> None:
    work, log = one_request(tmp_path)
    log.lines = log.lines[:1]
    log.write(work)
    reader = TraceReader(work, work.state.serve)
    (trace,) = reader.read(everything=True)
    assert tree(trace.root) == ("infer a", 0, 9_000)
    assert trace.root.attributes["poolpipe.events"] is False
    assert reader.alone == 1


def test_an_earlier_start_of_the_host_is_not_mistaken(tmp_path: Path) -> None:
    """Its clock and its requests' numbers begin again."""
    work, log = one_request(tmp_path)
    log.write(work)
    boot_us = NOON_US - STARTED_US - 3_600_000_000
    fronts_say(work, front_line(1, AT_US, AT_US + 9_000, boot_us=boot_us))
    (trace,) = traces(work)
    assert tree(trace.root) == ("infer a", 0, 9_000)


def test_torn_lines_are_counted_and_cost_nothing_else(tmp_path: Path) -> None:
    work, log = one_request(tmp_path)
    log.lines[1:1] = ['{"t":"Arrival","now_us":5', '{"t":"StageDone","batch_id":', "\x00\x00", "[]"]
    log.lines.append('{"t":"Dispatch","batch_id":{}}')
    path = log.write(work)
    path.write_text(path.read_text() + '{"t":"Arr')
    good = front_line(1, AT_US, AT_US + 9_000)
    fronts_say(work, '{"wall_us": 1}', "[]", "nul", good, torn='{"wall_us"')
    reader = TraceReader(work, work.state.serve)
    (trace,) = reader.read(everything=True)
    assert tree(trace.root) == SERVED
    assert reader.skipped == 5 + 3


def test_reading_line_by_line_gives_the_same_traces(tmp_path: Path) -> None:
    """The files grow, and a new one begins."""
    work, log = one_request(tmp_path)
    log.arrive(AT_US + 60_000_000)
    reader = TraceReader(work, work.state.serve)
    found: list[Trace] = []
    for lines in range(1, len(log.lines) + 1):
        log.write(work, lines=slice(min(lines, 4)))
        if lines > 4:
            log.write(work, roll=1, lines=slice(4, lines))
        found += reader.read()
    assert [tree(trace.root) for trace in found] == [SERVED]
    assert list(reader.read(everything=True)) == []


def test_a_reader_that_follows_begins_now_under_the_plan_in_force(tmp_path: Path) -> None:
    work, log = one_request(tmp_path)
    log.write(work)
    reader = TraceReader(work, work.state.serve, from_now=True)
    number = served(log)
    log.write(work)
    lines = [front_line(each, AT_US, AT_US + 9_000) for each in (1, number)]
    fronts_say(work, *lines)
    assert [tree(trace.root) for trace in reader.read(everything=True)] == [SERVED]
    assert reader.skipped == 0


def test_where_nothing_more_is_written_what_waits_is_told(tmp_path: Path) -> None:
    work, log = one_request(tmp_path)
    log.write(work)
    reader = TraceReader(work, work.state.serve)
    reads = [list(reader.read()) for _ in range(4)]
    assert [len(found) for found in reads] == [0, 0, 0, 1]


def test_a_life_whose_header_has_rolled_away_is_read_under_the_plan_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, log = one_request(tmp_path)
    monkeypatch.setattr(
        "flows.operations.traces.reading.boot_wall_us", lambda: NOON_US - STARTED_US
    )
    log.write(work, roll=3, lines=slice(1, None))
    (trace,) = traces(work)
    assert tree(trace.root) == SERVED


def test_a_file_that_rolls_away_while_others_are_read_is_left_out(tmp_path: Path) -> None:
    work, log = one_request(tmp_path)
    first = log.write(work, lines=slice(0, 1))
    log.write(work, roll=1, lines=slice(1, None))
    reader = TraceReader(work, work.state.serve)
    assert list(reader.read()) == []
    first.unlink()
    assert [tree(trace.root) for trace in reader.read(everything=True)] == [SERVED]


def test_requests_are_forgotten_when_their_time_is_over(tmp_path: Path) -> None:
    work, log = workspace_of(tmp_path, the_plan()), Log()
    log.plan("one", 1)
    log.arrive(0)
    log.serve(AT_US)
    for second in range(1, 1_000, 30):
        log.drop(log.arrive(AT_US * second), reason=DropReason.CANCELLED)
    log.write(work)
    reader = TraceReader(work, work.state.serve)
    assert list(reader.read()) == []
    assert reader.kept == 2  # the last, and the first, which was given up just now
