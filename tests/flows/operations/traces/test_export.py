"""Traces from files to a receiver that comes and goes."""

from pathlib import Path

import pytest

from flows.operations.traces.export import Follower, export
from flows.operations.traces.otlp import ReceiverError, RefusedError
from flows.operations.traces.reading import TraceReader
from flows.operations.traces.spans import Trace
from flows.workspace import Workspace
from tests.flows.operations.fake_gateway import Log, the_plan, workspace_of


class Sink:
    """Takes traces unless it is away."""

    def __init__(self, *refused: int) -> None:
        self.taken: list[Trace] = []
        self.refused = set(refused)
        self.is_away = False

    def send(self, traces: list[Trace]) -> None:
        if self.is_away:
            raise ReceiverError("away")
        if self.refused & set(numbers(traces)):
            raise RefusedError("refused")
        self.taken += traces


def numbers(traces: list[Trace]) -> list[int]:
    return [int(trace.root.attributes["poolpipe.request"]) for trace in traces]


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
    assert numbers(sink.taken) == [1, 2, 3, 4, 5]
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
    assert numbers(sink.taken) == [3, 4, 5, 6, 7, 8, 9]
    assert (follower.sent.traces, follower.sent.left_out) == (7, 2)


@pytest.mark.parametrize("refused", [(1,), (3,), (1, 2), (5,), (2, 4)])
def test_traces_that_are_refused_are_left_out_and_hold_up_no_others(
    tmp_path: Path, refused: tuple[int, ...]
) -> None:
    _, reader, _ = some_requests(tmp_path)
    sink = Sink(*refused)
    follower = Follower(reader, sink, lambda _: None)
    for _ in range(1 + len(refused)):
        follower.look(everything=True)
    assert sorted(numbers(sink.taken)) == sorted({1, 2, 3, 4, 5} - set(refused))
    assert (follower.sent.traces, follower.sent.left_out) == (5 - len(refused), len(refused))


def test_a_receiver_that_refuses_everything_loses_nothing(tmp_path: Path) -> None:
    _, reader, _ = some_requests(tmp_path)
    sink, said = Sink(1, 2, 3, 4, 5), list[str]()
    follower = Follower(reader, sink, said.append)
    for _ in range(7):
        follower.look(everything=True)
    assert (said, sink.taken, follower.sent.left_out) == (["refused; tried again"], [], 0)
    sink.refused = set()
    follower.look(everything=True)
    assert sorted(numbers(sink.taken)) == [1, 2, 3, 4, 5]
