"""The lock around a change of plan.

One holder, known to the others, and free when its process dies.
"""

import fcntl
import multiprocessing
import os
import re
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from flows.release.rollout.guarded import finish_interrupted
from flows.release.rollout.lock import holder_of, one_change
from flows.state import ProjectState
from flows.workspace import Workspace
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.errors import InputError

ROOT = Path(__file__).resolve().parents[4]


def hold_for_good(path: Path, held: Connection) -> None:
    with one_change(path, wait=False):
        held.send(os.getpid())
        signal.pause()


def test_a_second_change_is_refused_by_name_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "state" / "lock"
    with (
        one_change(path, wait=False),
        pytest.raises(InputError, match=rf"process {os.getpid()} \(.+\), since 2"),
        one_change(path, wait=False),
    ):
        pass
    with one_change(path, wait=False):
        pass


def test_a_lock_is_looked_at_and_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert holder_of(path) is None
    with one_change(path, wait=False):
        assert f"process {os.getpid()} (" in str(holder_of(path))
    assert holder_of(path) is None
    # A look is as short as it can be: a change that meets one waits for its end.
    looks = os.open(path, os.O_RDONLY)
    fcntl.flock(looks, fcntl.LOCK_SH)
    end = threading.Timer(0.2, os.close, (looks,))
    end.start()
    with one_change(path, wait=False):
        assert f"process {os.getpid()} (" in str(holder_of(path))
    end.join()


def test_a_second_change_waits_and_says_for_which(tmp_path: Path) -> None:
    path, said, waiting = tmp_path / "lock", list[str](), threading.Event()
    order: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        waiting.set()

    def second() -> None:
        with one_change(path, wait=True, say=say):
            order.append("second")

    thread = threading.Thread(target=second)
    with one_change(path, wait=False):
        thread.start()
        waiting.wait()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    (line,) = said
    assert line.startswith(f"waiting for another change of plan: process {os.getpid()} (")


@pytest.mark.long
def test_what_finishes_a_change_that_was_interrupted_waits_for_one_that_lives(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    work = Workspace(state=ProjectState(home=tmp_path), warehouse=tmp_path / "w.duckdb")
    told, said = list[str](), list[str]()

    def finish() -> None:
        try:
            finish_interrupted(work)
        except InputError as error:
            told.append(str(error))

    def waits() -> bool:
        said.append(capfd.readouterr().err)
        return "waiting for another change of plan: process" in "".join(said)

    thread = threading.Thread(target=finish)
    with one_change(work.state.change_lock, wait=False):
        thread.start()
        wait_for(waits)
        assert told == []
    thread.join()
    assert ["nothing is being served" in text for text in told] == [True]


def test_plans_are_changed_under_the_lock_alone() -> None:
    """`guarded` holds it; commands, replanning and Prefect change plans through `guarded`."""
    changing = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "flows").rglob("*.py")
        if re.search(r"\b(change_plan|finish_or_undo_change)\b", path.read_text())
    }
    assert changing == {f"flows/release/rollout/{name}.py" for name in ("change", "guarded")}


@pytest.mark.slow
def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=hold_for_good, args=(path, theirs))
    child.start()
    pid = ours.recv()
    with pytest.raises(InputError, match=f"process {pid} "), one_change(path, wait=False):
        pass
    assert f"process {pid} (" in str(holder_of(path))
    child.kill()
    child.join()
    assert holder_of(path) is None
    with one_change(path, wait=False):
        pass
