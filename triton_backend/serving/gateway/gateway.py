"""The gateway without sockets: frames in, frames out, around the shared scheduler core.

Here: which workers are up, time, the states of a rollout. It is told everything including the time, and posts frames through a function it is given,
so it is tested without a socket.
Not here: sockets and timers (`scheduler_service`), what fronts say (`driver_intake`), what workers report of
batches (`driver_reports`), requests and batches by number (`driver_books`), decisions on batches (`core.scheduler`).

States of a rollout: *serving* -> *flushing* (nothing more is dispatched) -> *flushed* (nothing in
flight) -> swap -> *serving* under the new generation. Abort returns to *serving* at any point, and a
gateway that stays *flushed* aborts by itself: who flushed it has died, and requests are waiting.
"""

from collections.abc import Iterator
from typing import Any

from triton_backend.contract.errors import InputError
from triton_backend.contract.events import Pause, PlanChanged, Resume, Timer, WorkerBack, WorkerLost
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gateway.addresses import Front, Post, Worker, plan_frame
from triton_backend.serving.gateway.care import WorkerCare
from triton_backend.serving.gateway.counters import GatewayCounters, State
from triton_backend.serving.gateway.intake import Intake
from triton_backend.serving.gateway.reports import Reports
from triton_backend.serving.gateway.state import Books, Watcher
from triton_backend.serving.transport.wire import TimesBody

# A new scheduler dispatches when all workers have reported, at the latest after this.
WAKE_US = 1_000_000
LEAST_FLUSH_LEASE_US = 100_000


class Gateway:
    """The state of one gateway.

    Args:
        deployment: the generation served first; its workers count as lost until they report.
        epoch: number of this life of the scheduler; batch ids of different lives never meet.
        watch: told every event and what the core decided on it, in order (the event log).
        post: sends a frame to a front or worker.
    """

    def __init__(
        self, deployment: Deployment, *, epoch: int, now_us: int, watch: Watcher, post: Post
    ) -> None:
        self.deployment = deployment
        self._flushing = False
        self.counters = GatewayCounters()
        self.counters.use(deployment)
        epoch <<= 32
        self._books = Books(deployment, epoch=epoch, watch=watch, post=post, counters=self.counters)
        self.intake = Intake(deployment.plan, self._books, self.counters)
        self._care = WorkerCare(deployment, self._books, self.counters, self, now_us)
        self.reports = Reports(self._books, self.counters, self._care, epoch)
        self._up: dict[int, set[int]] = {}  # vGPUs by generation
        self._prepared: Deployment | None = None
        self._flushed_us: int | None = None  # when that was seen first
        for vgpu in deployment.vgpus:
            self._books.tell(WorkerLost(now_us=self._books.at(now_us), vgpu=vgpu.index))
        # The workers of an earlier life are about to report; what fronts tell again waits for them.
        self._wake_us: int | None = now_us + WAKE_US
        self._books.tell(Pause(now_us=self._books.at(now_us)))

    # What the shell asks

    @property
    def timer_us(self) -> int | None:
        """When `timer` wants to be called."""
        return self._books.timer_us

    @property
    def state(self) -> State:
        """Where a rollout stands."""
        if not self._flushing:
            return State.SERVING
        return State.FLUSHING if self.in_flight else State.FLUSHED

    @property
    def in_flight(self) -> int:
        """Batches dispatched and not ended, those that wait for a slot included."""
        return self._books.in_flight

    def waiting(self) -> Iterator[tuple[str, int]]:
        """Queue length of every model of the plan."""
        names = (model.name for model in self.deployment.plan.models)
        return zip(names, self._books.queue_lengths(), strict=True)

    def status(self) -> dict[str, Any]:
        """State for people and flows."""
        current = self.deployment
        return {
            "state": str(self.state),
            "plan_id": current.plan.plan_id,
            "generation": current.generation,
            "workers": self._readiness(current),
            "prepared": None if self._prepared is None else self._readiness(self._prepared),
            "queued": dict(self.waiting()),
            "in_flight": self.in_flight,
            "counters": self.counters.to_dict(),
        }

    def _readiness(self, deployment: Deployment) -> dict[str, Any]:
        return {
            "plan_id": deployment.plan.plan_id,
            "generation": deployment.generation,
            "up": len(self.up_of(deployment)),
            "total": len(deployment.vgpus),
        }

    def up_of(self, deployment: Deployment) -> set[int]:
        """The vGPUs of a generation whose workers are up."""
        return self._up.get(deployment.generation, set())

    def plan_frames(self) -> list[bytes]:
        """What a front must know: the generation served, and the one prepared."""
        frames = [plan_frame(self.deployment, prepared=False)]
        if self._prepared is not None:
            frames.append(plan_frame(self._prepared, prepared=True))
        return frames

    # Workers that come and go

    def worker_up(self, worker: Worker, now_us: int) -> None:
        """A worker is ready and idle."""
        up = self._up.setdefault(worker.generation, set())
        if worker.vgpu in up:
            return
        up.add(worker.vgpu)
        if worker.generation == self.deployment.generation:
            self._care.watch.begins(worker.vgpu, now_us)
            self._books.tell(WorkerBack(now_us=self._books.at(now_us), vgpu=worker.vgpu))
            if len(up) == len(self.deployment.vgpus):
                self._wake(now_us)

    def worker_lost(self, worker: Worker, now_us: int) -> None:
        """A worker is gone, with what it held."""
        up = self._up.get(worker.generation, set())
        if worker.vgpu not in up:
            if worker.generation == self.deployment.generation:
                self._care.watch.gone(worker.vgpu)
            return
        up.discard(worker.vgpu)
        if not up:
            del self._up[worker.generation]
        self.counters.workers_lost += 1
        if worker.generation == self.deployment.generation:
            self._books.tell(WorkerLost(now_us=self._books.at(now_us), vgpu=worker.vgpu))

    # Time

    def timer(self, now_us: int) -> None:
        """The instant of `timer_us` has come.

        It comes a little before the last moment, and the core is told the last moment itself: so
        the dispatch is decided early, for an instant that lies ahead, and a late wake-up of this
        process does not cost the requests that waited for it.
        """
        books = self._books
        books.timer_us = None
        books.tell(Timer(now_us=books.at(max(now_us, books.expiry_us))))

    def look(self, now_us: int) -> None:
        """What has to be looked at now and then, whatever happens."""
        if self._wake_us is not None and now_us >= self._wake_us:
            self._wake(now_us)
        self._care.look(now_us)
        self._end_lonely_flush(now_us)

    def _wake(self, now_us: int) -> None:
        """Dispatch from now on: all workers have reported, or had the time to."""
        if self._wake_us is not None:
            self._wake_us = None
            if not self._flushing:
                self._books.tell(Resume(now_us=self._books.at(now_us)))

    def trial_done(self, worker: Worker, times: TimesBody, now_us: int) -> None:
        """A worker ran its stage on nothing."""
        self._care.trial_done(worker.vgpu, times, now_us)

    # Rollout

    def prepare(self, deployment: Deployment) -> None:
        """Accept a second generation beside the one served."""
        if deployment.generation == self.deployment.generation:
            return
        self._prepared = deployment
        for model in deployment.plan.models:
            self._books.post(Front(model.name), plan_frame(deployment, prepared=True))

    def flush(self, now_us: int) -> None:
        """Dispatch nothing more; the state becomes *flushed* when nothing is in flight."""
        if not self._flushing:
            self._flushing = True
            self._books.tell(Pause(now_us=self._books.at(now_us)))

    def _end_lonely_flush(self, now_us: int) -> None:
        """Go on where the swap does not come: it follows a flush within milliseconds."""
        if self.state is not State.FLUSHED:
            self._flushed_us = None
        elif self._flushed_us is None:
            self._flushed_us = now_us
        elif now_us - self._flushed_us >= _flush_lease_us(self.deployment):
            self.abort(now_us)

    def swap(self, now_us: int) -> None:
        """Go on under the prepared generation.

        Raises:
            InputError: nothing is prepared, its workers are not all up, or batches are in flight.
        """
        prepared = self._prepared
        if prepared is None:
            raise InputError("swap", "nothing is prepared")
        readiness = self._readiness(prepared)
        if readiness["up"] < readiness["total"]:
            raise InputError("swap", f"{readiness['up']} of {readiness['total']} workers are up")
        if self.state is not State.FLUSHED:
            raise InputError("swap", f"the gateway is {self.state}, not flushed")
        self.deployment, self._prepared = prepared, None
        self._flushing = False
        for model in prepared.plan.models:
            self._books.post(Front(model.name), plan_frame(prepared, prepared=False))
        self.counters.use(prepared)
        self._books.use(prepared)
        self.intake.use(prepared.plan)
        self._care = WorkerCare(prepared, self._books, self.counters, self, now_us)
        self.reports.use(self._care)
        self._books.tell(PlanChanged(now_us=self._books.at(now_us), plan=prepared.plan))

    def abort(self, now_us: int) -> None:
        """Forget what is prepared and go on under the plan served."""
        self._prepared = None
        if self._flushing:
            self._flushing = False
            self._books.tell(Resume(now_us=self._books.at(now_us)))


def _flush_lease_us(deployment: Deployment) -> int:
    """A third of the shortest SLO: what waited can still be served in time."""
    shortest_us = min(model.slo_us for model in deployment.plan.models)
    return max(shortest_us // 3, LEAST_FLUSH_LEASE_US)
