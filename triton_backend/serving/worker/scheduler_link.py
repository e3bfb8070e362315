"""A worker's connection to the scheduler: HELLO, heartbeats that tell the gateway's time, reports.

Hosts do not share CLOCK_MONOTONIC. A heartbeat carries the instant at which it was sent, so (now -
sent) is the difference of the clocks plus the heartbeat's way; the least of the last ones comes
within the network's fastest one-way delay of the truth, and following a window keeps up with drift.
"""

from collections import deque
from collections.abc import Callable

from triton_backend.runtimes.clock import Clock
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.connection import Connection
from triton_backend.serving.transport.event_loop import EventLoop
from triton_backend.serving.transport.wire import (
    FrameError,
    Kind,
    TimesBody,
    WorkerHello,
    frame,
    life_of,
    pack_hello,
    pack_times,
)

WINDOW_BEATS = 20
ENOUGH_BEATS = 3


class GatewayTime:
    """Instants of the gateway, from a clock of this host; equal until a heartbeat came.

    `ahead_us`: by how much the clock of this host is ahead.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._differences_us: deque[int] = deque(maxlen=WINDOW_BEATS)
        self.ahead_us = 0

    @property
    def known(self) -> bool:
        """True if enough heartbeats came."""
        return len(self._differences_us) >= ENOUGH_BEATS

    def heartbeat(self, sent_us: int) -> None:
        """A heartbeat came, sent at `sent_us` of the gateway."""
        self._differences_us.append(self._clock.now_us() - sent_us)
        self.ahead_us = min(self._differences_us)

    def forget(self) -> None:
        """Another scheduler, on a host that may have restarted, comes next."""
        self._differences_us.clear()

    def now_us(self) -> int:
        """The instant, as the gateway counts."""
        return self._clock.now_us() - self.ahead_us

    def local_now_us(self) -> int:
        """The instant, as this host counts."""
        return self._clock.now_us()

    def local_us(self, gateway_us: int) -> int:
        """An instant of the gateway as this host counts."""
        return gateway_us + self.ahead_us


class SchedulerLink:
    """The connection of one vGPU's worker, made again where it has ended."""

    def __init__(
        self, loop: EventLoop, deployment: Deployment, vgpu: int, time: GatewayTime
    ) -> None:
        settings, node = deployment.settings, deployment.node_name_of(vgpu)
        self._loop = loop
        self._address = settings.scheduler_address_from(node)
        self._elsewhere = node in settings.hosts
        # By tag, the generation served last at the end.
        self._hellos: dict[int, WorkerHello] = {}
        self._time = time
        self._connection: Connection | None = None
        self._introduced = False  # said HELLO on this connection
        self._known = False  # as idle
        self._idle_us = 0  # as said last
        self._life = 0  # of the scheduler, the newest heard of
        self.losses = 0  # connections that have ended

    def serve(self, deployment: Deployment, vgpu: int) -> None:
        """Say HELLO for a generation too, at once where the scheduler knows this worker."""
        hello = self._hellos[deployment.tag] = WorkerHello(deployment.generation, vgpu)
        self.send(frame(Kind.HELLO, pack_hello(hello._replace(idle_us=self._idle_us))))

    def forget(self, tag: int) -> None:
        """A generation is over."""
        self._hellos.pop(tag, None)

    def report(self, idle_us: Callable[[], int]) -> bool:
        """Connect and send HELLO, even while busy, and again when idle.

        From another host, only when heartbeats have brought the gateway's time.

        Args:
            idle_us: when this worker will be idle; 0: now.

        Returns:
            whether the scheduler knows this worker for idle.
        """
        if self._known:
            return True
        until_us = idle_us()
        if self._introduced and until_us:
            return False
        if self._connection is None:
            self._connection = self._loop.connect(self._address)
        if self._connection is None or (self._elsewhere and not self._time.known):
            return False
        self._introduced, self._known, self._idle_us = True, not until_us, until_us
        for hello in self._hellos.values():
            self.send(frame(Kind.HELLO, pack_hello(hello._replace(idle_us=until_us))))
        return self._known

    def check_life(self, batch_id: int) -> None:
        """Refuse a batch of a scheduler whose place another has taken.

        Raises:
            FrameError: a newer life of the scheduler has sent batches already.
        """
        life = life_of(batch_id)
        if life < self._life:
            raise FrameError(
                f"a batch of life {life} of the scheduler, which is in life {self._life}"
            )
        self._life = life

    def is_peer_of(self, connection: Connection) -> bool:
        """True if the scheduler is at the other end of a connection."""
        return connection is self._connection

    def heartbeat(self, sent_us: int) -> None:
        """The scheduler was alive at `sent_us`, as it counts."""
        if self._elsewhere:
            self._time.heartbeat(sent_us)

    def send(self, data: bytes) -> None:
        """Send a frame, where the scheduler is there and has had a HELLO."""
        if self._connection is not None and self._introduced:
            self._connection.send(data)

    def send_times(
        self, kind: Kind, times: TimesBody, *, batch_id: int = 0, stage: int = 0, tag: int
    ) -> None:
        """Report when something began and ended (gateway's time)."""
        body = pack_times(times)
        self.send(frame(kind, body, batch_id=batch_id, stage=stage, plan_tag=tag))

    def send_pace(self, tag: int, times_us: tuple[int, int]) -> None:
        """Report a run on zeros of a generation that is served."""
        times = TimesBody(self._hellos[tag].vgpu, *times_us)
        self.send_times(Kind.PACE_RESULT, times, tag=tag)

    def closed(self, connection: Connection) -> bool:
        """A connection ended; if it was this one, `report` makes another."""
        if connection is not self._connection:
            return False
        self._connection = None
        self._introduced = self._known = False
        self._time.forget()
        self.losses += 1
        return True
