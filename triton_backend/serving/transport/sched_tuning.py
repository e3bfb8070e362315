"""What is asked of the kernel so that wake-ups come sooner: short time slices, exact timers.

Short slices: on busy cores the kernel lets a process that asks for them run sooner.

Everything here works for microseconds at a time, so short slices cost nothing, and a wake-up need
not wait for the whole slice of whoever has the core. Linux 6.12 and later (`sched_setattr`, the
slice is `sched_runtime`); others refuse or ignore it, and all is as before.
Exact timers: a sleeping thread is woken up to 50 µs late, so that the kernel may join wake-ups;
one that asks for none of this is woken 20 to 30 µs after the instant.
"""

import ctypes
import os
import platform
from pathlib import Path

SLICE_NS = 100_000
_PR_SET_TIMERSLACK = 29
_SYSCALLS = {"x86_64": 314, "aarch64": 274}
_SCHED_OTHER = 0


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


def ask_for_short_slices() -> bool:
    """Ask for this process: its threads, and those it starts from now on.

    Returns:
        whether the kernel took it.
    """
    number = _SYSCALLS.get(platform.machine())
    if number is None or os.sched_getscheduler(0) != _SCHED_OTHER:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    asked = _Attributes(
        size=ctypes.sizeof(_Attributes),
        policy=_SCHED_OTHER,
        nice=os.getpriority(os.PRIO_PROCESS, 0),
        runtime_ns=SLICE_NS,
    )
    refused = 0
    for thread in Path("/proc/self/task").iterdir():
        refused += libc.syscall(number, int(thread.name), ctypes.byref(asked), 0) != 0
    return not refused


def ask_for_exact_timers() -> None:
    """Ask for the calling thread, and for those it starts from now on."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
