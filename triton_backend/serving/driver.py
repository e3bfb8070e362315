"""The gateway without sockets: frames in, frames out, around the shared scheduler core.

Here: translation between the core's events and decisions and the frames of fronts and workers;
which slots are granted; which workers are up; the states of a rollout. It is told everything
including the time, and answers with letters to post, so it is tested without a socket.
Not here: sockets and timers (`scheduler_service`), decisions on batches (`core.scheduler`).

States of a rollout: *serving* -> *flushing* (nothing more is dispatched) -> *flushed* (nothing in
flight) -> swap -> *serving* under the new generation. Abort returns to *serving* at any point.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from triton_backend.core.decisions import (
    Abort,
    Decision,
    Dispatch,
    Drop,
    DropReason,
    SetTimer,
)
from triton_backend.core.errors import InputError
from triton_backend.core.events import (
    Arrival,
    Cancel,
    Event,
    Pause,
    PlanChanged,
    Resume,
    StageDone,
    Timer,
    TransferDone,
    WorkerBack,
    WorkerLost,
)
from triton_backend.core.scheduler import Scheduler
from triton_backend.serving.counters import GatewayCounters, State
from triton_backend.serving.memory import SlotPool
from triton_backend.serving.overload import OVERLOAD, Admission, Refused
from triton_backend.serving.settings import Deployment
from triton_backend.serving.slow import PaceWatch
from triton_backend.serving.wire import (
    DROP_REASONS,
    ArrivalBody,
    DispatchBody,
    DropBody,
    HopGrant,
    Kind,
    TimesBody,
    frame,
    pack_dispatch,
    pack_drop,
    pack_json,
)

# A slot granted to an aborted batch may still be written by its sender for this long.
QUARANTINE_SLOS = 2
RENEW_EVERY_US = 1_000_000
# A new scheduler dispatches when all workers have reported, at the latest after this.
WAKE_US = 1_000_000


class Front(NamedTuple):
    """The front of a model, as a recipient."""

    model: str


class Worker(NamedTuple):
    """The worker of a vGPU of a generation, as a recipient."""

    generation: int
    vgpu: int


class Letter(NamedTuple):
    """A frame for somebody."""

    to: Front | Worker
    data: bytes


@dataclass(slots=True)
class _Request:
    front: Front
    local: int
    deadline_us: int


@dataclass(slots=True)
class _Batch:
    front: Front
    requests: tuple[int, ...]
    samples: int
    path: tuple[tuple[int, int], ...]  # (vGPU, slot) of every stage
    ends_us: tuple[int, ...]  # reserved end of every stage
    done: int = 0


@dataclass(slots=True)
class _Quarantine:
    until_us: int
    generation: int
    slots: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])


Watcher = Callable[[Event | Decision | Refused], None]


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
        self.timer_us: int | None = None
        self._expiry_us = 0
        self.counters = GatewayCounters()
        self._watch = watch
        self._epoch = epoch << 32
        self._core = Scheduler(
            deployment.plan, policy=deployment.settings.policy, nic=deployment.settings.nic
        )
        self._last_us = now_us
        self._renewed_us = now_us - RENEW_EVERY_US
        self._next_request = 0
        self._requests: dict[int, _Request] = {}
        self._numbers: dict[tuple[Front, int], int] = {}
        self._batches: dict[int, _Batch] = {}
        self._held: deque[Dispatch] = deque()
        self._quarantine: deque[_Quarantine] = deque()
        self._up: set[Worker] = set()
        self._prepared: Deployment | None = None
        self._outbox: list[Letter] = []
        self._use_plan(now_us)

    # What the shell asks

    def letters(self) -> list[Letter]:
        """Take what is to be posted."""
        outbox, self._outbox = self._outbox, []
        return outbox

    @property
    def in_flight(self) -> int:
        """Batches dispatched and not ended, those that wait for a slot included."""
        return len(self._batches) + len(self._held)

    def status(self) -> dict[str, Any]:
        """State for people and flows."""
        current = self.deployment
        return {
            "state": str(self.state),
            "plan_id": current.plan.plan_id,
            "generation": current.generation,
            "workers": self._readiness(current),
            "prepared": None if self._prepared is None else self._readiness(self._prepared),
            "queued": dict(
                zip((m.name for m in current.plan.models), self._core.queue_lengths(), strict=True)
            ),
            "in_flight": self.in_flight,
            "counters": self.counters.to_dict(),
        }

    def _readiness(self, deployment: Deployment) -> dict[str, Any]:
        up = sum(worker.generation == deployment.generation for worker in self._up)
        return {
            "plan_id": deployment.plan.plan_id,
            "generation": deployment.generation,
            "up": up,
            "total": len(deployment.vgpus),
        }

    def plan_frames(self) -> list[bytes]:
        """What a front must know: the generation served, and the one prepared."""
        frames = [_plan_frame(self.deployment, prepared=False)]
        if self._prepared is not None:
            frames.append(_plan_frame(self._prepared, prepared=True))
        return frames

    # What fronts say

    def arrival(self, front: Front, message: ArrivalBody, now_us: int) -> None:
        """A request; one the plan has no model for is dropped."""
        model = self._model_number(front.model)
        self.counters.offered[front.model] += 1
        if model is None:
            reason = DROP_REASONS.index(DropReason.MODEL_REMOVED)
            body = DropBody(message.request, reason, message.deadline_us, 0, 0)
            self._post(front, frame(Kind.DROP, pack_drop(body)))
            return
        if (front, message.request) in self._numbers:
            return  # told again after a reconnection
        now_us = self._at(now_us)
        if not self._admissions[model].admits(message.samples, message.deadline_us, now_us):
            self._refuse(front, message, model, now_us)
            return
        number, self._next_request = self._next_request, self._next_request + 1
        self._requests[number] = _Request(front, message.request, message.deadline_us)
        self._numbers[front, message.request] = number
        self._tell(
            Arrival(
                now_us=now_us,
                request_id=number,
                model=model,
                deadline_us=message.deadline_us,
                samples=message.samples,
            )
        )

    def _refuse(self, front: Front, message: ArrivalBody, model: int, now_us: int) -> None:
        """Overload: the core is not told of what not even an ideal server could answer in time."""
        self.counters.dropped[front.model, OVERLOAD] += 1
        self._watch(
            Refused(
                now_us=now_us,
                model=model,
                deadline_us=message.deadline_us,
                samples=message.samples,
            )
        )
        body = DropBody(
            message.request,
            DROP_REASONS.index(DropReason.DEADLINE),
            message.deadline_us,
            self._admissions[model].best_finish_us(now_us),
            self._core.queue_lengths()[model],
        )
        self._post(front, frame(Kind.DROP, pack_drop(body)))

    def cancel(self, front: Front, local: int, now_us: int) -> None:
        """The client of a request gave up."""
        number = self._numbers.get((front, local))
        if number is not None:
            self._tell(Cancel(now_us=self._at(now_us), request_id=number))

    def front_lost(self, front: Front, now_us: int) -> None:
        """A front is gone: nobody waits for its requests any more."""
        gone = [number for number, r in self._requests.items() if r.front == front]
        for number in gone:
            self._tell(Cancel(now_us=self._at(now_us), request_id=number))

    # What workers say

    def worker_up(self, worker: Worker, now_us: int) -> None:
        """A worker is ready and idle."""
        if worker in self._up:
            return
        self._up.add(worker)
        if worker.generation == self.deployment.generation:
            self._pace.forget(worker.vgpu)
            self._heard_us[worker.vgpu] = now_us
            self._tell(WorkerBack(now_us=self._at(now_us), vgpu=worker.vgpu))
            readiness = self._readiness(self.deployment)
            if readiness["up"] == readiness["total"]:
                self._wake(now_us)

    def worker_lost(self, worker: Worker, now_us: int) -> None:
        """A worker is gone, with what it held."""
        if worker not in self._up:
            return
        self._up.discard(worker)
        self.counters.workers_lost += 1
        if worker.generation == self.deployment.generation:
            self._tell(WorkerLost(now_us=self._at(now_us), vgpu=worker.vgpu))
            self._flushed_yet()

    def transfer_done(self, batch: int, stage: int, times: TimesBody, now_us: int) -> None:
        """A boundary arrived at a worker."""
        number = batch - self._epoch
        known = self._batches.get(number)
        if known is not None and 0 < stage < len(known.path) and stage >= known.done:
            now_us = self._at(now_us)
            times = _past(times, now_us)
            self._tell(
                TransferDone(
                    now_us=now_us,
                    batch_id=number,
                    stage=stage,
                    start_us=times.start_us,
                    end_us=times.end_us,
                )
            )

    def stage_done(self, batch: int, stage: int, times: TimesBody, now_us: int) -> None:
        """A batch left a stage: its slot there is free again."""
        number = batch - self._epoch
        known = self._batches.get(number)
        if known is None or stage != known.done or known.path[stage][0] != times.vgpu:
            return  # aborted, or of another life of the scheduler
        known.done = stage + 1
        self._heard_us[times.vgpu] = now_us
        self._slots[times.vgpu].give(known.path[stage][1])
        stage_us = times.end_us - times.start_us
        self.counters.busy(self.deployment, times.vgpu, stage_us)
        now_us = self._at(now_us)
        times = _past(times, now_us)
        self._tell(
            StageDone(
                now_us=now_us,
                batch_id=number,
                stage=stage,
                start_us=times.start_us,
                end_us=times.end_us,
            )
        )
        if known.done == len(known.path):
            self._end(number, known)
        self._watch_pace(known, times, now_us)
        self._retry_held()
        self._flushed_yet()

    def _watch_pace(self, batch: _Batch, times: TimesBody, now_us: int) -> None:
        """Renew a worker that stays slow."""
        deployment, vgpu = self.deployment, times.vgpu
        profile_us = deployment.stage_of(vgpu).latency_us_by_batch[batch.samples - 1]
        expected_us = max(round(profile_us * deployment.settings.time_stretch), 1)
        late_us = now_us - batch.ends_us[batch.done - 1]
        took_us = times.end_us - times.start_us
        if self._pace.ran(vgpu, took_us, expected_us, late_us) and self._pace.is_slow(
            vgpu, (w.vgpu for w in self._up if w.generation == deployment.generation)
        ):
            self._renew(Worker(deployment.generation, vgpu), now_us)

    def look(self, now_us: int) -> None:
        """What has to be looked at now and then, whatever happens."""
        if self._wake_us is not None and now_us >= self._wake_us:
            self._wake(now_us)
        self._give_up_overdue(now_us)

    def _give_up_overdue(self, now_us: int) -> None:
        """Give up on workers that should have ended a batch long ago and have said nothing since.

        Their node would notice a hung process too, but later; the requests can be run elsewhere now.
        """
        deployment = self.deployment
        overdue: set[int] = set()
        for batch in self._batches.values():
            if batch.done < len(batch.path):
                vgpu = batch.path[batch.done][0]
                last_us = max(batch.ends_us[batch.done], self._heard_us[vgpu])
                stage_us = deployment.stage_of(vgpu).latency_us * deployment.settings.time_stretch
                if now_us - last_us > self._pace.overdue_after_us(stage_us):
                    overdue.add(vgpu)
        for vgpu in overdue:
            if self._has_another(vgpu, overdue):
                self._renew(Worker(deployment.generation, vgpu), now_us)

    def _has_another(self, vgpu: int, overdue: set[int]) -> bool:
        """Whether the pool of a vGPU has another one that is up and well."""
        pools = self._pools
        return any(
            worker.generation == self.deployment.generation
            and worker.vgpu not in overdue
            and pools[worker.vgpu] == pools[vgpu]
            for worker in self._up
        )

    def _renew(self, worker: Worker, now_us: int) -> None:
        """Take a worker for lost and have its process replaced.

        One at a time, lest a machine that is busy loses them all.
        """
        if now_us - self._renewed_us < RENEW_EVERY_US:
            return
        self._renewed_us = now_us
        self.counters.workers_drained += 1
        self._post(worker, frame(Kind.RETIRE, plan_tag=self.deployment.tag))
        self.worker_lost(worker, now_us)

    def batch_failed(self, batch: int, stage: int, now_us: int) -> None:
        """A runtime could not run a batch: its requests are answered by the front as failed."""
        known = self._batches.get(batch - self._epoch)
        if known is None or stage != known.done:
            return
        self.counters.batches_failed += 1
        for later in range(stage, len(known.path)):
            # As if every stage that is left had taken no time: all that was reserved is free.
            times = TimesBody(known.path[later][0], now_us, now_us)
            self.transfer_done(batch, later, times, now_us)
            self.stage_done(batch, later, times, now_us)

    # Time and rollout

    def timer(self, now_us: int) -> None:
        """The instant of `timer_us` has come.

        It comes a little before the last moment, and the core is told the last moment itself: so
        the dispatch is decided early, for an instant that lies ahead, and a late wake-up of this
        process does not cost the requests that waited for it.
        """
        self.timer_us = None
        self._tell(Timer(now_us=self._at(max(now_us, self._expiry_us))))

    def prepare(self, deployment: Deployment) -> None:
        """Accept a second generation beside the one served."""
        if deployment.generation == self.deployment.generation:
            return
        self._prepared = deployment
        for model in deployment.plan.models:
            self._post(Front(model.name), _plan_frame(deployment, prepared=True))

    def flush(self, now_us: int) -> None:
        """Dispatch nothing more; the state becomes *flushed* when nothing is in flight."""
        if self.state is State.SERVING:
            self.state = State.FLUSHING
            self._tell(Pause(now_us=self._at(now_us)))
        self._flushed_yet()

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
            self._post(Front(model.name), _plan_frame(prepared, prepared=False))
        self._next_slots()
        self._tell(PlanChanged(now_us=self._at(now_us), plan=prepared.plan))

    def abort(self, now_us: int) -> None:
        """Forget what is prepared and go on under the plan served."""
        self._prepared = None
        if self.state is not State.SERVING:
            self.state = State.SERVING
            self._tell(Resume(now_us=self._at(now_us)))

    # Inside

    def _use_plan(self, now_us: int) -> None:
        self._next_slots()
        for vgpu in self.deployment.vgpus:
            if Worker(self.deployment.generation, vgpu.index) not in self._up:
                self._tell(WorkerLost(now_us=self._at(now_us), vgpu=vgpu.index))
        # The workers of an earlier life are about to report; what fronts tell again waits for them.
        self._wake_us: int | None = now_us + WAKE_US
        self._tell(Pause(now_us=self._at(now_us)))

    def _wake(self, now_us: int) -> None:
        """Dispatch from now on: all workers have reported, or had the time to."""
        if self._wake_us is not None:
            self._wake_us = None
            if self.state is State.SERVING:
                self._tell(Resume(now_us=self._at(now_us)))

    def _next_slots(self) -> None:
        deployment = self.deployment
        self._slots = [SlotPool(deployment.worker_slots(v.index)) for v in deployment.vgpus]
        self._pools = [(v.model, v.pipeline, v.stage) for v in deployment.vgpus]
        self._pace = PaceWatch(self._pools)
        self._heard_us = [0] * len(self._pools)
        self._models = {model.name: i for i, model in enumerate(deployment.plan.models)}
        self._admissions = [Admission(model) for model in deployment.plan.models]
        self._slack_us = min(
            deployment.settings.guard_us(model.slo_us) for model in deployment.plan.models
        )

    def _model_number(self, name: str) -> int | None:
        return self._models.get(name)

    def _at(self, now_us: int) -> int:
        """Instants told to the core never go back."""
        self._last_us = max(self._last_us, now_us)
        return self._last_us

    def _post(self, to: Front | Worker, data: bytes) -> None:
        self._outbox.append(Letter(to, data))

    def _tell(self, event: Event) -> None:
        self._watch(event)
        for decision in self._core.handle(event):
            self._watch(decision)
            match decision:
                case Dispatch():
                    self._held.append(decision)
                case Drop():
                    self._drop(decision)
                case Abort():
                    self._abort(decision.batch_id, event.now_us)
                case SetTimer():
                    self._expiry_us = decision.at_us
                    self.timer_us = decision.at_us - self._slack_us
        self._retry_held()

    def _drop(self, decision: Drop) -> None:
        request = self._requests.pop(decision.request_id, None)
        if request is None:
            return
        del self._numbers[request.front, request.local]
        self.counters.dropped[request.front.model, decision.reason] += 1
        body = DropBody(
            request.local,
            DROP_REASONS.index(decision.reason),
            decision.deadline_us,
            decision.best_finish_us or 0,
            decision.queue_position,
        )
        self._post(request.front, frame(Kind.DROP, pack_drop(body)))

    def _retry_held(self) -> None:
        """Send what was dispatched, first come first served, as far as slots are free."""
        self._end_quarantine()
        while self._held:
            slots = self._grant(self._held[0])
            if slots is None:
                return
            self._send(self._held.popleft(), slots)

    def _grant(self, dispatch: Dispatch) -> list[int] | None:
        pools = [self._slots[hop.vgpu] for hop in dispatch.hops]
        if not all(pool.free for pool in pools):
            return None
        return [pool.take() or 0 for pool in pools]

    def _send(self, dispatch: Dispatch, slots: list[int]) -> None:
        hops = tuple(
            HopGrant(hop.vgpu, slot, hop.transfer_start_us, hop.start_us, hop.end_us)
            for hop, slot in zip(dispatch.hops, slots, strict=True)
        )
        requests = [self._requests[number] for number in dispatch.request_ids]
        front = requests[0].front
        self._batches[dispatch.batch_id] = _Batch(
            front,
            dispatch.request_ids,
            dispatch.samples,
            tuple((hop.vgpu, hop.slot) for hop in hops),
            tuple(hop.end_us for hop in hops),
        )
        self.counters.dispatched(front.model, dispatch.samples)
        body = DispatchBody(
            dispatch.pipeline, dispatch.samples, hops, tuple(r.local for r in requests)
        )
        self._post(
            front,
            frame(
                Kind.DISPATCH,
                pack_dispatch(body),
                batch_id=self._epoch + dispatch.batch_id,
                plan_tag=self.deployment.tag,
            ),
        )

    def _abort(self, batch_id: int, now_us: int) -> None:
        known = self._batches.pop(batch_id, None)
        if known is None:
            self._held = deque(d for d in self._held if d.batch_id != batch_id)
            return
        notice = frame(Kind.ABORT, batch_id=self._epoch + batch_id, plan_tag=self.deployment.tag)
        self._post(known.front, notice)
        generation = self.deployment.generation
        for vgpu, _ in known.path[known.done :]:
            self._post(Worker(generation, vgpu), notice)
        slo_us = self.deployment.model_of(known.path[0][0]).slo_us
        self._quarantine.append(
            _Quarantine(
                now_us + QUARANTINE_SLOS * slo_us, generation, list(known.path[known.done :])
            )
        )

    def _end_quarantine(self) -> None:
        while self._quarantine and self._quarantine[0].until_us <= self._last_us:
            ended = self._quarantine.popleft()
            if ended.generation == self.deployment.generation:
                for vgpu, slot in ended.slots:
                    self._slots[vgpu].give(slot)

    def _end(self, number: int, batch: _Batch) -> None:
        del self._batches[number]
        for request_id in batch.requests:
            request = self._requests.pop(request_id, None)
            if request is not None:
                del self._numbers[request.front, request.local]

    def _flushed_yet(self) -> None:
        if self.state is State.FLUSHING and not self.in_flight:
            self.state = State.FLUSHED

    def waiting(self) -> Iterator[tuple[str, int]]:
        """Queue length of every model of the plan."""
        names = (model.name for model in self.deployment.plan.models)
        return zip(names, self._core.queue_lengths(), strict=True)


def _past(times: TimesBody, now_us: int) -> TimesBody:
    """Times of another host may be a little ahead of ours; nothing ended after it was told."""
    end_us = min(times.end_us, now_us)
    return TimesBody(times.vgpu, min(times.start_us, end_us), end_us)


def _plan_frame(deployment: Deployment, *, prepared: bool) -> bytes:
    body = {
        "generation": deployment.generation,
        "plan_id": deployment.plan.plan_id,
        "prepared": prepared,
    }
    return frame(Kind.PLAN, pack_json(body), plan_tag=deployment.tag)
