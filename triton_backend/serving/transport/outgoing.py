"""What one peer of a process is sent: frames, and tensors on their way to another host.

What the peer does not take at once waits, and is sent when it takes data again (`flush`) or by who
waits for it (`drain`). At most `MAX_PENDING_BYTES` of frames wait; tensors wait in the memory of who
sends them, who is told when they have left it. All may be called from any thread.
"""

import contextlib
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

MAX_PENDING_BYTES = 8 << 20
_PIECES_AT_ONCE = 64
# A peer on a fast link takes tensors as quickly as they are copied; being woken for every piece that it
# has taken would cost a third more.
_STAY_SECONDS = 0.002


@dataclass(slots=True)
class _Payload:
    """A frame with tensors that waits: its bytes, those to be sent up to its end, whom to tell."""

    size: int
    left: int
    sent: Callable[[], None]


class Outgoing:
    """The sending half of a connection."""

    def __init__(self, sock: socket.socket, epoll: select.epoll) -> None:
        self._socket = sock
        self._epoll = epoll
        self._lock = threading.Lock()
        self._pending: deque[memoryview] = deque()
        self._pending_bytes = 0
        self._payloads: deque[_Payload] = deque()
        self.closed = False

    def send(self, data: bytes) -> bool:
        """Send a frame, now or as soon as the peer takes it; False when the peer is gone."""
        with self._lock:
            if self.closed:
                return False
            if self._pending:
                return self._queue(memoryview(data))
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return False
            return sent == len(data) or self._queue(memoryview(data)[sent:])

    def send_with_payload(
        self, data: bytes, payload: Iterable[memoryview], sent: Callable[[], None]
    ) -> bool:
        """Send a frame and its tensors, now or as the peer takes them; False when it is gone.

        `sent` is called once the tensors may be changed, from this thread or from one that flushes.
        """
        pieces = [memoryview(data), *(piece.cast("B") for piece in payload)]
        size = sum(map(len, pieces))
        with self._lock:
            if self.closed:
                return False
            waiting = bool(self._pending)
            self._pending.extend(pieces)
            self._pending_bytes += size
            self._payloads.append(_Payload(size, self._pending_bytes, sent))
            alive = waiting or self._push_waiting(_STAY_SECONDS)
            if self._pending and not waiting:
                self._epoll.modify(self._socket, select.EPOLLIN | select.EPOLLOUT)
            done = self._done()
        for call in done:
            call()
        return alive

    def _queue(self, rest: memoryview) -> bool:
        self._pending_bytes += len(rest)
        frames_bytes = self._pending_bytes - sum(payload.size for payload in self._payloads)
        if frames_bytes > MAX_PENDING_BYTES:
            # Told through the poll, as any other end.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            return False
        if not self._pending:
            self._epoll.modify(self._socket, select.EPOLLIN | select.EPOLLOUT)
        self._pending.append(rest)
        return True

    def flush(self) -> None:
        """The peer takes data again: send what waited."""
        with self._lock:
            if self.closed:
                return
            self._push()
            if not self._pending:
                self._epoll.modify(self._socket, select.EPOLLIN)
            done = self._done()
        for call in done:
            call()

    def drain(self, patience_s: float) -> None:
        """Wait until the first of the tensors that wait are sent, or nothing is for `patience_s`."""
        with self._lock:
            if self.closed or not self._payloads:
                return
            self._push_waiting(patience_s, first_only=True)
            done = self._done()
        for call in done:
            call()

    def _push_waiting(self, patience_s: float, *, first_only: bool = False) -> bool:
        """As `_push`, while the peer takes something every `patience_s`."""
        self._socket.settimeout(patience_s)
        try:
            return self._push(first_only=first_only)
        finally:
            self._socket.settimeout(0)

    def _push(self, *, first_only: bool = False) -> bool:
        """Send what waits, as far as the socket takes it; False when the peer is gone."""
        while self._pending and not (first_only and self._payloads[0].left <= 0):
            try:
                taken = self._socket.sendmsg(list(islice(self._pending, _PIECES_AT_ONCE)))
            except (BlockingIOError, TimeoutError):
                return True
            except OSError:
                self._pending.clear()
                return False
            advance(self._pending, taken)
            self._pending_bytes -= taken
            for payload in self._payloads:
                payload.left -= taken
        return True

    def _done(self) -> list[Callable[[], None]]:
        """Whom to tell that tensors have been sent."""
        done: list[Callable[[], None]] = []
        while self._payloads and self._payloads[0].left <= 0:
            done.append(self._payloads.popleft().sent)
        return done

    def close(self) -> None:
        """Close the socket; harmless when it is closed."""
        with self._lock:
            if not self.closed:
                self.closed = True
                with contextlib.suppress(OSError):
                    self._epoll.unregister(self._socket)
                self._socket.close()


def advance(pieces: deque[memoryview], taken: int) -> None:
    """Drop the first `taken` bytes of a queue of pieces."""
    while pieces and taken >= len(pieces[0]):
        taken -= len(pieces.popleft())
    if taken:
        pieces[0] = pieces[0][taken:]
