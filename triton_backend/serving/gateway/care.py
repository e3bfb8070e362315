"""What the gateway does about workers that are slow or silent: drained, tried, renewed, let back.

`driver_watch` says which workers and pools those are; here it is carried out, by frames to workers
and events of the core. Not here: workers that come and go by themselves (`driver`).
"""

from typing import Protocol

from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gateway.addresses import Worker
from triton_backend.serving.gateway.counters import GatewayCounters
from triton_backend.serving.gateway.state import Books
from triton_backend.serving.gateway.watch import WorkerWatch
from triton_backend.serving.transport.wire import Kind, TimesBody, frame

TAKE_OUT_EVERY_US = 1_000_000


class Register(Protocol):
    """Who knows which workers are up."""

    def up_of(self, deployment: Deployment) -> set[int]:
        """The vGPUs of a generation whose workers are up."""
        ...

    def worker_up(self, worker: Worker, now_us: int) -> None:
        """A worker is ready and idle."""
        ...

    def worker_lost(self, worker: Worker, now_us: int) -> None:
        """A worker is gone, with what it held."""
        ...


class WorkerCare:
    """Care for the workers of one generation."""

    def __init__(
        self,
        deployment: Deployment,
        books: Books,
        counters: GatewayCounters,
        register: Register,
        now_us: int,
    ) -> None:
        self._deployment = deployment
        self._books = books
        self._counters = counters
        self._register = register
        self._taken_out_us = now_us - TAKE_OUT_EVERY_US
        self.watch = WorkerWatch(deployment, now_us)

    def look(self, now_us: int) -> None:
        """What has to be looked at now and then."""
        for vgpu in self.watch.overdue(self._books.batches.values(), now_us, self._up()):
            if self._take_out(vgpu, now_us):
                self._order(vgpu, Kind.RETIRE)
        self._try_drained(now_us)
        for change in self.watch.paces(self._books.at(now_us), self._up()):
            self._books.tell(change)

    def was_slow(self, vgpu: int, now_us: int) -> None:
        """A worker that stays slow gets no more batches until its trials are well."""
        if self.watch.stays_slow(vgpu, self._up()) and self._take_out(vgpu, now_us):
            self.watch.drain(vgpu, now_us)

    def trial_done(self, vgpu: int, times: TimesBody, now_us: int) -> None:
        """A worker ran its stage on nothing."""
        self.watch.tried(vgpu, times.end_us - times.start_us)
        self._try_drained(now_us)

    def _try_drained(self, now_us: int) -> None:
        for vgpu, order in self.watch.orders(now_us):
            self._order(vgpu, order)
        for vgpu in self.watch.well(self._up()):
            self._register.worker_up(self._worker(vgpu), now_us)

    def _take_out(self, vgpu: int, now_us: int) -> bool:
        """Take a worker for lost; one at a time, lest a machine that is busy loses them all."""
        if now_us - self._taken_out_us < TAKE_OUT_EVERY_US:
            return False
        self._taken_out_us = now_us
        self._counters.workers_drained += 1
        self._register.worker_lost(self._worker(vgpu), now_us)
        return True

    def _order(self, vgpu: int, kind: Kind) -> None:
        self._books.post(self._worker(vgpu), frame(kind, plan_tag=self._deployment.tag))

    def _worker(self, vgpu: int) -> Worker:
        return Worker(self._deployment.generation, vgpu)

    def _up(self) -> set[int]:
        return self._register.up_of(self._deployment)
