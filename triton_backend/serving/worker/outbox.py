"""What is to be said about batches, in order, by whichever thread has the time.

A vGPU that waits for its worker to write frames does nothing meanwhile: at 10 ms a batch, half a
millisecond is a twentieth of its rate. So the thread that runs batches leaves what it has to say
here when the next batch is due already, and the thread that polls says it.

Here: the order. Not here: what is said (`worker_onward`).
"""

import threading
from collections import deque
from collections.abc import Callable


class Errands:
    """Run once each, in the order in which they were left."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._one_at_a_time = threading.Lock()

    @property
    def waiting(self) -> bool:
        """Whether any is left."""
        return bool(self._waiting)

    def leave(self, errand: Callable[..., object], *arguments: object) -> None:
        """For the next `run`; from any thread."""
        self._waiting.append((errand, arguments))

    def run(self) -> None:
        """Run all that were left; what another thread has begun has ended then, too."""
        with self._one_at_a_time:
            self._run_waiting()

    def run_unless_begun(self) -> None:
        """Run all that were left, unless another thread does so just now."""
        if self._waiting and self._one_at_a_time.acquire(blocking=False):
            try:
                self._run_waiting()
            finally:
                self._one_at_a_time.release()

    def _run_waiting(self) -> None:
        while self._waiting:
            errand, arguments = self._waiting.popleft()
            errand(*arguments)
