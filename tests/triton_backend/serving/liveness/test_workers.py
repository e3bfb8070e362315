"""Workers that count as hung or busy, by the board of their node."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import deploy, wait_for
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.liveness.limits import HUNG_AT_LEAST_US, SILENT_US, STUCK_US
from triton_backend.serving.liveness.threads import thread_states
from triton_backend.serving.liveness.workers import STALL_US, HealthBoard, HealthWatch

NOW_US = 10**9
BATCH_US = 5_000
LOOK_US = STALL_US // 5
WANTS_TO_RUN = os.getpid()  # this very thread


@pytest.fixture
def board(tmp_path: Path) -> Iterator[HealthBoard]:
    made = HealthBoard.open(deploy(tmp_path, plan(two_stage()), ServeOptions()), "FAST")
    yield made
    made.remove()


@pytest.fixture
def waiting() -> Iterator[int]:
    """A process of which no thread wants to run."""
    with subprocess.Popen(["sleep", "600"]) as process:
        wait_for(lambda: thread_states(process.pid) == {"S"})
        yield process.pid
        process.kill()


def looked(watch: HealthWatch, from_us: int, till_us: int) -> HealthWatch:
    """Look now and then from the first instant on, and at the last."""
    for now_us in (*range(from_us, till_us, LOOK_US), till_us):
        watch.look(now_us)
    return watch


@pytest.mark.slow
def test_who_is_silent_is_hung_sooner_when_no_thread_wants_to_run(
    board: HealthBoard, waiting: int
) -> None:
    watch = looked(HealthWatch(board), NOW_US, NOW_US + STUCK_US)
    assert watch.complaint(0, waiting) is None  # it is loading
    board.rows[0, 0] = NOW_US
    assert watch.complaint(0, waiting) is None
    watch.look(NOW_US + STUCK_US + 1)
    assert "no heartbeat" in (watch.complaint(0, waiting) or "")
    assert watch.complaint(0, WANTS_TO_RUN) is None
    looked(watch, NOW_US + STUCK_US + 1, NOW_US + SILENT_US + 1)
    assert "no heartbeat" in (watch.complaint(0, WANTS_TO_RUN) or "")


@pytest.mark.slow
def test_a_batch_that_never_ends_is_told_from_a_long_one(board: HealthBoard, waiting: int) -> None:
    watch = looked(HealthWatch(board), NOW_US, NOW_US + BATCH_US + HUNG_AT_LEAST_US)
    board.row(0).busy(NOW_US, BATCH_US)
    assert watch.complaint(0, waiting) is None
    watch.look(NOW_US + BATCH_US + HUNG_AT_LEAST_US + 1)
    assert "busy for" in (watch.complaint(0, waiting) or "")
    board.row(0).idle()
    assert watch.complaint(0, waiting) is None


@pytest.mark.slow
def test_a_run_whose_time_depends_on_its_input_is_waited_for(
    board: HealthBoard, waiting: int
) -> None:
    for patience_us, last_us in ((3_000_000, 3_000_000), (60_000_000, SILENT_US)):
        watch = looked(HealthWatch(board), NOW_US, NOW_US + last_us)
        board.row(0).busy(NOW_US, BATCH_US, patience_us=patience_us)
        assert watch.complaint(0, waiting) is None
        watch.look(NOW_US + last_us + 1)
        assert "busy for" in (watch.complaint(0, waiting) or "")
    board.row(0).busy(NOW_US, BATCH_US)
    assert "busy for" in (watch.complaint(0, waiting) or "")


def test_a_batch_whose_worker_has_no_processor_is_waited_for(board: HealthBoard) -> None:
    """Time is told, and far ahead of what this process runs.

    So it wants a processor and has none.
    """
    watch = HealthWatch(board)
    board.row(0).busy(NOW_US, BATCH_US)
    last_us = NOW_US + 10 * HUNG_AT_LEAST_US
    for now_us in range(NOW_US, last_us, LOOK_US):
        watch.look(now_us)
        assert watch.complaint(0, WANTS_TO_RUN) is None
    board.row(0).busy(last_us, BATCH_US)  # another: what went before says nothing of it
    watch.look(last_us + BATCH_US)
    assert watch.complaint(0, WANTS_TO_RUN) is None


@pytest.mark.slow
def test_workers_of_a_machine_that_stood_still_are_not_taken_to_hang(
    board: HealthBoard, waiting: int
) -> None:
    watch = looked(HealthWatch(board), NOW_US, NOW_US + LOOK_US)
    board.rows[0, 0] = NOW_US
    board.row(0).busy(NOW_US, BATCH_US)
    again_us = NOW_US + 10 * SILENT_US
    looked(watch, again_us, again_us + STUCK_US)
    assert watch.complaint(0, waiting) is None
    looked(watch, again_us + STUCK_US, again_us + STUCK_US + BATCH_US + 1)
    assert watch.complaint(0, waiting) is not None
