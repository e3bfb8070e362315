"""Policy `round-robin`: every machine gathers batches of its own (`2d` of Piccolo, section III-B).

Simulation only. Requests are dealt to vGPUs as by `nexus`, in proportion to their planned rates, so
each fills its batch at its own rate alone. A vGPU waits for a full batch of the planned size, and
runs a smaller one only when its head could wait no longer.
"""

from collections import deque
from functools import partial

from triton_backend.simulator.papers.nexus import Nexus
from triton_backend.simulator.papers.whole_models import (
    Request,
    Row,
    Run,
    samples_of,
    simulate_whole,
)


class RoundRobin(Nexus):
    """The queues of one run."""

    def batch(self, run: Run, vgpu: int, row: Row, queue: deque[Request]) -> list[Request]:
        """A full batch, or what waits at the last moment of its head."""
        waiting = samples_of(queue)
        if 0 < waiting < row.planned:
            latest_us = queue[0].deadline_us - row.takes_us(waiting)
            if run.now_us < latest_us:
                run.wake(latest_us, vgpu)
                return []
        return super().batch(run, vgpu, row, queue)

    def due(self, run: Run, subject: int) -> None:
        """The last moment of a head."""
        self.freed(run, subject)


simulate = partial(simulate_whole, RoundRobin, ())
