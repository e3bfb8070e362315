"""Traces from files to a receiver that comes and goes."""

from pathlib import Path

import pytest

from flows.operations.traces.export import Follower, export
from flows.operations.traces.otlp import ReceiverError
from flows.operations.traces.reading import TraceReader
from flows.operations.traces.spans import Trace
from flows.workspace import Workspace
from tests.flows.operations.fake_gateway import Log, the_plan, workspace_of


class Sink:
    """Takes traces unless it is away."""

    def __init__(self) -> None:
        self.taken: list[Trace] = []
        self.is_away = False

    def send(self, traces: list[Trace]) -> None:
        if self.is_away:
            raise ReceiverError("away")
        self.taken += traces


def some_requests(folder: Path, count: int = 5) -> tuple[Workspace, TraceReader, Log]:
    work, log = workspace_of(folder, the_plan()), Log()
    log.plan("one", 1)
    for number in range(count):
        log.serve(1_000 * number)
    log.write(work)
    return work, TraceReader(work, work.state.serve, share=1.0), log


def test_all_that_the_files_hold_is_sent_once(tmp_path: Path) -> None:
    _, reader, _ = some_requests(tmp_path)
    sink = Sink()
    assert export(reader, sink).traces == 5
    assert [trace.root.attributes["poolpipe.request"] for trace in sink.taken] == [1, 2, 3, 4, 5]
    assert export(reader, sink).traces == 0


def test_traces_wait_for_a_receiver_and_its_absence_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.operations.traces.export.MOST_WAITING", 7)
    work, reader, log = some_requests(tmp_path)
    sink, said = Sink(), list[str]()
    follower = Follower(reader, sink, said.append)
    sink.is_away = True
    follower.look(everything=True)
    follower.look(everything=True)
    log.serve(5_000)
    for number in range(3):
        log.serve(6_000 + number)
    log.write(work)
    follower.look(everything=True)
    sink.is_away = False
    follower.look(everything=True)
    assert said == ["away; tried again", "received again; 2 traces were left out"]
    numbers = [trace.root.attributes["poolpipe.request"] for trace in sink.taken]
    assert numbers == [3, 4, 5, 6, 7, 8, 9]
    assert (follower.sent.traces, follower.sent.left_out) == (7, 2)
