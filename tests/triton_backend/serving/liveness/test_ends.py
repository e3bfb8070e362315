"""Processes that end, each with another one, and the watchers that their ends wake."""

import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any

import psutil
import pytest

from tests.triton_backend.serving.system import owners, wait_for
from triton_backend.serving.liveness.ends import ExitWatch, end_with
from triton_backend.serving.liveness.threads import is_alive

# Belongs to a server too, once its main thread, which takes no signal before, has gone on.
OWNED = """
import ctypes, os, sys, threading, time
from triton_backend.serving.liveness.ends import OwnerWatch, end_with_parent

parent, server = map(int, sys.argv[1:])
end_with_parent(parent)
owners, libc, mutex = OwnerWatch(parent), ctypes.CDLL(None), ctypes.create_string_buffer(64)
libc.pthread_mutex_lock(mutex)

def asleep():
    return open("/proc/self/stat").read().rpartition(")")[2].split()[0] == "S"

def other():
    seen = 0
    while seen < 20:  # the main thread waits for the mutex, not only for its turn
        time.sleep(0.01)
        seen = seen + 1 if asleep() else 0
    owners.add(server)
    print("added", flush=True)
    sys.stdin.readline()
    libc.pthread_mutex_unlock(mutex)

threading.Thread(target=other).start()
libc.pthread_mutex_lock(mutex)  # no signal ends it
threading.Event().wait()
"""
# Belongs to a server too, though the signal that was to say so never came.
UNHEARD = """
import ctypes, signal, sys, threading
from triton_backend.serving.liveness.ends import OwnerWatch, end_with_parent

parent, server = map(int, sys.argv[1:])
end_with_parent(parent)
owners = OwnerWatch(parent)
handler = signal.getsignal(signal.SIGUSR1)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
owners.add(server)
signal.signal(signal.SIGUSR1, handler)
print("added", flush=True)
threading.Event().wait()
"""
PARENT = """
import os, signal, subprocess, sys
code, server = sys.argv[1:]
subprocess.Popen([sys.executable, "-c", code, str(os.getpid()), server], stdin=0, stdout=1)
signal.pause()
"""


@pytest.mark.slow
def test_the_end_of_a_process_wakes_its_watcher() -> None:
    watch = ExitWatch()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert watch.watch(process.pid)
        assert watch.watch(process.pid)
        assert watch.wait(0) == []
        process.kill()
        assert watch.wait(10) == [process.pid]
        assert not watch.watch(process.pid)  # its parent has not asked for it
    assert watch.wait(0) == []
    assert not watch.watch(process.pid)
    assert not watch.watch(0)
    assert watch.wait(0) == []


@pytest.mark.slow
def test_a_process_ends_with_another_one_that_did_not_start_it() -> None:
    code = """
import sys, threading
from triton_backend.serving.liveness.ends import end_with

def release():
    print("releases", flush=True)
    raise ValueError

thread = threading.Thread(target=end_with, args=[int(sys.argv[1]), release])
thread.start()
thread.join()
print("goes on", flush=True)
threading.Event().wait()
"""
    with ExitStack() as stack:
        server = stack.enter_context(subprocess.Popen(["sleep", "600"]))
        stack.callback(server.kill)
        command = [sys.executable, "-c", code, str(server.pid)]
        stub = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(stub.kill)
        assert stub.stdout is not None
        assert stub.stdout.readline() == "goes on\n"
        assert stub.poll() is None
        server.kill()
        assert stub.stdout.readline() == "releases\n"
        assert stub.wait(60) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        end_with(server.pid, int)


Child = tuple["subprocess.Popen[str]", "subprocess.Popen[bytes]", int]


@contextmanager
def child_with_two_owners(code: str) -> Generator[Child]:
    """Its parent, a server that it was added to as well, and its process id."""
    command = [sys.executable, "-c", PARENT, code]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with ExitStack() as stack:
        server = stack.enter_context(subprocess.Popen(["sleep", "600"]))
        stack.callback(server.kill)
        parent = stack.enter_context(subprocess.Popen([*command, str(server.pid)], **pipes))
        stack.callback(parent.kill)
        assert parent.stdout is not None
        assert parent.stdout.readline() == "added\n"
        (child,) = psutil.Process(parent.pid).children()
        yield parent, server, child.pid


@pytest.mark.slow
def test_a_process_shows_another_owner_once_it_outlives_its_parent() -> None:
    """Its main thread may be at work then, and takes the signal that says so only afterwards."""
    with child_with_two_owners(OWNED) as (parent, server, child):
        assert parent.stdin is not None
        assert server.pid not in owners(child)
        parent.stdin.write("go on\n")
        parent.stdin.flush()
        wait_for(lambda: server.pid in owners(child))
        parent.kill()
        parent.wait()
        wait_for(lambda: owners(child) == {server.pid})
        server.kill()
        server.wait()
        wait_for(lambda: not is_alive(child))


@pytest.mark.slow
def test_a_process_whose_main_thread_missed_the_signal_outlives_its_parent_too() -> None:
    """It came just before the thread began to wait, which it does for good where it is idle."""
    with child_with_two_owners(UNHEARD) as (parent, server, child):
        wait_for(lambda: server.pid in owners(child))
        parent.kill()
        parent.wait()
        wait_for(lambda: owners(child) == {server.pid})
