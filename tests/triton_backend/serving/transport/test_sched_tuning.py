"""Tuning of Linux's scheduler, in its own process."""

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.triton_backend.serving.system import wait_for
from triton_backend.serving.transport.sched_tuning import lower_priority


@pytest.mark.slow
def test_short_slices_are_asked_for_a_process_and_its_threads() -> None:
    code = """
import threading
from pathlib import Path
from triton_backend.serving.transport.sched_tuning import SLICE_NS, ask_for_short_slices
taken = ask_for_short_slices()
def slice_ns():
    lines = Path("/proc/thread-self/sched").read_text().splitlines()
    return next((int(line.split()[-1]) for line in lines if line.startswith("se.slice")), None)
told = []
thread = threading.Thread(target=lambda: told.append(slice_ns()))
thread.start()
thread.join()
assert not taken or told[0] in {None, SLICE_NS}, told
"""
    subprocess.run([sys.executable, "-c", code], check=True)


CHILD = """
import os, sys, threading
from pathlib import Path
from triton_backend.serving.transport.sched_tuning import ask_for_short_slices

def priorities():
    ids = [int(one.name) for one in Path("/proc/self/task").iterdir()]
    return sorted((os.sched_getscheduler(i), os.getpriority(os.PRIO_PROCESS, i)) for i in ids)

sys.stdin.read(1)  # lowered by now
over = threading.Event()
threading.Thread(target=over.wait).start()  # as a runtime starts them while it loads
before = priorities()
taken = ask_for_short_slices(like=os.getppid())
after = priorities()  # of threads that last
over.set()
print(taken, before != after, set(after) == {(0, int(sys.argv[1]))})
"""


@pytest.mark.slow
def test_a_process_that_loads_gives_way_and_comes_back_with_all_its_threads() -> None:
    nice = str(os.getpriority(os.PRIO_PROCESS, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, nice], stdin=-1, stdout=subprocess.PIPE, text=True
    )
    lowered = lower_priority(process.pid)
    said, _ = process.communicate("x")
    assert process.returncode == 0
    # Kernels before 6.12, and those of other machines, take none of it.
    assert said.split() in (
        [["True"] * 3] if lowered else [["True", "False", "True"], ["False"] * 3]
    )


IN_TURN = """
import sys
from pathlib import Path
from triton_backend.serving.transport import sched_tuning

folder, sched_tuning.TURN_SECONDS, how = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
if how == "gives way":
    sched_tuning.lower_priority(0)
Path("/proc/self/comm").write_text("ready")
with sched_tuning.turn_to_load(folder):
    print("loads", flush=True)
    sys.stdin.read(1)
"""


@contextmanager
def loading(folder: Path, seconds: float, how: str) -> Generator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", IN_TURN, str(folder), str(seconds), how]
    with subprocess.Popen(words, stdin=-1, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.communicate("x")
    assert process.returncode == 0


def gives_way(pid: int) -> bool:
    """True if the kernel took the priority; kernels before 6.12 do not."""
    wait_for(lambda: "ready" in Path(f"/proc/{pid}/comm").read_text())
    return os.sched_getscheduler(pid) == os.SCHED_BATCH


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def waits_for_a_lock(pid: int) -> bool:
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and str(pid) in line.split() for line in lines)


@pytest.mark.slow
def test_who_gives_way_loads_in_its_turn_and_nobody_else_waits(tmp_path: Path) -> None:
    with contextlib.ExitStack() as turns:  # another process has them all
        for number in range(os.cpu_count() or 1):
            file = turns.enter_context((tmp_path / f"loading-{number}.lock").open("w"))
            fcntl.flock(file, fcntl.LOCK_EX)
        with loading(tmp_path, 60.0, "hurries") as process:
            assert says(process) == "loads"
        with loading(tmp_path, 0.01, "gives way") as process:  # long enough
            assert says(process) == "loads"
        with loading(tmp_path, 60.0, "gives way") as process:
            if gives_way(process.pid):
                wait_for(lambda: waits_for_a_lock(process.pid))
            turns.close()
            assert says(process) == "loads"
