"""Rows that lie on another host, asked for over TCP.

Retained outputs of modules, inputs of jobs at fronts.

    needs them       ──FETCH (a piece, names of tensors)──>   has the memory mapped
                     <──FETCHED (the rows behind it)───────

Of retained outputs any worker of their host is asked, the one that wrote them first: they outlive
it. What comes is kept apart until it is complete, because the batch that wants it may be aborted
meanwhile and its slot be another's.

Here: questions, answers, which process to ask next. Not here: where rows lie (`retained`), what
waits for them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import NUMPY_DTYPES
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.connection import Connection
from triton_backend.serving.transport.event_loop import EventLoop
from triton_backend.serving.transport.shared_memory import Arrays
from triton_backend.serving.transport.wire import (
    NONE,
    FetchBody,
    FrameError,
    Header,
    Kind,
    RowSlice,
    frame,
    pack_fetch,
)

MOST_ASKED = 2  # processes of one host

Fetched = Callable[[Arrays | None], None]
"""Takes the rows, by tensor; None if no process on their host answers."""


@dataclass(slots=True, eq=False)
class _Fetch:
    """A question that waits for its answer, and the processes that it can be put to."""

    addresses: list[str]
    body: FetchBody
    rows: Arrays
    done: Fetched
    connection: Connection | None = None


class Fetches:
    """The questions of one process."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._waiting: dict[int, _Fetch] = {}  # by number
        self._connections: dict[str, Connection] = {}
        self._asked = 0

    def ask(
        self,
        addresses: Sequence[str],
        application: str,
        piece: RowSlice,
        wanted: Sequence[TensorSpec],
        done: Fetched,
    ) -> None:
        """Ask for rows.

        `done` is called once, later in the thread that polls, or at once without a peer.

        Args:
            addresses: of processes that have them, the best one first.
            application: whose piece it is.
            piece: where they lie.
            wanted: the tensors.
            done: takes them.
        """
        rows: Arrays = {
            spec.name: np.empty((piece.rows, *spec.shape[1:]), NUMPY_DTYPES[spec.dtype])
            for spec in wanted
        }
        body = FetchBody(piece, application, tuple(rows))
        self._asked += 1
        self._put(self._asked, _Fetch(list(addresses[:MOST_ASKED]), body, rows, done))

    def _put(self, number: int, fetch: _Fetch) -> None:
        """Ask the next address with a listener."""
        while fetch.addresses:
            connection = self._connect(fetch.addresses.pop(0))
            data = frame(Kind.FETCH, pack_fetch(fetch.body), batch_id=number)
            if connection is not None and connection.send(data):
                fetch.connection = connection
                self._waiting[number] = fetch
                return
        fetch.done(None)

    def _connect(self, address: str) -> Connection | None:
        known = self._connections.get(address)
        if known is not None and not known.closed:
            return known
        made = self._loop.connect(address)
        if made is not None:
            self._connections[address] = made
        return made

    def target(self, connection: Connection, header: Header) -> list[memoryview]:
        """Where the rows of an answer are to be read into.

        Raises:
            FrameError: this peer was not asked.
        """
        fetch = self._waiting.get(header.batch_id)
        if fetch is None or fetch.connection is not connection:
            raise FrameError(f"rows that {connection.name} was not asked for")
        return bytes_of(fetch.rows)

    def fetched(self, connection: Connection, header: Header, reason: bytes) -> None:
        """An answer is here, its rows where `target` said.

        With a reason, and without rows, a refusal.

        Raises:
            FrameError: this peer was not asked.
        """
        self.target(connection, header)
        fetch = self._waiting.pop(header.batch_id)
        fetch.done(None if reason else fetch.rows)

    def closed(self, connection: Connection) -> None:
        """A connection ended: what it was asked for is asked of another process of that host."""
        for address, known in list(self._connections.items()):
            if known is connection:
                del self._connections[address]
        for number, fetch in list(self._waiting.items()):
            if fetch.connection is connection:
                del self._waiting[number]
                self._put(number, fetch)


def answer_fetch(
    connection: Connection,
    header: Header,
    wanted: FetchBody,
    find: Callable[[str, RowSlice], Arrays],
) -> None:
    """Send the rows that a peer asked for, or why there are none.

    Args:
        connection: of the peer.
        header: of its question.
        wanted: the question.
        find: what a piece of an application says, on the memory itself; FrameError where there is
            none.
    """
    try:
        found = find(wanted.application, wanted.piece)
        # Copied, because their slot may be freed while they wait to be sent.
        rows = {name: found[name].copy() for name in wanted.tensors}
    except (FrameError, KeyError) as error:
        connection.send(frame(Kind.FETCHED, str(error).encode(), batch_id=header.batch_id))
        return
    size = sum(array.nbytes for array in rows.values())
    data = frame(Kind.FETCHED, batch_id=header.batch_id, payload_bytes=size)
    connection.send_with_payload(data, bytes_of(rows), lambda: None)


def bytes_of(arrays: Arrays) -> list[memoryview]:
    """Arrays as bytes, in the order they cross a network."""
    return [memoryview(cast("Any", a.reshape(-1).view(np.uint8))) for a in arrays.values()]


def holders(
    deployment: Deployment, application: str, piece: RowSlice, node: str | None
) -> list[str]:
    """Addresses of processes that have the memory of a piece, where it lies on another host.

    None where it is here.

    Args:
        deployment: of the piece's generation.
        application: whose it is.
        piece: where rows lie.
        node: where this process runs; None for the gateway's host.
    """
    if not deployment.settings.hosts:
        return []
    if piece.producer == NONE:
        if node is None or deployment.same_host(node, None):
            return []
        host, port = deployment.settings.gateway_host, deployment.front_port(application)
        return [f"tcp:{host}:{port}"]
    place = deployment.node_name_of(piece.vgpu)
    if deployment.same_host(place, node):
        return []
    there = [
        v.index
        for v in deployment.vgpus
        if v.index != piece.vgpu and deployment.same_host(deployment.node_name_of(v.index), place)
    ]
    return [deployment.worker_address(v, same_host=False) for v in (piece.vgpu, *there)]
