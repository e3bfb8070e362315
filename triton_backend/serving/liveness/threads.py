"""Threads of a process, as Linux shows them: which run, wait, or want a processor."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_MILLION = 1_000_000
# Of /proc/PID/task/TID/stat, counted from the state.
_USER_TICKS, _SYSTEM_TICKS = 11, 12
_TICKS = os.sysconf("SC_CLK_TCK")


def thread_states(pid: int) -> set[str]:
    """The states of a process's threads, as Linux writes them (R, S, D, T, …).

    None of a dead one.
    """
    states: set[str] = set()
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                states.add((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return states - {"Z", "X"}


def is_alive(pid: int) -> bool:
    """True if a process runs, or could."""
    return pid > 0 and bool(thread_states(pid))


def wants_to_run(pid: int) -> bool:
    """True if a thread waits for a processor or a disk.

    That of the heartbeat may be one of them.
    """
    return bool(thread_states(pid) & set("RD"))


class ThreadUse(NamedTuple):
    """A thread's wish for a processor now, and its run time in all."""

    wants: bool
    ran_us: int


def thread_uses(pid: int) -> dict[int, ThreadUse]:
    """Of every thread of a process, by its id, to 10 ms; none of a dead one."""
    found: dict[int, ThreadUse] = {}
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                fields = (thread / "stat").read_text().rpartition(")")[2].split()
                ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
                found[int(thread.name)] = ThreadUse(fields[0] == "R", ticks * _MILLION // _TICKS)
    return found


class Starvation:
    """For how long a process has wanted a processor and had none, from look to look.

    One that hangs waits for no processor: it is stopped, waits for what never comes, or runs in a
    circle. One on a machine that others fill does little else, and what it was to do is late
    through no fault of its own.
    """

    def __init__(self) -> None:
        self._before: Mapping[int, ThreadUse] = {}
        self._looked_us = 0
        self._total_us = 0

    def look(self, threads: Mapping[int, ThreadUse], now_us: int) -> int:
        """The time without (µs) since the first look.

        Of its threads' that one's which had the least.

        Args:
            threads: as they are now.
            now_us: instants never go back.
        """
        since_us = now_us - self._looked_us
        known = self._before.keys() & threads.keys()
        self._total_us += max(
            (
                since_us - (threads[t].ran_us - self._before[t].ran_us)
                for t in known
                if threads[t].wants
            ),
            default=0,
        )
        self._before, self._looked_us = threads, now_us
        return self._total_us
