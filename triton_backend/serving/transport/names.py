"""Names of hosts, looked up beside the thread that wants to connect.

A look-up takes as long as the machine's resolver likes, many seconds where its server is away; the
time-out of a socket does not bound it. So each is done in a thread of its own, one at a time for a
host. A thread that connects waits a little for it, once, and goes on with the address known before,
if there is one.
"""

import ipaddress
import logging
import socket
import threading

_LOG = logging.getLogger(__name__)


class _LookUp:
    """A look-up under way: `ended`, `given_up`: a caller has waited for it in vain."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.given_up = False


class HostNames:
    """The addresses of hosts by their names; used from any thread."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._under_way: dict[str, _LookUp] = {}
        self._missing: set[str] = set()  # not found, the last time
        self._lock = threading.Lock()

    def look_up(self, host: str) -> None:
        """Look a host up ahead of its use."""
        if not _is_numeric(host):
            self._begun(host)

    def address(self, host: str, patience_s: float) -> str | None:
        """The IPv4 address of a host, the one known before where a look-up takes longer.

        None: none is known.
        """
        if _is_numeric(host):
            return host
        look_up = self._begun(host)
        if not look_up.given_up:
            look_up.given_up = not look_up.ended.wait(patience_s)
        return self._known.get(host)

    def _begun(self, host: str) -> _LookUp:
        """The look-up of a host that is under way, begun now where none is."""
        with self._lock:
            known = self._under_way.get(host)
            if known is not None:
                return known
            begun = self._under_way[host] = _LookUp()
        try:
            threading.Thread(target=self._ask, args=(host, begun), daemon=True).start()
        except RuntimeError as error:  # no thread is left: the next connection asks again
            self._ended(host, begun, error)
        return begun

    def _ask(self, host: str, look_up: _LookUp) -> None:
        try:
            found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
            self._known[host] = str(found[0][4][0])
            self._ended(host, look_up)
        except (OSError, UnicodeError, IndexError) as error:
            self._ended(host, look_up, error)

    def _ended(self, host: str, look_up: _LookUp, error: Exception | None = None) -> None:
        if error is None:
            self._missing.discard(host)
        elif host not in self._missing:
            self._missing.add(host)
            _LOG.warning("host %s is not found: %s", host, error)
        with self._lock:
            del self._under_way[host]
        look_up.ended.set()


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True
