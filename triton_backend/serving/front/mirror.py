"""The next requests that a front answers, copied for an order (`serve_folder.mirror`)."""

import logging
import threading

from triton_backend.runtimes.clock import Clock
from triton_backend.serve_folder.mirror import Mirrored, MirrorOrder, write_copies
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.transport.shared_memory import Arrays

MOST_BYTES = 1 << 28
_LOG = logging.getLogger(__name__)


class Mirror:
    """Keeps nothing until there is an order; `look` once a second, `copy` from any thread.

    Attributes:
        wanted: how many requests are still to be kept; 0 while there is no order.
    """

    def __init__(self, model: str, settings: ServeSettings, clock: Clock) -> None:
        self.wanted = 0
        self._model = model
        self._folder, self._gateway = settings.folder, settings.gateway
        self._clock = clock
        self._order: MirrorOrder | None = None
        self._kept: list[Mirrored] = []
        self._bytes = 0
        self._lock = threading.Lock()

    def copy(self, inputs: Arrays, outputs: Arrays) -> None:
        """Copy the first sample of a request and of its answer.

        Texts are not kept, and nothing beyond `MOST_BYTES`.
        """
        if any(array.dtype.hasobject for array in (*inputs.values(), *outputs.values())):
            return
        copied = Mirrored(
            inputs={name: array[:1].copy() for name, array in inputs.items()},
            outputs={name: array[:1].copy() for name, array in outputs.items()},
        )
        with self._lock:
            if self.wanted <= 0:
                return
            self._kept.append(copied)
            self._bytes += copied.nbytes
            self.wanted = 0 if self._bytes >= MOST_BYTES else self.wanted - 1

    def look(self) -> None:
        """Begin an order, or write what was kept for the one that is complete or withdrawn."""
        found = MirrorOrder.read(self._folder)
        if found is not None and found.until_us < self._clock.now_us():
            found = None
        former = self._order
        if former is not None and (found != former or not self.wanted) and self._kept:
            self._write(former)
        if found != former:
            asked = found.requests if found is not None and self._model in found.models else 0
            with self._lock:
                self._order, self._kept, self._bytes = found, [], 0
                self.wanted = asked

    def _write(self, order: MirrorOrder) -> None:
        with self._lock:
            self.wanted, kept, self._kept = 0, self._kept, []
        if order.until_us < self._clock.now_us():
            return
        try:
            write_copies(order.copies(self._folder, self._model, self._gateway), kept)
        except OSError:
            _LOG.exception("copies of requests of %s", self._model)
