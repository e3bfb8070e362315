"""A kernel timer that wakes a poll at a microsecond, where epoll's own time-out knows only ms.

Linux `timerfd` on CLOCK_MONOTONIC, through the C library (Python has it from 3.13 on).
"""

import ctypes
import os

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_TFD_NONBLOCK = 0o4000
_TFD_CLOEXEC = 0o2000000


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


_libc = ctypes.CDLL(None, use_errno=True)


class TimerFd:
    """Readable from the instant it was set to, until it is set again or acknowledged."""

    def __init__(self) -> None:
        self._fd = _libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._spec = _Itimerspec()
        self.at_us: int | None = None

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._fd

    def set(self, at_us: int | None) -> None:
        """Expire at `at_us` (at once where it has passed); None: never."""
        if at_us == self.at_us:
            return
        self.at_us = at_us
        # An all-zero value would disarm the timer, hence at least one microsecond.
        seconds, micros = divmod(max(at_us, 1) if at_us is not None else 0, 1_000_000)
        self._spec.value.seconds = seconds
        self._spec.value.nanoseconds = micros * 1000
        if _libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def acknowledge(self) -> None:
        """It has expired: be quiet until set again."""
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self.at_us = None

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)
