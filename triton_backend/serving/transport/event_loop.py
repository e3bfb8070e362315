"""Sockets of one process: listeners, connections, a timer and a wake-up behind one epoll.

Same host: Unix stream sockets; across hosts: TCP, with the tensors behind the frame, and a proof
first (`authentication`). Addresses are texts: `unix:/path` or `tcp:host:port`. Reading and calling
back happen in the one thread that calls `EventLoop.poll`.

What strangers can do is bounded: `MAX_UNPROVEN` TCP connections wait for their proof, `PROOF_US`
each, and what is refused is logged a few times a second at most. Where the process has no
descriptor left, it accepts no connection for a while instead of trying all the time.

Here: bytes and readiness. Not here: one peer's bytes (`connection`), what frames mean.
"""

import contextlib
import errno
import logging
import os
import select
import socket
import stat
from pathlib import Path

from triton_backend.contract.errors import InputError
from triton_backend.runtimes.clock import Clock
from triton_backend.serving.transport.authentication import Challenge, Prover
from triton_backend.serving.transport.backoff import Backoff
from triton_backend.serving.transport.connection import (
    REFUSALS,
    CloseReason,
    Connection,
    Handler,
)
from triton_backend.serving.transport.names import HostNames
from triton_backend.serving.transport.timerfd import TimerFd
from triton_backend.serving.transport.wire import FrameError

MAX_UNPROVEN = 64
PROOF_US = 2_000_000
LOGGED_PER_SECOND = 5
AWAY_US = 200_000  # a host that did not answer is not connected to for so long
_LOG = logging.getLogger(__name__)
_CONNECT_SECONDS = 0.5
_FIRST_PAUSE_SECONDS = 0.05
_READABLE = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR
_NOBODY_THERE = frozenset({errno.EAGAIN, errno.EINTR, errno.ECONNABORTED})


def make_socket(address: str) -> tuple[socket.socket, str | tuple[str, int]]:
    """An unconnected socket for an address, and the address as the socket wants it.

    Raises:
        InputError: it is not an address.
        OSError: the process has no descriptor left.
    """
    kind, _, rest = address.partition(":")
    if kind == "unix" and rest:
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), rest
    host, _, port = rest.rpartition(":")
    if kind == "tcp" and host and port.isdigit():
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return made, (host, int(port))
    raise InputError(f"address {address!r}", "is neither unix:PATH nor tcp:HOST:PORT")


def close_inherited_sockets() -> int:
    """Close every socket of this process, which has opened none itself yet; how many.

    Triton forks the process of a model with every connection that its clients have at that moment,
    and with its listeners. A client would not see its connection end, and no other could have
    the ports, until the model is unloaded too. What is loaded while the server serves has some
    twenty Unix sockets more: the pairs by which Triton's HTTP threads wake one another.
    """
    closed = 0
    for place in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):
            fd = int(place.name)
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                os.close(fd)
                closed += 1
    return closed


class EventLoop:
    """All sockets of a process; `handler` is called when something happens on them.

    Args:
        clock: of the limits on strangers.
        key: what TCP peers prove that they have.
    """

    def __init__(self, handler: Handler, clock: Clock, key: bytes) -> None:
        self._handler = handler
        self._clock = clock
        self._key = key
        self._epoll = select.epoll()
        self._listeners: dict[int, tuple[socket.socket, str]] = {}
        self._paused: dict[int, int] = {}  # listeners, and when they accept again
        self._accepting = Backoff(_FIRST_PAUSE_SECONDS)
        self._connections: dict[int, Connection] = {}
        self._unproven: dict[Connection, int] = {}  # until when; the oldest first
        self._names = HostNames()
        self._away_until_us: dict[str, int] = {}  # hosts that did not answer
        self._paths: list[str] = []
        self._logged_in = 0  # the second, and the lines in it
        self._logged = 0
        self.timer = TimerFd()
        self._timer_fd = self.timer.fileno()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._timer_fd, select.EPOLLIN)
        self._epoll.register(self._wake, select.EPOLLIN)

    @property
    def connections(self) -> tuple[Connection, ...]:
        """All connected peers that belong to the system."""
        # Other threads may connect meanwhile.
        return tuple(peer for peer in list(self._connections.values()) if peer.authenticated)

    def listen(self, address: str) -> str:
        """Accept peers at an address; a left-over Unix socket file is replaced.

        Returns:
            the address with the port the system chose where it was 0.

        Raises:
            InputError: it cannot be listened on.
        """
        sock, target = make_socket(address)
        if isinstance(target, str):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(target)  # noqa: PTH108  # socket addresses are texts here
            self._paths.append(target)
        try:
            sock.bind(target)
        except OSError as error:
            sock.close()
            raise InputError(f"address {address}", f"cannot be listened on: {error}") from error
        sock.listen(256)
        sock.settimeout(0)
        if isinstance(target, tuple):
            address = f"tcp:{target[0]}:{sock.getsockname()[1]}"
        self._listeners[sock.fileno()] = sock, address
        self._epoll.register(sock, select.EPOLLIN)
        return address

    def connect(self, address: str) -> Connection | None:
        """Connect to a peer, with a proof where it wants one; None without an answer there.

        Raises:
            InputError: it is not an address.
        """
        try:
            sock, target = make_socket(address)
        except OSError as error:
            self._note(f"{address}: no socket for it: {error}")
            return None
        sock.settimeout(_CONNECT_SECONDS)
        try:
            if isinstance(target, str):
                sock.connect(target)
                return self._add(sock, address)
            self._connect_to_host(sock, *target)
            return self._add(sock, address, prover=Prover(self._key, address))
        except OSError:
            sock.close()
            return None

    def look_up(self, host: str) -> None:
        """Look up the name of a host that is to be connected to later."""
        self._names.look_up(host)

    def _connect_to_host(self, sock: socket.socket, host: str, port: int) -> None:
        """Connect, unless the host did not answer a moment ago.

        Else each batch to it would cost all others the wait.

        Raises:
            OSError: no process answers there, or its address is not known.
        """
        if self._clock.now_us() < self._away_until_us.get(host, 0):
            raise TimeoutError
        try:
            ip = self._names.address(host, _CONNECT_SECONDS)
            if ip is None:
                raise TimeoutError
            sock.connect((ip, port))
        except ConnectionRefusedError:
            raise  # the host answers, at once
        except OSError:
            self._away_until_us[host] = self._clock.now_us() + AWAY_US
            raise

    def _add(
        self,
        sock: socket.socket,
        name: str,
        *,
        challenge: Challenge | None = None,
        prover: Prover | None = None,
    ) -> Connection:
        connection = Connection(sock, self._epoll, name, challenge=challenge, prover=prover)
        self._connections[sock.fileno()] = connection
        return connection

    def wake(self) -> None:
        """Make `poll` return soon; from any thread."""
        with contextlib.suppress(OSError):  # full, or closed by now
            os.eventfd_write(self._wake, 1)

    def poll(self, timeout_s: float | None = None) -> bool:
        """Wait for something and handle all of it; True when the timer has expired."""
        expired = False
        if self._unproven or self._paused:
            timeout_s = self._until_next_limit_s(timeout_s)
        for fd, mask in self._epoll.poll(timeout_s):
            connection = self._connections.get(fd)
            if connection is not None:
                self._serve(connection, mask)
            elif fd == self._timer_fd:
                self.timer.acknowledge()
                expired = True
            elif fd == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            elif fd in self._listeners:
                self._accept(*self._listeners[fd])
        if self._unproven or self._paused:
            self._enforce_limits()
        return expired

    # Strangers

    def _accept(self, listener: socket.socket, address: str) -> None:
        try:
            sock, peer = listener.accept()
        except OSError as error:
            if error.errno not in _NOBODY_THERE:
                self._pause(listener, address, error)
            return
        self._accepting.succeeded()
        try:
            if sock.family == socket.AF_UNIX:
                self._add(sock, "local peer")
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            challenge = Challenge(self._key, address)
            connection = self._add(sock, str(peer), challenge=challenge)
        except OSError:  # it has gone already
            sock.close()
            return
        if len(self._unproven) >= MAX_UNPROVEN:
            oldest = next(iter(self._unproven))
            self.drop(oldest, CloseReason.UNAUTHENTICATED, "others are waiting")
        self._unproven[connection] = self._clock.now_us() + PROOF_US
        connection.send(challenge.frame)

    def _pause(self, listener: socket.socket, address: str, error: OSError) -> None:
        """Stop accepting for a while: the process has no descriptor or no memory left."""
        pause_s = self._accepting.failed()
        self._epoll.unregister(listener)
        self._paused[listener.fileno()] = self._clock.now_us() + round(pause_s * 1e6)
        self._note(f"{address}: accepts no connection for {pause_s:.2f} s: {error}")

    def _until_next_limit_s(self, timeout_s: float | None) -> float:
        """`timeout_s`, or less where a stranger's time or a pause ends before."""
        ends_us = [*self._paused.values(), *list(self._unproven.values())[:1]]
        left_s = max(min(ends_us) - self._clock.now_us(), 0) / 1e6
        return left_s if timeout_s is None or timeout_s < 0 else min(timeout_s, left_s)

    def _enforce_limits(self) -> None:
        now_us = self._clock.now_us()
        for fd in [fd for fd, until_us in self._paused.items() if now_us >= until_us]:
            del self._paused[fd]
            self._epoll.register(self._listeners[fd][0], select.EPOLLIN)
        for connection, until_us in list(self._unproven.items()):
            if now_us >= until_us:
                self.drop(connection, CloseReason.UNAUTHENTICATED, "no proof in time")

    def _note(self, line: str) -> None:
        """Log what others do wrong, `LOGGED_PER_SECOND` times a second at most."""
        second = self._clock.now_us() // 1_000_000
        if second != self._logged_in:
            if self._logged > LOGGED_PER_SECOND:
                _LOG.warning("and %d more", self._logged - LOGGED_PER_SECOND)
            self._logged_in, self._logged = second, 0
        self._logged += 1
        if self._logged <= LOGGED_PER_SECOND:
            _LOG.warning("%s", line)

    # Peers

    def _serve(self, connection: Connection, mask: int) -> None:
        try:
            if mask & select.EPOLLOUT:
                connection.flush()
            if mask & _READABLE and not connection.receive(self._handler):
                self.drop(connection, CloseReason.END_OF_STREAM)
            elif self._unproven and connection.authenticated:
                self._unproven.pop(connection, None)
        except (FrameError, InputError) as error:
            known = connection.authenticated
            reason = CloseReason.REFUSED if known else CloseReason.UNAUTHENTICATED
            self.drop(connection, reason, repr(error))
        except Exception:  # noqa: BLE001  # whatever else is our defect: this peer goes, the others stay
            _LOG.exception("a frame of %s", connection.name)
            self.drop(connection, CloseReason.INTERNAL_ERROR)

    def drop(self, connection: Connection, reason: CloseReason, detail: str = "") -> None:
        """End a connection and tell the handler why, once; `detail` is for messages."""
        fd = connection.fileno()
        if self._connections.get(fd) is not connection:
            return
        del self._connections[fd]
        self._unproven.pop(connection, None)
        connection.close()
        if reason in REFUSALS:
            self._note(f"{connection.name}: {reason}: {detail}")
        try:
            self._handler.on_close(connection, reason)
        except Exception:  # noqa: BLE001  # as in `_serve`
            _LOG.exception("the end of %s", connection.name)

    def close(self) -> None:
        """Close everything, without notice."""
        # Paths first: a process that takes our place when our connections end may use them at once.
        for path in self._paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108  # socket addresses are texts here
        for listener, _ in self._listeners.values():
            listener.close()
        for connection in list(self._connections.values()):
            connection.close()
        self.timer.close()
        os.close(self._wake)
        self._epoll.close()
