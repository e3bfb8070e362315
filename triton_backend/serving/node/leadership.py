"""Which of a node's models starts and watches its workers, where each of two gateways has one.

Workers belong to both servers, and outlive either (`OwnerWatch`). One of the models *leads*:

    loaded --> waits --> leads, finds the workers that live --> leaves, or dies
                 ^                                                   |
                 +------------- whose lock is free then <------------+

The leader has a lock that ends with its process, and so is what says that a model is there at all:
the last to leave ends the workers. Where there is one gateway, its model leads always.
"""

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path

from triton_backend.serve_folder.names import short_name
from triton_backend.serve_folder.settings import ServeSettings

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class NodeLeadership:
    """Leadership among the gateways' models of a node."""

    def __init__(self, settings: ServeSettings, node: str) -> None:
        self.alone = settings.gateways == 1
        self._lead = _path(settings, node, "lead")
        self._presences = [_path(settings, node, str(one + 1)) for one in range(settings.gateways)]
        self._own = settings.gateway
        self._lead_fd: int | None = None
        self._presence_fd: int | None = None

    @contextlib.contextmanager
    def begin(self) -> Generator[None]:
        """Be there; what is done within, here or later, the other one does not do meanwhile.

        Raises:
            OSError: the locks cannot be made.
        """
        if self.alone:
            yield
            return
        if self._presence_fd is None:
            self._presence_fd = _locked(self._presences[self._own], fcntl.LOCK_EX)
        both = _locked(self._lead.with_suffix(".begin"), fcntl.LOCK_EX)
        try:
            yield
        finally:
            os.close(both)

    def acquire(self) -> bool:
        """Lead, where the other one does not."""
        if not self.alone and self._lead_fd is None:
            with contextlib.suppress(BlockingIOError):
                self._lead_fd = _locked(self._lead, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self.alone or self._lead_fd is not None

    def release(self) -> bool:
        """Be there no longer; whether the other one is, which then goes on with the workers."""
        if self._presence_fd is not None:
            os.close(self._presence_fd)
            self._presence_fd = None
        goes_on = not self.alone and any(map(_is_held, self._presences))
        if self._lead_fd is not None:
            os.close(self._lead_fd)
            self._lead_fd = None
        return goes_on


def _path(settings: ServeSettings, node: str, what: str) -> Path:
    return settings.socket_folder / f"node-{short_name(node)}-{what}.lock"


def _locked(path: Path, how: int) -> int:
    fd = os.open(path, _FLAGS, 0o600)
    try:
        fcntl.flock(fd, how)
    except OSError:
        os.close(fd)
        raise
    return fd


def _is_held(path: Path) -> bool:
    try:
        os.close(_locked(path, fcntl.LOCK_SH | fcntl.LOCK_NB))
    except BlockingIOError:
        return True
    return False
