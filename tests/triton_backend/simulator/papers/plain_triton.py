"""The rules of the policy `triton` in plain Python: the compiled ones must agree with them."""

from collections import deque
from functools import partial

from triton_backend.contract.units import ms_to_us
from triton_backend.scheduler.policies.late_rules import TIMEOUTS
from triton_backend.simulator.papers.whole_models import (
    Request,
    Row,
    Run,
    samples_of,
    simulate_whole,
    take,
    within,
)
from triton_backend.simulator.scenario import SimOptions


class Plain:
    """The queues of one run."""

    def __init__(self, rows: tuple[Row, ...], options: SimOptions) -> None:
        models = 1 + max(row.model for row in rows)
        self._queues = tuple(deque[Request]() for _ in range(models))
        self._rows = tuple(tuple(row for row in rows if row.model == m) for m in range(models))
        vgpus = max(row.vgpus.stop for row in rows)
        self._on = tuple(tuple(row for row in rows if v in row.vgpus) for v in range(vgpus))
        self._delay_us = (
            0 if options.batch_timeout_ms is None else ms_to_us(options.batch_timeout_ms)
        )
        self._share = options.batch_timeout_share or 0.0

    def arrive(self, run: Run, request: Request) -> None:
        """Wait up to the maximum delay unless a batch of a preferred size is there."""
        self._queues[request.model].append(request)
        if delay_us := self._delay_of(request):
            run.wake(run.now_us + delay_us, request.model)
        self._look(run, request.model)

    def freed(self, run: Run, vgpu: int) -> None:
        """The model goes that has a batch and has waited longest."""
        batches = [(row, self._batch(run, row)) for row in self._on[vgpu]]
        ready = [(row, batch) for row, batch in batches if batch]
        if ready:
            row, batch = min(ready, key=lambda one: (one[1][0].number, one[0].number))
            take(self._queues[row.model], batch)
            run.start(vgpu, row, batch)

    def due(self, run: Run, subject: int) -> None:
        """The oldest of a model has waited for as long as it may."""
        self._look(run, subject)

    def _look(self, run: Run, model: int) -> None:
        for row in self._rows[model]:
            for vgpu in row.vgpus:
                if not self._queues[model]:
                    return
                if run.running[vgpu] is None:
                    self.freed(run, vgpu)

    def _batch(self, run: Run, row: Row) -> list[Request]:
        """The batch of a free instance; rejects requests past their deadline."""
        queue = self._queues[row.model]
        while queue and (queue[0].deadline_us < run.now_us or queue[0].samples > row.largest):
            run.drop(queue.popleft())
        if not queue:
            return []
        waiting = samples_of(queue)
        for size in sorted({row.planned, row.largest}, reverse=True):
            if waiting >= size and (batch := within(queue, size)):
                return batch
        if run.now_us >= queue[0].arrival_us + self._delay_of(queue[0]):
            return within(queue, row.largest)
        return []

    def _delay_of(self, request: Request) -> int:
        slo_us = request.deadline_us - request.arrival_us
        return self._delay_us or round(self._share * slo_us)


simulate = partial(simulate_whole, Plain, TIMEOUTS)
