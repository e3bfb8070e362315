"""Sockets of one process: listeners, connections, a timer and a wake-up behind one epoll.

Same host: Unix stream sockets; across hosts: TCP, with the tensors behind the frame. Addresses are
texts: `unix:/path` or `tcp:host:port`. Reading and calling back happen in the one thread that calls
`EventLoop.poll`.

Here: bytes and readiness. Not here: one peer's bytes (`connection`), what frames mean.
"""

import contextlib
import logging
import os
import select
import socket

from triton_backend.contract.errors import InputError
from triton_backend.serving.transport.connection import CloseReason, Connection, Handler
from triton_backend.serving.transport.timerfd import TimerFd
from triton_backend.serving.transport.wire import FrameError

_LOG = logging.getLogger(__name__)
_CONNECT_SECONDS = 0.5
_READABLE = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR


def make_socket(address: str) -> tuple[socket.socket, str | tuple[str, int]]:
    """An unconnected socket for an address, and the address as the socket wants it."""
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


class EventLoop:
    """All sockets of a process; `handler` is called when something happens on them."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._epoll = select.epoll()
        self._listeners: dict[int, socket.socket] = {}
        self._connections: dict[int, Connection] = {}
        self._paths: list[str] = []
        self.timer = TimerFd()
        self._timer_fd = self.timer.fileno()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._timer_fd, select.EPOLLIN)
        self._epoll.register(self._wake, select.EPOLLIN)

    @property
    def connections(self) -> tuple[Connection, ...]:
        """Everyone connected."""
        return tuple(self._connections.values())

    def listen(self, address: str) -> str:
        """Accept peers at an address; a left-over Unix socket file is replaced.

        Returns:
            the address with the port the system chose where it was 0.
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
        self._listeners[sock.fileno()] = sock
        self._epoll.register(sock, select.EPOLLIN)
        if isinstance(target, tuple):
            return f"tcp:{target[0]}:{sock.getsockname()[1]}"
        return address

    def connect(self, address: str) -> Connection | None:
        """Connect to a peer; None when nobody answers there."""
        sock, target = make_socket(address)
        sock.settimeout(_CONNECT_SECONDS)
        try:
            sock.connect(target)
        except OSError:
            sock.close()
            return None
        connection = self._adopt(sock, address)
        connection.trusted = True
        return connection

    def _adopt(self, sock: socket.socket, name: str) -> Connection:
        connection = Connection(sock, self._epoll, name)
        self._connections[sock.fileno()] = connection
        self._epoll.register(sock, select.EPOLLIN)
        return connection

    def wake(self) -> None:
        """Make `poll` return soon; from any thread."""
        with contextlib.suppress(OSError):  # full, or closed by now
            os.eventfd_write(self._wake, 1)

    def poll(self, timeout_s: float | None = None) -> bool:
        """Wait for something and handle all of it; True when the timer has expired."""
        expired = False
        for fd, mask in self._epoll.poll(timeout_s):
            connection = self._connections.get(fd)
            if connection is not None:
                self._serve(connection, mask)
            elif fd == self._timer_fd:
                self.timer.acknowledge()
                expired = True
            elif fd == self._wake:
                os.eventfd_read(self._wake)
            elif fd in self._listeners:
                self._accept(self._listeners[fd])
        return expired

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sock, peer = listener.accept()
            if sock.family == socket.AF_INET:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._adopt(sock, str(peer) or "local peer")

    def _serve(self, connection: Connection, mask: int) -> None:
        if mask & select.EPOLLOUT:
            connection.flush()
        if not mask & _READABLE:
            return
        try:
            if not connection.receive(self._handler):
                self.drop(connection, CloseReason.END_OF_STREAM)
        except (FrameError, InputError) as error:
            self.drop(connection, CloseReason.REFUSED, repr(error))
        except Exception:  # noqa: BLE001  # whatever else is our defect: this peer goes, the others stay
            _LOG.exception("a frame of %s", connection.name)
            self.drop(connection, CloseReason.INTERNAL_ERROR)

    def drop(self, connection: Connection, reason: CloseReason, detail: str = "") -> None:
        """End a connection and tell the handler why, once; `detail` is for messages."""
        fd = connection.fileno()
        if self._connections.get(fd) is connection:
            del self._connections[fd]
            connection.close()
            self._handler.on_close(connection, reason, detail)

    def close(self) -> None:
        """Close everything; nobody is told."""
        for connection in self._connections.values():
            connection.close()
        for listener in self._listeners.values():
            listener.close()
        for path in self._paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108  # socket addresses are texts here
        self.timer.close()
        os.close(self._wake)
        self._epoll.close()
