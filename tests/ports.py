"""Ports of this machine for servers that tests start."""

import socket
from collections.abc import Generator
from contextlib import ExitStack, contextmanager


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now, all different."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


@contextmanager
def taken_port() -> Generator[str]:
    """A port that somebody listens on while the context lasts."""
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        yield str(busy.getsockname()[1])
