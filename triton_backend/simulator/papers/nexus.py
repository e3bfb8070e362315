"""Policy `nexus`: duty cycles with a queue per GPU, none looks at another's (Nexus, SOSP 2019).

Simulation only. For plans of the planner `nexus` (squishy bin packing); any plan of whole models
will do. A request is sent to a vGPU when it comes, whatever waits there: of all that run its model,
to the one furthest behind its share of the planned rate (ties: the lowest number), which is round
robin where shares are equal.

A vGPU runs its models in turn, in plan order, and leaves out those without waiting requests. A
model's turn is one batch of at most the planned size: heads go that would make every batch after
them smaller (early drop, section 6.3), then the longest run of whole requests that ends by the
head's deadline is run. What waits does not wait for a fuller batch, so an idle GPU takes one
request.
"""

from collections import deque
from functools import partial

from triton_backend.simulator.papers.whole_models import (
    Request,
    Row,
    Run,
    enqueue,
    samples_of,
    simulate_whole,
    take,
    within,
)
from triton_backend.simulator.scenario import SimOptions


class Nexus:
    """The queues of one run."""

    def __init__(self, rows: tuple[Row, ...], _options: SimOptions) -> None:
        backends = [(row, vgpu) for row in rows for vgpu in row.vgpus]
        models = 1 + max(row.model for row in rows)
        self._backends = tuple(
            tuple(key for key in backends if key[0].model == model) for model in range(models)
        )
        self._sent = {(row.number, vgpu): 0 for row, vgpu in backends}
        self._queues = {(row.number, vgpu): deque[Request]() for row, vgpu in backends}
        self._turns = {
            vgpu: deque(row for row, other in backends if other == vgpu) for _, vgpu in backends
        }

    def arrive(self, run: Run, request: Request) -> None:
        """It is sent to a vGPU for good."""
        row, vgpu = min(self._backends[request.model], key=self._behind)
        self._sent[row.number, vgpu] += 1
        enqueue(self._queues[row.number, vgpu], request)
        self.freed(run, vgpu)

    def freed(self, run: Run, vgpu: int) -> None:
        """The next turn with a waiting request."""
        turns = self._turns[vgpu]
        for _ in range(len(turns)):
            if run.running[vgpu] is not None:
                return
            row = turns[0]
            turns.rotate(-1)
            queue = self._queues[row.number, vgpu]
            if batch := self.batch(run, vgpu, row, queue):
                take(queue, batch)
                run.start(vgpu, row, batch)

    def due(self, run: Run, subject: int) -> None:
        """It asks for no instant."""

    def batch(self, run: Run, vgpu: int, row: Row, queue: deque[Request]) -> list[Request]:
        """The batch of a turn, empty where there is none; drops the heads that stand in its way."""
        del vgpu
        while queue:
            head = queue[0]
            if head.samples <= row.largest:
                size = max(head.samples, min(row.planned, samples_of(queue)))
                if run.now_us + row.takes_us(size) <= head.deadline_us:
                    return within(queue, size)
            run.drop(queue.popleft())
        return []

    def _behind(self, backend: tuple[Row, int]) -> tuple[float, int]:
        row, vgpu = backend
        share = max(row.rate_rps, 1e-9) / len(row.vgpus)
        return (self._sent[row.number, vgpu] + 1) / share, vgpu


simulate = partial(simulate_whole, Nexus, ())
