"""Ports of this machine for servers that tests start."""

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager

# Below Linux's range of ephemeral ports (32768 and up): a port of that range may become the near
# end of anybody's connection between the moment a test finds it free and a server listens on it.
LOWEST, END = 20_000, 32_000
TEST_PROCESSES = 8  # each has a part of the ports; xdist names them gw0, gw1, ...
PER_PROCESS = (END - LOWEST) // TEST_PROCESSES


class _Ports:
    """Hands a process its part of the ports in turn, so that none is given twice in a row."""

    def __init__(self) -> None:
        name = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
        self._first = LOWEST + int(name.removeprefix("gw")) % TEST_PROCESSES * PER_PROCESS
        # Runs of tests beside each other (two checkouts) begin elsewhere.
        self._given = os.getpid() * 20 % PER_PROCESS

    def in_a_row(self, count: int) -> list[int]:
        """Free ports, each one after the one before."""
        for _ in range(PER_PROCESS):
            start = self._given % PER_PROCESS
            self._given = start + count
            ports = [self._first + start + offset for offset in range(count)]
            if start + count <= PER_PROCESS and all(_is_free(port) for port in ports):
                return ports
        raise AssertionError(f"no {count} free ports in a row")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


_PORTS = _Ports()


def free_ports(count: int) -> list[int]:
    """Free ports, in a row, as those of the metrics of two gateways are."""
    return _PORTS.in_a_row(count)


@contextmanager
def taken_port() -> Generator[str]:
    """A port in use while the context lasts."""
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        yield str(busy.getsockname()[1])
