"""Policy `shepherd`: the largest batch first, and preemption (Shepherd, NSDI 2023).

Simulation only. Of the models of a pool a free vGPU (lowest number first) runs the one that has the
largest batch: the longest run of whole requests from the head that ends by the head's deadline
(ties: the earliest deadline, then the lower number). A head that not even alone would be in time is
dropped.

A request that finds all vGPUs busy may make its model's batch large enough to break another off:
one that is at least three times (`PREEMPTS`) as large as the smallest that runs (ties: the lowest
number of vGPU). The work is lost, and its requests wait again at their old places.

Not here: how Shepherd divides GPUs and models into groups; a pool is a group.
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
)
from triton_backend.simulator.scenario import SimOptions

PREEMPTS = 3


class Shepherd:
    """The queues of one run."""

    def __init__(self, rows: tuple[Row, ...], _options: SimOptions) -> None:
        models = 1 + max(row.model for row in rows)
        self._queues = tuple(deque[Request]() for _ in range(models))
        self._rows = tuple(tuple(row for row in rows if row.model == m) for m in range(models))
        vgpus = max(row.vgpus.stop for row in rows)
        self._on = tuple(tuple(row for row in rows if v in row.vgpus) for v in range(vgpus))

    def arrive(self, run: Run, request: Request) -> None:
        """A free vGPU takes it, or it makes a batch that another is broken off for."""
        enqueue(self._queues[request.model], request)
        rows = self._rows[request.model]
        for vgpu in (vgpu for row in rows for vgpu in row.vgpus):
            if run.running[vgpu] is None:
                self.freed(run, vgpu)
                return
        for row in rows:
            batch = self._batch(run, row)
            busy = [(b.samples, v) for v in row.vgpus if (b := run.running[v]) is not None]
            least, vgpu = min(busy)
            if batch and samples_of(batch) >= PREEMPTS * least:
                take(self._queues[row.model], batch)
                for broken in run.preempt(vgpu):
                    enqueue(self._queues[broken.model], broken)
                run.start(vgpu, row, batch)
                return

    def freed(self, run: Run, vgpu: int) -> None:
        """The largest batch of its models goes."""
        batches = [(row, self._batch(run, row)) for row in self._on[vgpu]]
        filled = [(row, batch) for row, batch in batches if batch]
        if filled:
            row, batch = min(
                filled, key=lambda one: (-samples_of(one[1]), one[1][0].deadline_us, one[0].number)
            )
            take(self._queues[row.model], batch)
            run.start(vgpu, row, batch)

    def due(self, run: Run, subject: int) -> None:
        """It asks for no instant."""

    def _batch(self, run: Run, row: Row) -> list[Request]:
        """A model's largest batch now; drops heads that nothing serves in time any more."""
        queue = self._queues[row.model]
        while queue:
            samples = 0
            batch: list[Request] = []
            for request in queue:
                samples += request.samples
                if samples > row.largest:
                    break
                if run.now_us + row.takes_us(samples) > queue[0].deadline_us:
                    break
                batch.append(request)
            if batch:
                return batch
            if self._kept_elsewhere(run, queue[0]):
                return []
            run.drop(queue.popleft())
        return []

    def _kept_elsewhere(self, run: Run, head: Request) -> bool:
        """True if another pool of its model would still serve a request in time."""
        return any(
            head.samples <= row.largest
            and run.now_us + row.takes_us(head.samples) <= head.deadline_us
            for row in self._rows[head.model]
        )


simulate = partial(simulate_whole, Shepherd, ())
