"""The gateway without sockets: frames in, frames out, around the shared scheduler core.

Here: what workers say, turned into events of the core; which workers are up; the states of a
rollout. It is told everything including the time, and answers with letters to post, so it is tested
without a socket.
Not here: sockets and timers (`scheduler_service`), what fronts say (`driver_intake`), requests and
batches by number (`driver_books`), decisions on batches (`core.scheduler`).

States of a rollout: *serving* -> *flushing* (nothing more is dispatched) -> *flushed* (nothing in
flight) -> swap -> *serving* under the new generation. Abort returns to *serving* at any point, and a
gateway that stays *flushed* aborts by itself: who flushed it has died, and requests are waiting.
"""

from collections.abc import Iterator
from typing import Any

from triton_backend.core.errors import InputError
from triton_backend.core.events import (
    Pause,
    PlanChanged,
    Resume,
    StageDone,
    Timer,
    TransferDone,
    WorkerBack,
    WorkerLost,
)
from triton_backend.serving.counters import GatewayCounters, State
from triton_backend.serving.driver_books import Batch, Books, Watcher
from triton_backend.serving.driver_care import WorkerCare
from triton_backend.serving.driver_intake import Intake
from triton_backend.serving.driver_letters import Front, Letter, Worker, plan_frame
from triton_backend.serving.settings import Deployment
from triton_backend.serving.wire import TimesBody

# A new scheduler dispatches when all workers have reported, at the latest after this.
WAKE_US = 1_000_000
LEAST_FLUSH_LEASE_US = 100_000


class Gateway:
    """The state of one gateway.

    Args:
        deployment: the generation served first; its workers count as lost until they report.
        epoch: number of this life of the scheduler; batch ids of different lives never meet.
        watch: told every event and decision of the core, in order (the event log).
    """

    def __init__(self, deployment: Deployment, *, epoch: int, now_us: int, watch: Watcher) -> None:
        self.deployment = deployment
        self.state = State.SERVING
        self.counters = GatewayCounters()
        self._epoch = epoch << 32
        self._books = Books(deployment, epoch=self._epoch, watch=watch, counters=self.counters)
        self.intake = Intake(deployment.plan, self._books, self.counters)
        self._care = WorkerCare(deployment, self._books, self.counters, self, now_us)
        self._up: dict[int, set[int]] = {}  # vGPUs by generation
        self._prepared: Deployment | None = None
        self._flushed_us: int | None = None  # when that was seen first
        for vgpu in deployment.vgpus:
            self._books.tell(WorkerLost(now_us=self._books.at(now_us), vgpu=vgpu.index))
        # The workers of an earlier life are about to report; what fronts tell again waits for them.
        self._wake_us: int | None = now_us + WAKE_US
        self._books.tell(Pause(now_us=self._books.at(now_us)))

    # What the shell asks

    def letters(self) -> list[Letter]:
        """Take what is to be posted."""
        return self._books.letters()

    @property
    def timer_us(self) -> int | None:
        """When `timer` wants to be called."""
        return self._books.timer_us

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

    # What workers say

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
            self._flushed_yet()

    def transfer_done(self, batch: int, stage: int, times: TimesBody, now_us: int) -> None:
        """A boundary arrived at a worker."""
        number = batch - self._epoch
        known = self._books.batches.get(number)
        if known is not None and 0 < stage < len(known.path) and stage >= known.done:
            now_us = self._books.at(now_us)
            start_us, end_us = _past(times, now_us)
            self._books.tell(
                TransferDone(
                    now_us=now_us, batch_id=number, stage=stage, start_us=start_us, end_us=end_us
                )
            )

    def stage_done(self, batch: int, stage: int, times: TimesBody, now_us: int) -> None:
        """A batch left a stage: its slot there is free again."""
        number, vgpu = batch - self._epoch, times.vgpu
        known = self._books.batches.get(number)
        if known is None or not known.expects(stage) or known.path[stage][0] != vgpu:
            return  # aborted, or of another life of the scheduler
        if stage > known.done:
            # Two workers' sockets are read in any order where this process was kept waiting.
            known.early[stage] = times
            return
        known.done = stage + 1
        self._care.watch.heard(vgpu, now_us)
        self._books.slots.give(*known.path[stage])
        self.counters.busy(self.deployment, vgpu, times.end_us - times.start_us)
        now_us = self._books.at(now_us)
        start_us, end_us = _past(times, now_us)
        self._books.tell(
            StageDone(now_us=now_us, batch_id=number, stage=stage, start_us=start_us, end_us=end_us)
        )
        if known.ended:
            self._books.end(number)
        times = TimesBody(vgpu, start_us, end_us)
        self._care.stage_ended(known, times, now_us)
        self._books.send_held()
        self._flushed_yet()
        self._catch_up(batch, known, now_us)

    def _catch_up(self, batch: int, known: Batch, now_us: int) -> None:
        """Hear what the next stage said before its turn."""
        if known.done not in known.early:
            return
        times = known.early.pop(known.done)
        if times is None:
            self.batch_failed(batch, known.done, now_us)
        else:
            self.stage_done(batch, known.done, times, now_us)

    def batch_failed(self, batch: int, stage: int, now_us: int) -> None:
        """A runtime could not run a batch: its requests are answered by the front as failed."""
        known = self._books.batches.get(batch - self._epoch)
        if known is None or not known.expects(stage):
            return
        if stage > known.done:
            known.early[stage] = None
            return
        known.early.clear()
        self.counters.batches_failed += 1
        for later in range(stage, len(known.path)):
            # As if every stage that is left had taken no time: all that was reserved is free.
            times = TimesBody(known.path[later][0], now_us, now_us)
            self.transfer_done(batch, later, times, now_us)
            self.stage_done(batch, later, times, now_us)

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
            if self.state is State.SERVING:
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
        if self.state is State.SERVING:
            self.state = State.FLUSHING
            self._books.tell(Pause(now_us=self._books.at(now_us)))
        self._flushed_yet()

    def _flushed_yet(self) -> None:
        if self.state is State.FLUSHING and not self.in_flight:
            self.state = State.FLUSHED

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
        self.state = State.SERVING
        for model in prepared.plan.models:
            self._books.post(Front(model.name), plan_frame(prepared, prepared=False))
        self._books.use(prepared)
        self.intake.use(prepared.plan)
        self._care = WorkerCare(prepared, self._books, self.counters, self, now_us)
        self._books.tell(PlanChanged(now_us=self._books.at(now_us), plan=prepared.plan))

    def abort(self, now_us: int) -> None:
        """Forget what is prepared and go on under the plan served."""
        self._prepared = None
        if self.state is not State.SERVING:
            self.state = State.SERVING
            self._books.tell(Resume(now_us=self._books.at(now_us)))


def _flush_lease_us(deployment: Deployment) -> int:
    """A third of the shortest SLO: what waited can still be served in time."""
    shortest_us = min(model.slo_us for model in deployment.plan.models)
    return max(shortest_us // 3, LEAST_FLUSH_LEASE_US)


def _past(times: TimesBody, now_us: int) -> tuple[int, int]:
    """Times of another host may be a little ahead of ours; nothing ended after it was told."""
    end_us = min(times.end_us, now_us)
    return min(times.start_us, end_us), end_us
