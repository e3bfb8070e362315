"""The cost of a hop between two workers, beside memcpy and raw TCP of the same bytes.

Two processes use the code of the workers (`event_loop`, `shared_memory`, `channel`): the sender
copies a payload into the place that the channel names (as a runtime would write its outputs) and
sends a BATCH frame; the receiver notes the instant at which its owner is notified. One way,
CLOCK_MONOTONIC of one machine.
*overhead* is that time less the sender's own copying. With `--netns` (root) the receiver runs in a
network namespace of its own behind a veth pair, and raw TCP through the same pair is the yardstick.

    .venv/bin/python scripts/benchmarks/transport.py [--netns] [--repeats 200] [--output FILE]
"""

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.benchmarks.figures import Figure, add_destinations, conclude
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serving.layout import SlotLayout
from triton_backend.serving.transport.channel import BUFFERS, Channel
from triton_backend.serving.transport.connection import CloseReason, Connection
from triton_backend.serving.transport.event_loop import EventLoop
from triton_backend.serving.transport.shared_memory import Segment
from triton_backend.serving.transport.wire import Header, Kind, frame

SIZES = (4_096, 600_000, 3_000_000, 12_500_000)
SEGMENT = "poolpipe-bench-transport"
NAMESPACE = "poolpipe-bench"
OVERHEAD_TARGET_US = 150.0
TCP_TARGET = 1.3
KEY = b"any"
HERE, THERE = "10.123.77.1", "10.123.77.2"


def layout(size: int) -> SlotLayout:
    """One tensor of `size` bytes."""
    return SlotLayout(
        specs=(TensorSpec(name="boundary", dtype="UINT8", shape=(-1, size)),), batch=1
    )


class Receiver:
    """Answers every batch with the instant at which it was notified of it."""

    def __init__(self, size: int) -> None:
        self.segment = Segment.create(f"{SEGMENT}-{os.getpid()}", layout(size), 2)
        self.done = False

    def on_frame(self, connection: Connection, header: Header, body: bytes) -> None:
        """Answer."""
        del header, body
        connection.send(frame(Kind.ANSWER, str(time.monotonic_ns()).encode()))

    def on_close(self, connection: Connection, reason: CloseReason) -> None:
        """The sender has finished."""
        del connection, reason
        self.done = True

    def payload_target(
        self, connection: Connection, header: Header, body: bytes
    ) -> list[memoryview]:
        """The slot."""
        del connection, header, body
        return self.segment.pieces(0, 1)


class Sender:
    """Keeps the last answer."""

    answer: int | None = None

    def on_frame(self, connection: Connection, header: Header, body: bytes) -> None:
        """An answer is an instant."""
        del connection, header
        self.answer = int(body)

    def on_close(self, connection: Connection, reason: CloseReason) -> None:
        """The receiver must not go first."""
        raise RuntimeError(f"{connection.name}: {reason}")

    def payload_target(
        self, connection: Connection, header: Header, body: bytes
    ) -> list[memoryview]:
        """Nothing is sent here."""
        raise RuntimeError(f"{connection.name} sent {header} {body!r}")


def receive(address: str, size: int) -> None:
    """The receiver's process: says its address and segment, serves one sender, ends."""
    receiver = Receiver(size)
    loop = EventLoop(receiver, SystemClock(), KEY)
    print(loop.listen(address), receiver.segment.path, flush=True)
    while not receiver.done:
        loop.poll(None)
    loop.close()
    receiver.segment.remove()


def receive_raw(size: int) -> None:
    """Raw TCP: read `size` bytes again and again, answer each time with the instant."""
    with socket.create_server(("0.0.0.0", 0)) as server:  # noqa: S104  # inside a namespace
        print(f"tcp:x:{server.getsockname()[1]} -", flush=True)
        peer, _ = server.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        memory = memoryview(bytearray(size))
        while True:
            got = 0
            while got < size:
                count = peer.recv_into(memory[got:])
                if not count:
                    return
                got += count
            peer.sendall(str(time.monotonic_ns()).encode().ljust(32))


@contextlib.contextmanager
def child(arguments: list[str], *, netns: bool) -> Generator[list[str]]:
    """This script in another process (and namespace); gives the words of its first line."""
    prefix = ["ip", "netns", "exec", NAMESPACE] if netns else []
    command = [*prefix, sys.executable, __file__, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()
        process.wait(10)


def memcpy_us(size: int, repeats: int) -> float:
    """Median time to copy a payload into shared memory already touched."""
    segment = Segment.create(f"{SEGMENT}-copy", layout(size), 1)
    source, target = np.ones(size, np.uint8), segment.views(0, 1)["boundary"]
    times: list[int] = []
    for _ in range(repeats):
        start = time.monotonic_ns()
        np.copyto(target[0], source)
        times.append(time.monotonic_ns() - start)
    segment.remove()
    return float(np.median(times)) / 1e3


def hop_us(address: str, size: int, repeats: int, *, netns: bool = False) -> dict[str, float]:
    """Median and p99 of one hop, the writing of the payload included."""
    with child(["--receive", address, "--size", str(size)], netns=netns) as (where, path):
        owner = Sender()
        loop = EventLoop(owner, SystemClock(), KEY)
        connection = loop.connect(where)
        assert connection is not None
        shared = where.startswith("unix")
        segment = (
            Segment.attach(Path(path).name, layout(size))
            if shared
            else Segment.private(layout(size), BUFFERS)
        )
        channel = Channel(connection, segment, shared=shared)
        source = np.ones(size, np.uint8)
        times = [one_hop(loop, owner, channel, source) for _ in range(repeats + 10)][10:]
        loop.close()
    total, beyond = np.array(times).T
    return {
        "p50": float(np.median(total)),
        "p99": float(np.percentile(total, 99)),
        "overhead_p50": float(np.median(beyond)),
    }


def one_hop(
    loop: EventLoop, owner: Sender, channel: Channel, source: NDArray[np.uint8]
) -> tuple[float, float]:
    """Time (µs) until the receiver was notified, from the first and the last byte written."""
    owner.answer = None
    start = time.monotonic_ns()
    place = channel.acquire(0)
    assert place is not None
    np.copyto(channel.segment.views(place, 1)["boundary"][0], source)
    copied = time.monotonic_ns()
    data = frame(Kind.BATCH, b"", payload_bytes=len(source))
    channel.send(data, channel.segment, place, 1)
    while owner.answer is None:
        loop.poll(None)
    return (owner.answer - start) / 1e3, (owner.answer - copied) / 1e3


def raw_tcp_us(host: str, size: int, repeats: int, *, netns: bool) -> dict[str, float]:
    """The same bytes by `sendall` into `recv_into`, nothing around them."""
    with child(["--receive-raw", "--size", str(size)], netns=netns) as (where, _):
        port = int(where.rpartition(":")[2])
        payload = bytes(size)
        times: list[float] = []
        with socket.create_connection((host, port)) as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(repeats + 10):
                start = time.monotonic_ns()
                peer.sendall(payload)
                times.append((int(peer.recv(32, socket.MSG_WAITALL)) - start) / 1e3)
    return {"p50": float(np.median(times[10:])), "p99": float(np.percentile(times[10:], 99))}


@contextlib.contextmanager
def namespace() -> Generator[None]:
    """A network namespace joined to ours by a veth pair; both go at the end."""

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)  # noqa: S607  # found on PATH

    ip("netns", "add", NAMESPACE)
    try:
        ip("link", "add", "ppbench0", "type", "veth", "peer", "name", "ppbench1")
        ip("link", "set", "ppbench1", "netns", NAMESPACE)
        ip("addr", "add", f"{HERE}/24", "dev", "ppbench0")
        ip("link", "set", "ppbench0", "up")
        inside = ("netns", "exec", NAMESPACE, "ip")
        ip(*inside, "addr", "add", f"{THERE}/24", "dev", "ppbench1")
        ip(*inside, "link", "set", "ppbench1", "up")
        ip(*inside, "link", "set", "lo", "up")
        yield
    finally:
        ip("netns", "del", NAMESPACE)


def measure(repeats: int, *, netns: bool) -> dict[str, dict[str, Any]]:
    """All sizes."""
    results: dict[str, dict[str, Any]] = {}
    for size in SIZES:
        count = max(repeats * SIZES[1] // max(size, SIZES[1]), 20)
        copy = memcpy_us(size, count)
        with tempfile.TemporaryDirectory() as folder:
            same_host = hop_us(f"unix:{folder}/s", size, count)
        host = THERE if netns else "127.0.0.1"
        tcp = hop_us(f"tcp:{host}:0", size, count, netns=netns)
        raw = raw_tcp_us(host, size, count, netns=netns)
        results[str(size)] = {
            "memcpy_us": copy,
            "same_host_us": same_host,
            "tcp_us": tcp,
            "raw_tcp_us": raw,
            "tcp_over_raw_p50": tcp["p50"] / raw["p50"],
        }
    return results


def figures(results: dict[str, dict[str, Any]], *, netns: bool) -> list[Figure]:
    """Targets."""
    where = "namespaces" if netns else "loopback"
    overheads = [
        Figure(
            name=f"overhead over memcpy p50, {size} bytes, same host",
            value=results[str(size)]["same_host_us"]["overhead_p50"],
            unit="us",
            most=OVERHEAD_TARGET_US,
        )
        for size in SIZES[1:]
    ]
    ratio = Figure(
        name=f"TCP over raw TCP p50, {SIZES[-1]} bytes, {where}",
        value=results[str(SIZES[-1])]["tcp_over_raw_p50"],
        most=TCP_TARGET,
    )
    return [*overheads, ratio]


def main() -> int:
    """Run, print the table, exit 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--netns", action="store_true")
    add_destinations(parser)
    parser.add_argument("--receive", help=argparse.SUPPRESS)
    parser.add_argument("--receive-raw", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.receive:
        receive(options.receive, options.size)
        return 0
    if options.receive_raw:
        receive_raw(options.size)
        return 0
    with namespace() if options.netns else contextlib.nullcontext():
        results = measure(options.repeats, netns=options.netns)
    measured = figures(results, netns=options.netns)
    return conclude(options, "transport", measured, {"raw": results})


if __name__ == "__main__":
    sys.exit(main())
