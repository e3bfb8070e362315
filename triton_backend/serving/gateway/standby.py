"""The place of the scheduler that dispatches, and the standby that waits for it.

Two processes run a scheduler, each a Triton model of its own; one of them has the *seat*:

    active  ── HEARTBEAT, PLAN (served, prepared) ──> standby
       │                                                 │
       └─ dies, or is silent and does not run ───────────┘ kills it, takes the seat, listens

Messages go over the socket that fronts and workers use. Only one ever dispatches. The seat is a
lock that the kernel takes from a process when it ends, so a standby that has it knows that the
other is gone; one that hangs is killed first (SIGKILL, after which it never runs again). Every
holder has a *life* with a number of its own, which all that it sends carries; fronts and workers
refuse what an older life sends.

Here: seat, lives, what the standby knows. Not here: what the scheduler does with the seat
(`service`).
"""

import contextlib
import fcntl
import gc
import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from triton_backend.contract.errors import InputError
from triton_backend.runtimes.clock import Clock
from triton_backend.serve_folder.repository import STANDBY_MODEL
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.liveness.limits import SILENT_US
from triton_backend.serving.liveness.threads import thread_states
from triton_backend.serving.transport.authentication import transport_key
from triton_backend.serving.transport.connection import CloseReason, Connection
from triton_backend.serving.transport.event_loop import EventLoop
from triton_backend.serving.transport.wire import (
    FrameError,
    Header,
    Kind,
    StandbyHello,
    frame,
    pack_hello,
    unpack_plan,
)

SEAT_NAME = "scheduler.lock"
LOOK_SECONDS = 0.05
# Between two attempts to connect or to take the seat while none is active.
RETRY_SECONDS = 0.002
# The scheduler beats four times a second: so much silence, where none of its threads wants to run.
STUCK_US = 700_000
STUCK_LOOKS = 2
# A look that comes so long after the one before: this machine stood still, and the other with it.
STALL_US = 300_000
# The standby's model leaves the seat to the other one, unless that does not come in this time.
COURTESY_US = 10_000_000
_LINE_BYTES = 64
_US = 1_000_000
_LOG = logging.getLogger(__name__)


class Life(NamedTuple):
    """One holder of the seat.

    Its number, since when, and until when slots of its set may be in use. Numbers only grow; they
    are even and odd in turn.
    """

    number: int
    began_us: int
    slots_used_until_us: int


class SchedulerLock:
    """The right to dispatch, of one process at a time.

    A lock on a file that says whose life it was last.

    Args:
        folder: of the system's sockets.
        held_slots_us: for how long after its end batches of a life may still use their slots.
    """

    def __init__(self, folder: Path, held_slots_us: int) -> None:
        self._path = folder / SEAT_NAME
        self._held_slots_us = held_slots_us
        self._fd: int | None = None

    def take(self, now_us: int) -> Life | None:
        """The next life, where no process has the seat; it is ours then until `release`.

        Raises:
            OSError: the file cannot be made.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._path, flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return None
        last = _read(fd)
        life = self._following(last, now_us)
        # In place and of one length: a full disk does not keep anybody from the seat.
        line = f"{life.number} {life.began_us}".ljust(_LINE_BYTES - 1) + "\n"
        os.pwrite(fd, line.encode(), 0)
        self._fd = fd
        return life

    def _following(self, last: tuple[int, int] | None, now_us: int) -> Life:
        if last is None:
            return Life(now_us // _US, now_us, 0)
        number, began_us = last
        following = max(number + 1, now_us // _US)
        following += (following - number) % 2 == 0
        # The life before the last had the same slots, and ended when the last began.
        until_us = min(began_us, now_us) + self._held_slots_us
        return Life(following, now_us, until_us if until_us > now_us else 0)

    def release(self) -> None:
        """Another process may have it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _read(fd: int) -> tuple[int, int] | None:
    try:
        number, began_us = map(int, os.pread(fd, _LINE_BYTES, 0).split())
    except ValueError:
        return None
    return number, began_us


class Standby:
    """A scheduler's process before it has the seat.

    Attributes:
        served: the generation that the active one serves, as far as is known.
        prepared: the one that may follow it.

    Args:
        name: of this process's Triton model.
        seat: to be taken.
        warm_up: compiles the kernels.
    """

    def __init__(
        self,
        deployment: Deployment,
        name: str,
        clock: Clock,
        seat: SchedulerLock,
        warm_up: Callable[[Deployment], None],
    ) -> None:
        self.served = deployment
        self.prepared: Deployment | None = None
        self._settings = deployment.settings
        self._name = name
        self._clock = clock
        self._seat = seat
        self._warm_up = warm_up
        self._warming_since_us: int | None = None
        self._is_warm = False
        self._has_followed = False
        self._unread: dict[bool, int] = {}  # generations, by whether they are only prepared
        self._said = 0  # the generation of the last HELLO
        self._loop = EventLoop(self, clock, transport_key(self._settings.token))
        self._active: Connection | None = None
        self._pid = 0
        self._pidfd: int | None = None
        self._began_us = self._heard_us = self._looked_us = clock.now_us()
        self._stuck_looks = 0

    def alive_us(self) -> int:
        """When it last looked; while it compiles, which may take a minute, now."""
        return self._looked_us if self._warming_since_us is None else self._clock.now_us()

    @property
    def compiles_since_us(self) -> int | None:
        """Since when it compiles; None while it does not."""
        return self._warming_since_us

    def take_seat(self) -> Life | None:
        """The seat, where it is free and ours to take.

        A scheduler that has it never waits for a compiler.
        """
        yields = self._name == STANDBY_MODEL and not self._has_followed
        if yields and self._clock.now_us() - self._began_us < COURTESY_US:
            return None
        if not self._is_warm:
            self._compile()
        return self._seat.take(self._clock.now_us())

    def _compile(self) -> None:
        self._warming_since_us = self._clock.now_us()
        try:
            self._warm_up(self.served)
            self._is_warm = True
        finally:
            # In this order: a query in between must not see the look before it compiled.
            self._looked_us = self._clock.now_us()
            self._warming_since_us = None

    def wait(self, stopping: threading.Event) -> Life | None:
        """Follow the active one until its seat is ours; None when stopped."""
        life: Life | None = None
        while life is None and not stopping.is_set():
            if self._active is None and not self._connect():
                life = self.take_seat()
            if life is None:
                soon = self._active is None and self._has_followed
                self._loop.poll(RETRY_SECONDS if soon else LOOK_SECONDS)
                self._look()
        return life

    def close(self) -> None:
        """Forget the one that was active."""
        self._forget()
        self._loop.close()

    def _connect(self) -> bool:
        active = self._loop.connect(self._settings.scheduler_address())
        if active is None:
            return False
        self._active = active
        self._pid = active.peer_pid()
        with contextlib.suppress(OSError):  # gone already
            self._pidfd = os.pidfd_open(self._pid)
        if not self._is_warm:
            self._compile()
        # Objects loaded by now stay; a collection over all of them takes 0.1 s.
        gc.collect()
        gc.freeze()
        self._said = 0
        self._say_hello()
        self._has_followed = True
        self._heard_us = self._looked_us = self._clock.now_us()
        return True

    def _say_hello(self) -> None:
        """Say which generation would be served, where that is not known."""
        generation = self.served.generation
        if self._active is not None and generation != self._said:
            self._said = generation
            hello = StandbyHello(self._name, generation)
            self._active.send(frame(Kind.HELLO, pack_hello(hello)))

    def _look(self) -> None:
        """Kill the active one where it hangs: the end of its connection follows."""
        now_us = self._clock.now_us()
        if now_us - self._looked_us > STALL_US:
            self._heard_us = now_us
        self._looked_us = now_us
        silent_us = now_us - self._heard_us
        if self._pidfd is None or silent_us < STUCK_US:
            self._stuck_looks = 0
            return
        runs = thread_states(self._pid) & set("RD")
        self._stuck_looks = 0 if runs else self._stuck_looks + 1
        own = self._pid == os.getpid()
        if not own and (self._stuck_looks >= STUCK_LOOKS or silent_us > SILENT_US):
            _LOG.warning(
                "the active scheduler (%d) is killed: silent for %.1f s", self._pid, silent_us / _US
            )
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            self._stuck_looks, self._heard_us = 0, now_us

    def _forget(self) -> None:
        self._active = None
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    # Handler of the event loop

    def on_frame(self, connection: Connection, header: Header, body: bytes) -> None:
        """Beats of the active scheduler, and what it serves.

        Raises:
            FrameError: no peer may send this to a standby.
        """
        if connection is not self._active:
            raise FrameError(f"{header.kind.name} from a peer that is not the scheduler")
        self._heard_us = self._clock.now_us()
        if header.kind is Kind.PLAN:
            message = unpack_plan(body)
            if not message.prepared:
                self._unread.clear()
            self._follow(message.generation, prepared=message.prepared)
        elif header.kind is Kind.HEARTBEAT:
            for prepared, generation in list(self._unread.items()):
                self._follow(generation, prepared=prepared)
        else:
            raise FrameError(f"a standby takes no {header.kind.name}")

    def _follow(self, generation: int, *, prepared: bool) -> None:
        """Serve a generation, or the prepared one, after a take-over.

        It is read now, or with a later beat.
        """
        known = (self.served, self.prepared)
        found = next((one for one in known if one and one.generation == generation), None)
        late = self._unread.get(prepared) == generation
        try:
            deployment = found or Deployment.read(self._settings, generation)
        except InputError as error:
            if not late:
                _LOG.error("generation %d: %s", generation, error)
            self._unread[prepared] = generation
            return
        self._unread.pop(prepared, None)
        if prepared:
            self.prepared = deployment
        else:
            # PLAN of a prepared one follows that of the one served; it may be read sooner.
            self.served, self.prepared = deployment, self.prepared if late else None
        self._say_hello()

    def on_close(self, connection: Connection, reason: CloseReason) -> None:
        """The active one is gone."""
        if connection is self._active:
            _LOG.warning("the active scheduler (%d): %s", self._pid, reason)
            self._forget()

    def payload_target(
        self, connection: Connection, header: Header, body: bytes
    ) -> list[memoryview]:
        """A standby takes metadata only."""
        raise FrameError(f"{header.kind.name} ({len(body)} bytes) with tensors: {connection.name}")
