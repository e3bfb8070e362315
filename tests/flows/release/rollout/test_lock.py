"""The lock around a change of plan.

One holder, known to the others, and free when its process dies.
"""

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from flows.release.rollout.lock import one_change
from triton_backend.contract.errors import InputError


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


@pytest.mark.slow
def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=hold_for_good, args=(path, theirs))
    child.start()
    pid = ours.recv()
    with pytest.raises(InputError, match=f"process {pid} "), one_change(path, wait=False):
        pass
    child.kill()
    child.join()
    with one_change(path, wait=False):
        pass
