"""Kernel settings for earlier wake-ups: short time slices, exact timers.

Short slices: on busy cores the kernel lets a process that asks for them run sooner.

Everything here works for microseconds at a time, so short slices cost nothing, and a wake-up need
not wait for the whole slice of the thread on the core. Linux 6.12 and later (`sched_setattr`, the
slice is `sched_runtime`); others refuse or ignore it, and all is as before. Low priority: a process
that loads its stages beside others that serve gives way to them, until it asks for short slices
itself. And few of them load at a time: a processor that is free runs a thread that wakes up at
once, where one that a process of the lowest priority has may do so milliseconds later. Exact
timers: a sleeping thread is woken up to 50 µs late, so that the kernel may join wake-ups; one that
asks for none of this is woken 20 to 30 µs after the instant.
"""

import contextlib
import ctypes
import fcntl
import os
import platform
import signal
import threading
from collections.abc import Generator
from functools import cache
from pathlib import Path

SLICE_NS = 100_000
LONG_SLICE_NS = 100_000_000
# A ninth of what one that serves gets where both want to run; with less a busy machine would never
# load.
LOWER_BY = 10
LOWEST = 19
# So long a process that gives way waits for others that load: beyond that it is a disk or a GPU
# that they wait for.
TURN_SECONDS = 1.0
_PR_SET_TIMERSLACK = 29
_SYSCALLS = {"x86_64": 314, "aarch64": 274}
_SCHED_OTHER, _SCHED_BATCH = 0, 3


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def ask_for_short_slices(like: int = 0) -> bool:
    """Ask for this process: its threads, and those it starts from now on.

    Args:
        like: the process whose priority this one takes; 0 keeps its own.

    Returns:
        whether the kernel took it.
    """
    try:
        usual = os.sched_getscheduler(like) == _SCHED_OTHER
        nice = os.getpriority(os.PRIO_PROCESS, like)
    except OSError:  # the process is gone
        return False
    if not usual:
        return False
    threads = [int(thread.name) for thread in Path("/proc/self/task").iterdir()]
    refused = [thread for thread in threads if not _set(thread, _SCHED_OTHER, nice, SLICE_NS)]
    return not refused


def lower_priority(process: int) -> bool:
    """Have a process that was just started give way to this one, until it asks for short slices.

    Without the right to come back from a lower priority it keeps its share of the processor, but
    does not keep others waiting that wake up.

    Returns:
        whether the kernel took it.
    """
    if os.sched_getscheduler(0) != _SCHED_OTHER:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if _may_come_back():
        nice = min(nice + LOWER_BY, LOWEST)
    return _set(process, _SCHED_BATCH, nice, LONG_SLICE_NS)


@contextlib.contextmanager
def turn_to_load(folder: Path) -> Generator[None]:
    """Where this process gives way, have it load while few others of its host do.

    For a main thread. Half of the processors stay free of what loads. A process that waits for
    longer than `TURN_SECONDS` loads all the same.

    Args:
        folder: of files that say whose turn it is, one for all processes of a host.
    """
    if os.sched_getscheduler(0) != _SCHED_BATCH:
        yield
        return
    at_once = max(len(os.sched_getaffinity(0)) // 2, 1)
    path = folder / f"loading-{os.getpid() % at_once}.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with contextlib.suppress(TimeoutError), _alarm(TURN_SECONDS):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def _alarm(seconds: float) -> Generator[None]:
    """Raise TimeoutError out of what is waited for."""

    def ring(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def restore_priority(process: int) -> None:
    """Have a process that loaded at a lower priority serve at this one's, with short slices."""
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(OSError):  # it is gone
        for thread in Path(f"/proc/{process}/task").iterdir():
            _set(int(thread.name), _SCHED_OTHER, nice, SLICE_NS)


@cache
def _may_come_back() -> bool:
    """True if a thread may take back its priority: tried by one that ends then."""
    found: list[bool] = []

    def lower_and_raise() -> None:
        own = threading.get_native_id()
        nice = os.getpriority(os.PRIO_PROCESS, own)
        try:
            os.setpriority(os.PRIO_PROCESS, own, LOWEST)
            os.setpriority(os.PRIO_PROCESS, own, nice)
        except OSError:
            return
        found.append(True)

    thread = threading.Thread(target=lower_and_raise, name="priority")
    thread.start()
    thread.join()
    return bool(found)


def _set(thread: int, policy: int, nice: int, slice_ns: int) -> bool:
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        return False
    asked = _Attributes(
        size=ctypes.sizeof(_Attributes), policy=policy, nice=nice, runtime_ns=slice_ns
    )
    return ctypes.CDLL(None).syscall(number, thread, ctypes.byref(asked), 0) == 0


def ask_for_exact_timers() -> None:
    """Ask for the calling thread, and for those it starts from now on."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
