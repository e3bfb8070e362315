"""The gateway without sockets: what fronts and workers say goes in, frames for them come out.

`Gateway` owns the state around the shared scheduler core: what a request or batch belongs to, the
slots of shared memory granted to batches, which workers are up, and where a rollout stands. It is
given the time with every call and sends through a function it is given, so it is tested without a
socket. Every event of the core passes `Gateway._apply`, which carries out what the core decides.

Not here: sockets and timers (`service`), which batch runs when and where (`scheduler`), which
worker is slow or silent (`liveness.supervisor`), the steps of a rollout (`rollout`).
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from triton_backend.contract.decisions import (
    FIRST_TASK,
    Abort,
    Decision,
    Dispatch,
    Drop,
    DropReason,
    Hop,
    JobDone,
    JobDropped,
    ModuleSkipped,
    SetTimer,
    SharedBatch,
    TaskReady,
)
from triton_backend.contract.errors import InputError
from triton_backend.contract.events import (
    Arrival,
    BatchLost,
    Cancel,
    Emitted,
    Event,
    JobArrival,
    JobCancel,
    Pause,
    PlanChanged,
    Resume,
    SharedBatchDone,
    SharedBatchStarted,
    StageDone,
    Timer,
    TransferDone,
    WorkerBack,
    WorkerLost,
)
from triton_backend.contract.plan import Pool, StagePlace
from triton_backend.scheduler.handover import matching_queues
from triton_backend.scheduler.policies.late_rules import of_late_binding
from triton_backend.scheduler.scheduler import Scheduler
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gateway.admission import Refused, RefusedJob
from triton_backend.serving.gateway.applications.job import InputSlot, Job, RetainedOutputSlot
from triton_backend.serving.gateway.applications.jobs import Jobs
from triton_backend.serving.gateway.batches.generation import Generation, ThreadsOf
from triton_backend.serving.gateway.batches.generations import Generations
from triton_backend.serving.gateway.batches.held_slots import HeldSlot, HeldSlots
from triton_backend.serving.gateway.batches.in_flight import BatchInFlight, SharedBatchInFlight
from triton_backend.serving.gateway.batches.shared import SharedBatches
from triton_backend.serving.gateway.batches.slots import WorkerSlots
from triton_backend.serving.gateway.counters import GatewayCounters
from triton_backend.serving.gateway.peers.addresses import (
    Address,
    FrontAddress,
    Send,
    WorkerAddress,
)
from triton_backend.serving.gateway.peers.deferred import DeferredFrames
from triton_backend.serving.gateway.peers.fronts import Fronts, drop_frame, fronts_in, plan_frame
from triton_backend.serving.gateway.pool_use import PoolAdvice
from triton_backend.serving.gateway.put_off import Offered, PutOff
from triton_backend.serving.gateway.roll_call import StartupBarrier
from triton_backend.serving.gateway.rollout import Rollout, State
from triton_backend.serving.liveness.processes import written_until_us
from triton_backend.serving.liveness.supervisor import (
    Action,
    Awaited,
    GiveUpBatch,
    Order,
    Readmit,
    TakeOut,
)
from triton_backend.serving.transport.wire import (
    BATCH_BITS,
    LOCALS,
    NONE,
    RETAINED,
    AdoptBody,
    ArrivalBody,
    BatchBody,
    JobDoneBody,
    JobFailedBody,
    Kind,
    TimesBody,
    frame,
    pack_adopt,
    pack_dispatch,
    pack_gather,
    pack_job_done,
    pack_job_failed,
)

# Batches of the life before the last may still use slots for this long.
HELD_BACK_SLOS = 2
# So long after its reserved end a batch of an earlier generation is given up, at least.
FORMER_BATCH_PATIENCE_US = 2_000_000

Observer = Callable[[Event | Refused | RefusedJob, Sequence[Decision]], None]
"""Is shown every event and what the core decided on it, in order (the event log)."""


class Gateway:
    """The state of one gateway.

    Attributes:
        timer_us: when `timer` wants to be called; None where the core wants none.

    Args:
        deployment: the generation served first; its workers count as lost until they report.
        epoch: number of this life of the scheduler; batch numbers of different lives never meet.
        slots_free_us: until then batches of the life before the last may still use slots
            (`WorkerSlots`).
        threads_of: is asked of workers that are late; none of those on other hosts.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        epoch: int,
        now_us: int,
        observe: Observer,
        send: Send,
        slots_free_us: int = 0,
        threads_of: ThreadsOf = lambda _worker: {},
    ) -> None:
        self.counters = GatewayCounters()
        self.timer_us: int | None = None
        self._expiry_us = 0  # the core's timer; `timer_us` lies a little before
        self._observe = observe
        self._send = send
        self._epoch = epoch
        self._first_batch = epoch << BATCH_BITS
        self._last_us = 0
        settings = deployment.settings
        self._core = Scheduler(
            deployment.plan,
            policy=settings.policy,
            nic=settings.nic,
            shared_batch_times=deployment.shared_batch_times,
            **of_late_binding(settings.late_binding),
        )
        slots = WorkerSlots(deployment, epoch, slots_free_us)
        self._threads_of = threads_of
        served = Generation(deployment, slots, threads_of)
        served.serve(self._core.plan_number, self.counters, now_us)
        self.generations = Generations(served)
        self._rollout = Rollout(self.generations)
        self._former_link_busy_us: dict[tuple[str, str], int] = {}  # of earlier generations
        self._fronts = Fronts()
        self._guards_us: dict[str, int] = {}  # by model, of its last arrival
        self._fronts.add(self.deployment)
        self._batches: dict[int, BatchInFlight] = {}  # sent and not ended, by the core's number
        self._shared_batches = SharedBatches(self._first_batch, self._batches, send)
        # Of these, those that cannot be brought to the worker of a stage, until the next look.
        self._lost_batches: dict[int, int] = {}
        self._deferred = DeferredFrames(send, now_us)
        self._waiting_for_slots: deque[tuple[Generation, Dispatch]] = deque()
        self._held = HeldSlots()
        self._put_off = PutOff(len(deployment.vgpus), now_us)
        self._jobs = Jobs()
        self._may_send = False  # True if any of these might have its slots now
        self._busy_until_us: dict[int, int] = {}  # of these, with batches of the life before
        for vgpu in deployment.vgpus:
            self._apply(WorkerLost(now_us=self._at(now_us), vgpu=vgpu.index))
        # The workers of an earlier life are about to report; what fronts announce again waits for
        # them.
        self._roll_call: StartupBarrier | None = StartupBarrier(deployment, now_us)
        self._apply(Pause(now_us=self._at(now_us)))

    # Its state

    @property
    def deployment(self) -> Deployment:
        """The generation served."""
        return self.generations.deployment

    @property
    def state(self) -> State:
        """Where a rollout stands."""
        return self._rollout.state(self.in_flight)

    @property
    def calls_roll(self) -> bool:
        """True if workers are waited for before anything is dispatched.

        `look` is to be called often.
        """
        return self._roll_call is not None

    @property
    def in_flight(self) -> int:
        """Batches dispatched and not ended, those that wait for a slot included."""
        return self._core.in_flight()

    @property
    def former_batches(self) -> int:
        """Batches in flight of earlier generations, and generations whose slots jobs need."""
        served = self.generations.served
        sent = sum(batch.generation is not served for batch in self._batches.values())
        needed = self._jobs.generations() - {served.deployment.generation}
        waiting = sum(generation is not served for generation, _ in self._waiting_for_slots)
        return sent + waiting + len(needed)

    @property
    def retained_slots(self) -> int:
        """Slots for retained outputs that are taken."""
        return sum(g.retained.taken for g in self.generations.begun())

    @property
    def jobs(self) -> int:
        """Jobs in hand."""
        return len(self._jobs)

    def waiting(self) -> Iterator[tuple[str, int]]:
        """Queue length of every model of the plan."""
        return zip(self.generations.served.models, self._core.queue_lengths(), strict=True)

    def status(self) -> dict[str, Any]:
        """State for people and flows."""
        prepared = self.generations.prepared
        return {
            "state": str(self.state),
            "plan_id": self.deployment.plan.plan_id,
            "generation": self.deployment.generation,
            "workers": self._readiness(self.deployment),
            "prepared": None if prepared is None else self._readiness(prepared.deployment),
            "queued": dict(self.waiting()),
            "in_flight": self.in_flight,
            "former_batches": self.former_batches,
            "jobs": len(self._jobs),
            "counters": self.counters.to_dict(),
        }

    def count_times(self) -> None:
        """Take what the core counted into the counters."""
        self.counters.took(self._core.take_times())

    def link_busy_us(self) -> dict[tuple[str, str], int]:
        """Time in which links of the plan served carried anything, by node and direction."""
        return {
            (node, direction): busy_us + self._former_link_busy_us.get((node, direction), 0)
            for node, direction, busy_us in self.generations.served.supervisor.link_busy_us()
        }

    def advice(self, now_us: int) -> list[PoolAdvice]:
        """Every pool of the plan served: how busy and bad it was lately, and the vGPUs advised."""
        return self.generations.served.use.advice(max(self._last_us, now_us))

    def loaded_bytes(self) -> dict[Pool, int]:
        """Weights of stages on demand that are there, of every pool that loads some."""
        return (
            {}
            if self.generations.served.loads is None
            else self.generations.served.loads.bytes_by_pool()
        )

    def demands(self) -> dict[str, dict[str, float]]:
        """Rates that the plan served is for, and those that a plan made now would be for."""
        return self.generations.served.use.demands()

    def _readiness(self, deployment: Deployment) -> dict[str, Any]:
        return {
            "plan_id": deployment.plan.plan_id,
            "generation": deployment.generation,
            "up": len(self.generations.up(deployment.generation)),
            "total": len(deployment.vgpus),
        }

    def plan_frames(self) -> list[bytes]:
        """Generations for a front: the one served, and the one prepared."""
        frames = [plan_frame(self.deployment, prepared=False)]
        if self.generations.prepared is not None:
            frames.append(plan_frame(self.generations.prepared.deployment, prepared=True))
        return frames

    def _at(self, now_us: int) -> int:
        """The instant for the core, for which instants never go back."""
        self._last_us = max(self._last_us, now_us)
        return self._last_us

    # Fronts

    def arrival(
        self, front: FrontAddress, arrival: ArrivalBody, now_us: int, plan_tag: int = 0
    ) -> None:
        """A request, its express slot of the plan of `plan_tag`.

        Dropped where no plan has its model.

        Raises:
            InputError: its number is none that a front counts to.
        """
        served = self.generations.served
        local, deadline_us, samples, entry, express_slot, *_ = arrival
        number = self._fronts.number_of(front, local)
        if self._core.has_request(number) or self._put_off.waits(number):
            return  # announced again after a reconnection
        if front.model in served.applications:
            self._job_arrival(front, number, arrival, now_us, plan_tag)
            return
        arrival = self._with_priority(arrival)
        self.counters.asked[front.model] += 1 - arrival.low
        self.counters.offered[front.model] += 1 - arrival.low
        self._guards_us[front.model] = arrival.guard_us
        served.announced(front.model, arrival.guard_us)
        model = served.models.get(front.model)
        if model is not None and (served.entries[model] or entry):
            entry = self._entry_now(model, entry, plan_tag)
            arrival = arrival._replace(entry=entry)
            if entry != NONE and served.entries[model]:
                self.counters.entries[front.model, served.entries[model][entry]] += 1 - arrival.low
        if model is None or not 0 <= entry < len(served.queues[model]):
            self._send(front, drop_frame(local, DropReason.MODEL_REMOVED, deadline_us))
            return
        now_us = self._at(now_us)
        if not self._admits(served.queues[model][entry], arrival, now_us):
            self._refuse(front, arrival, model, now_us)
            return
        if served.retained_models[model]:
            if not self._begin_job(front, number, arrival, plan_tag):
                return
        elif express_slot != NONE:
            served.express.add(number, model, arrival, plan_tag)
        offered = Offered(front, model, samples, entry, deadline_us, arrival.low)
        self._offer([(number, offered)])

    def _with_priority(self, arrival: ArrivalBody) -> ArrivalBody:
        """As the scheduler serves it: as usual where batches board shared ones."""
        boards = arrival.low == 1 and self.generations.served.deployment.boards
        return arrival._replace(low=0) if boards else arrival

    def _admits(self, queue: int, arrival: ArrivalBody, now_us: int) -> bool:
        """Low requests are no work that admission counts, and it refuses none of them."""
        door = self.generations.served.admission
        offer = queue, arrival.samples, arrival.deadline_us, now_us
        return arrival.low == 1 or door.admits(*offer)

    def _offer(self, requests: Iterable[tuple[int, Offered]]) -> None:
        """Requests for the core: new ones, and again those that were put off."""
        for number, request in requests:
            if not self._put_off.over and self._jobs.get(number) is None:
                self._put_off.offered(number, request)
            arrival = Arrival(
                now_us=self._last_us,
                request_id=number,
                model=request.model,
                deadline_us=request.deadline_us,
                samples=request.samples,
                entry=request.entry,
                low=request.low,
            )
            self._apply(arrival)

    def _entry_now(self, model: int, entry: int, plan_tag: int) -> int:
        """The entry that an arrival names, in the plan that is served.

        NONE where its plan or block is gone. A front hears of another plan a moment later than
        this: what it sent before names entries of the last.
        """
        served = self.generations.served
        if plan_tag in (0, served.deployment.tag):
            return entry if entry < len(served.queues[model]) else NONE
        sender = self.generations.tagged(plan_tag)
        name = served.deployment.plan.models[model].name
        theirs = None if sender is None else sender.models.get(name)
        if sender is None or theirs is None or entry >= len(sender.queues[theirs]):
            return NONE
        numbers = matching_queues(sender.deployment.plan, served.deployment.plan)
        queue = numbers[sender.queues[theirs][entry]]
        return NONE if queue is None else served.queues[model].index(queue)

    def _job_arrival(
        self, front: FrontAddress, number: int, arrival: ArrivalBody, now_us: int, plan_tag: int
    ) -> None:
        """A request of an application."""
        if self._jobs.get(number) is not None:
            return  # announced again
        served = self.generations.served
        self.counters.asked[front.model] += 1
        self.counters.offered[front.model] += 1
        application = served.deployment.application_numbers[front.model]
        now_us = self._at(now_us)
        offer = application, arrival.samples, arrival.deadline_us, now_us
        if not served.admission.admits_job(*offer):
            self.counters.dropped_for(front.model, DropReason.OVERLOAD)
            refused = RefusedJob(
                now_us=now_us,
                application=application,
                deadline_us=arrival.deadline_us,
                samples=arrival.samples,
            )
            self._observe(refused, ())
            reason = DropReason.OVERLOAD
            self._send(front, drop_frame(arrival.request, reason, arrival.deadline_us))
        elif self._begin_job(front, number, arrival, plan_tag):
            self._apply(
                JobArrival(
                    now_us=now_us,
                    job_id=number,
                    application=application,
                    deadline_us=arrival.deadline_us,
                    samples=arrival.samples,
                )
            )

    def _begin_job(
        self, front: FrontAddress, number: int, arrival: ArrivalBody, plan_tag: int
    ) -> bool:
        """Note where the inputs of a job lie; False, and refused, where they do not.

        So it is with a front that has not heard of this plan yet, or that still gathered itself.
        """
        deployment = self.deployment
        sender = self.generations.tagged(plan_tag)
        if sender is None or arrival.express_slot == NONE:
            reason = DropReason.MODEL_REMOVED
            self._send(front, drop_frame(arrival.request, reason, arrival.deadline_us))
            return False
        graph = deployment.applications[deployment.application_numbers[front.model]]
        inputs = InputSlot(sender.deployment.generation, front.gateway, arrival.express_slot)
        job = Job(number, graph, arrival.samples, inputs, arrival.deadline_us)
        if front.model in self.generations.served.models:
            self._jobs.begin_alone(job)
        else:
            self._jobs.begin(job)
        return True

    def _refuse(self, front: FrontAddress, arrival: ArrivalBody, model: int, now_us: int) -> None:
        """Overload: the core does not see what not even an ideal server could answer in time."""
        self.counters.dropped_for(front.model, DropReason.OVERLOAD)
        local, deadline_us, samples, entry, *_ = arrival
        queue = self.generations.served.queues[model][entry]
        refused = Refused(
            now_us=now_us, model=model, deadline_us=deadline_us, samples=samples, entry=entry
        )
        self._observe(refused, ())
        dropped = drop_frame(
            local,
            DropReason.OVERLOAD,
            deadline_us,
            best_finish_us=self.generations.served.admission.best_finish_us(queue, now_us),
            queue_position=self._core.queue_lengths()[model],
        )
        self._send(front, dropped)

    def cancel(self, front: FrontAddress, local: int, now_us: int) -> None:
        """The client of a request gave up.

        Raises:
            InputError: its number is none that a front counts to.
        """
        number = self._fronts.number_of(front, local)
        if self._core.has_request(number):
            self._apply(Cancel(now_us=self._at(now_us), request_id=number))
        elif self._put_off.waits(number):
            self._put_off.forget(number)
        elif self._jobs.open(number):
            self._apply(JobCancel(now_us=self._at(now_us), job_id=number))

    def job_read(self, front: FrontAddress, local: int) -> None:
        """A front has read the outputs of a job.

        Raises:
            InputError: its number is none that a front counts to.
        """
        number = self._fronts.number_of(front, local)
        if not self._jobs.open(number):
            self._jobs.drop(number)
            self._may_send = True
            self._send_waiting()

    def front_lost(self, front: FrontAddress, now_us: int) -> None:
        """A front is gone, and its requests with it."""
        self._put_off.forget_front(front)
        for number in (*self._core.request_ids(), *self._jobs.numbers()):
            if number >= FIRST_TASK or self._fronts.front_of(number) != front:
                continue
            self.cancel(front, number % LOCALS, now_us)
            if self._jobs.get(number) is not None:  # done, and its front will not read it
                self.job_read(front, number % LOCALS)

    # Workers that come and go

    def worker_busy(self, worker: WorkerAddress, idle_us: int, now_us: int) -> None:
        """A worker is ready, and busy with batches of the life before until an instant, as planned.

        What it gets until then is planned behind them: without it the core would drop requests that
        it runs in time. Not in the first moments, in which others that are idle have yet to report.
        """
        if worker.generation != self.deployment.generation:
            self._offer_adoption(worker)
        elif self._roll_call is None:
            self.worker_up(worker, now_us, idle_us)
        else:
            self._offer_adoption(worker)
            self._roll_call.busy[worker.vgpu] = idle_us
            self._roll_call.heard_us = now_us
            self._end_roll_call(now_us)

    def worker_up(self, worker: WorkerAddress, now_us: int, idle_us: int = 0) -> None:
        """A worker is ready, and idle from an instant on (0: now), at most an SLO from now."""
        up = self.generations.up(worker.generation)
        served = worker.generation == self.deployment.generation
        if worker.vgpu in up:
            if served and self._busy_until_us.pop(worker.vgpu, 0) > now_us:  # it was quicker
                self._apply(WorkerBack(now_us=self._at(now_us), vgpu=worker.vgpu))
            return
        self._offer_adoption(worker)
        if served and not self.generations.served.supervisor.worker_up(worker.vgpu, now_us, up):
            return
        self.generations.came(worker)
        if served:
            if self.generations.served.loads is not None:
                self.generations.served.loads.worker_up(worker.vgpu)
            now_us = self._at(now_us)
            idle_us = min(idle_us, now_us + max(self.deployment.longest_slos_us))
            if idle_us > now_us:
                self._busy_until_us[worker.vgpu] = idle_us
            self._apply(WorkerBack(now_us=now_us, vgpu=worker.vgpu, idle_us=idle_us))
            if self._roll_call is not None:
                self._roll_call.heard_us = now_us
                self._end_roll_call(now_us)
            self._offer(self._put_off.reported(worker.vgpu))

    def worker_lost(self, worker: WorkerAddress, now_us: int) -> None:
        """A worker's process is gone, with what it held."""
        if worker.generation == self.deployment.generation:
            self.generations.served.supervisor.process_ended(worker.vgpu, now_us)
            if self._roll_call is not None:
                self._roll_call.busy.pop(worker.vgpu, None)
        self._take_out(worker, now_us)
        former = self.generations.former.get(worker.generation)
        if former is not None:  # the core knows what of it was still to run
            lost = WorkerLost(now_us=self._at(now_us), vgpu=worker.vgpu, plan=former.number)
            self._apply(lost)
        self._begin_stranded_anew(worker, now_us)

    def _begin_stranded_anew(self, worker: WorkerAddress, now_us: int) -> None:
        """Run jobs from their first module whose rows lie on a host without a process left to ask.

        What the host itself has kept counts as lost with it: its memory may be new when it is back.
        """
        generation = self.generations.begun_of(worker.generation)
        if generation is None or generation.deployment.at_gateway(worker.vgpu):
            return
        deployment = generation.deployment
        node = deployment.node_name_of(worker.vgpu)
        there = {
            v.index
            for v in deployment.vgpus
            if deployment.same_host(deployment.node_name_of(v.index), node)
        }
        if there & self.generations.up(worker.generation):
            return
        for job in self._jobs.stranded(worker.generation, there):
            number, name = job.number, job.graph.name
            self._jobs.drop(number)
            reason = DropReason.BEGUN_ANEW
            self._apply(JobCancel(now_us=self._at(now_us), job_id=number, reason=reason))
            application = self.deployment.application_numbers.get(name)
            if application is None or name not in self.generations.served.applications:
                why = f"the host of node {node!r} is lost, with what its modules gave"
                body = pack_job_failed(JobFailedBody(number % LOCALS, why))
                self._send(self._fronts.front_of(number), frame(Kind.JOB_FAILED, body))
                continue
            self.counters.jobs_begun_anew += 1
            graph = self.deployment.applications[application]
            self._jobs.begin(Job(number, graph, job.samples, job.inputs, job.deadline_us))
            self._apply(
                JobArrival(
                    now_us=self._at(now_us),
                    job_id=number,
                    application=application,
                    deadline_us=job.deadline_us,
                    samples=job.samples,
                )
            )

    def _take_out(self, worker: WorkerAddress, now_us: int) -> None:
        """Count a worker as lost, where it was up."""
        if not self.generations.went(worker):
            return
        if worker.generation == self.deployment.generation:
            self._busy_until_us.pop(worker.vgpu, None)
            self.counters.workers_lost += 1
            self._apply(WorkerLost(now_us=self._at(now_us), vgpu=worker.vgpu))

    def lost_vgpus(self) -> dict[str, int]:
        """VGPUs without a worker that is up, by pool; not counted where no request has variants."""
        if not self.deployment.plan.workload.variants:
            return {}
        up = self.generations.up_served()
        return Counter(
            self.deployment.pool_of(vgpu).name
            for vgpu in range(len(self.deployment.vgpus))
            if vgpu not in up
        )

    # Reports of workers and fronts on batches, by the batch's number on the wire

    def transfer_done(self, batch_id: int, stage: int, times: TimesBody, now_us: int) -> None:
        """A boundary arrived at a worker."""
        number = batch_id - self._first_batch
        batch = self._batches.get(number)
        if batch is None or stage <= 0 or not batch.expects(stage):
            return
        batch.heard_us = now_us = self._at(now_us)
        start_us, end_us = _past(times, now_us)
        dispatch = batch.dispatch
        if batch.generation is self.generations.served:
            self.generations.served.supervisor.transfer_done(
                batch.place(stage), dispatch.hops, dispatch.samples, start_us, end_us
            )
        self._apply(
            TransferDone(
                now_us=now_us, batch_id=number, stage=stage, start_us=start_us, end_us=end_us
            )
        )

    def stage_done(self, batch_id: int, stage: int, times: TimesBody, now_us: int) -> None:
        """A batch left a stage: its slot there is free again."""
        number = batch_id - self._first_batch
        batch = self._batches.get(number)
        if batch is None:
            return  # aborted, or of another life of the scheduler
        hops = batch.dispatch.hops
        if stage != batch.reported or hops[stage].vgpu != times.vgpu:
            batch.keep_early(stage, times, self._at(now_us))
            return
        batch.heard_us = now_us = self._at(now_us)
        if self._fail_without_rows(number, stage):
            return
        start_us, end_us = _past(times, now_us)
        if not stage:
            self._input_arrived(number, hops[0], start_us)
        place = batch.place(stage)
        batch.generation.runs[place].ran(batch.dispatch.samples, times.end_us - times.start_us)
        last = stage == len(hops) - 1
        if last and batch.output_slot is None:  # fronts count what is late of jobs
            self._count_late(number, batch, end_us)
        self._end_stage(number, batch, start_us, end_us)
        if batch.generation is self.generations.served:
            if not batch.low:  # the time of low ones is there for others
                self.generations.served.use.ran(hops[stage].vgpu, end_us - start_us)
            loads = self.generations.served.loads
            if loads is not None and end_us > start_us:  # no time at all: it failed
                loads.ran(place, hops[stage].vgpu)
            self._show_run(place, hops[stage], batch.dispatch.samples, (start_us, end_us))
        if batch.early:
            self._catch_up(batch_id, batch, now_us)
        self._end_shared_batches()

    def _input_arrived(self, number: int, hop: Hop, start_us: int) -> None:
        """Rows of modules before had come when a batch began: their links are free.

        Workers fetch rows by themselves and do not report it.
        """
        if hop.transfer_end_us > hop.transfer_start_us:
            begin_us, end_us = (
                min(hop.transfer_start_us, start_us),
                min(hop.transfer_end_us, start_us),
            )
            self._apply(
                TransferDone(
                    now_us=self._last_us,
                    batch_id=number,
                    stage=0,
                    start_us=begin_us,
                    end_us=end_us,
                )
            )

    def _show_run(
        self, place: StagePlace, hop: Hop, samples: int, span_us: tuple[int, int]
    ) -> None:
        """Tell the watch of workers of a run under the plan served."""
        took_us = span_us[1] - span_us[0]
        actions = self.generations.served.supervisor.stage_done(
            place, hop, samples, took_us, self._last_us, self.generations.up_served()
        )
        self._take(actions)

    def shared_batch_done(
        self, shared_batch_id: int, aboard: Sequence[int], times: TimesBody, now_us: int
    ) -> None:
        """A joint run is over; a member that was not in it runs again."""
        if self._shared_batches.ran(shared_batch_id, aboard, times, self._at(now_us)):
            self._end_shared_batches()

    def _end_shared_batches(self) -> None:
        """End shared batches that ran and whose members have all reported the stages before."""
        for number, shared_batch, times, aboard in self._shared_batches.that_ran():
            if any(place.batch_id not in aboard for place in shared_batch.decision.members):
                self._apply(SharedBatchStarted(now_us=self._last_us, shared_batch_id=number))
            while left := [s for s in shared_batch.decision.members if s.batch_id not in aboard]:
                self.counters.batches_lost += 1
                self._apply(BatchLost(now_us=self._last_us, batch_id=left[0].batch_id))
            for place in shared_batch.decision.members:
                self._fail_without_rows(place.batch_id, place.stage)
            places = shared_batch.decision.members
            waits = any(self._batches[s.batch_id].reported < s.stage for s in places)
            if places and not waits:
                self._shared_batches.end(number)
                self._end_shared_batch(shared_batch, times)

    def _end_shared_batch(self, shared_batch: SharedBatchInFlight, times: TimesBody) -> None:
        """The stage of all members of a shared batch is over."""
        decision, generation = shared_batch.decision, shared_batch.generation
        batches = self._shared_batches.members(shared_batch)
        start_us, end_us = span_us = _past(times, self._last_us)
        stage = decision.members[0].stage
        place = batches[0].place(stage)
        model = generation.deployment.plan.models[place[0]]
        pipelines = [model.pipelines[batch.dispatch.pipeline] for batch in batches]
        samples = sum(member.rows for member in decision.members)
        generation.runs[place].ran(samples, times.end_us - times.start_us)
        entries = len({pipeline.entry for pipeline in pipelines})
        self.counters.ran_together(
            model.name, batches=len(batches), samples=samples, entries=entries
        )
        hop = batches[0].dispatch.hops[stage]._replace(end_us=decision.end_us)
        for member, batch in zip(decision.members, batches, strict=True):
            if batch.reported + 1 == len(batch.slots) and batch.output_slot is None:
                self._count_late(member.batch_id, batch, end_us)
            self._leave_stage(member.batch_id, batch)
        number = decision.shared_batch_id
        self._apply(
            SharedBatchDone(
                now_us=self._last_us, shared_batch_id=number, start_us=start_us, end_us=end_us
            )
        )
        for batch in batches:
            self._answer_jobs(batch)
        if generation is self.generations.served:
            self.generations.served.use.ran(hop.vgpu, span_us[1] - span_us[0])
            self._show_run(place, hop, samples, span_us)

    def emitted(self, batch_id: int, rows: tuple[tuple[int, ...], ...]) -> None:
        """How many rows each sample of a batch gave, for every count of its model.

        Then the place of each one's shape, for every choice of sizes. Its last stage has ended.

        Raises:
            InputError: the model gives no such rows.
        """
        batch = self._batches.get(batch_id - self._first_batch)
        if batch is None or batch.output_slot is None:
            return
        deployment, dispatch = batch.generation.deployment, batch.dispatch
        name = deployment.plan.models[dispatch.model].name
        most = dict.fromkeys(deployment.row_groups(name), 0)
        for counts, rows_of_sample, _ in deployment.drawn_rows(name).values():
            most[counts] = rows_of_sample
        most |= {name: len(known) - 1 for name, known in deployment.choices(name).items()}
        fits = len(rows) == len(most) and all(
            len(counts) == dispatch.samples and max(counts) <= allowed
            for counts, allowed in zip(rows, most.values(), strict=False)
        )
        if not fits:
            raise InputError(f"batch {batch_id}", f"gave rows {rows}, at most {most} each")
        batch.given = rows

    def _fail_without_rows(self, number: int, stage: int) -> bool:
        """Fail a batch of modules that ended without a report of its number of rows."""
        batch = self._batches[number]
        last = stage == len(batch.slots) - 1 == batch.reported
        if not last or batch.output_slot is None or batch.complete():
            return False
        reason = "no worker says how many rows it gave"
        self.batch_failed(self._first_batch + number, stage, self._last_us, reason)
        return True

    def _end_stage(self, number: int, batch: BatchInFlight, start_us: int, end_us: int) -> None:
        """The next stage of a batch is over, and with the last one the batch."""
        stage = batch.reported
        self._leave_stage(number, batch)
        self._apply(
            StageDone(
                now_us=self._last_us,
                batch_id=number,
                stage=stage,
                start_us=start_us,
                end_us=end_us,
            )
        )
        self._answer_jobs(batch)

    def _leave_stage(self, number: int, batch: BatchInFlight) -> None:
        """Free the slot granted for the next stage of a batch.

        The core has yet to hear of its end.
        """
        stage = batch.reported
        batch.reported = stage + 1
        batch.generation.slots.give(batch.dispatch.hops[stage].vgpu, batch.slots[stage])
        self._may_send = True
        if batch.reported == len(batch.slots):
            del self._batches[number]
            if batch.output_slot is not None and not batch.failed:
                deployment = batch.generation.deployment
                ended = self._jobs.ended(deployment, batch.dispatch, batch.output_slot, batch.given)
                for task, rows in ended:
                    self._apply(Emitted(now_us=self._last_us, request_id=task, rows=rows))

    def _answer_jobs(self, batch: BatchInFlight) -> None:
        """Have fronts answer the jobs of an ended batch whose module ran alone."""
        if (
            batch.output_slot is not None
            and batch.reported == len(batch.slots)
            and not batch.failed
        ):
            for request in batch.dispatch.request_ids:
                if request < FIRST_TASK:
                    self._answer_job(request)

    def _count_late(self, number: int, batch: BatchInFlight, end_us: int) -> None:
        """Count the requests of a batch that ended beyond what their clients allow."""
        model = batch.generation.deployment.plan.models[batch.dispatch.model].name
        guard_us = self._guards_us.get(model, 0)
        self.counters.bad[model] += self._core.late_requests(number, end_us - guard_us)

    def _answer_job(self, number: int) -> None:
        """Tell the front where the outputs of a job lie."""
        deployment = self.deployment
        if self._jobs.get(number) is None:
            return
        pieces = tuple(self._jobs.done(number, deployment))
        body = pack_job_done(JobDoneBody(number % LOCALS, pieces))
        self._send(
            self._fronts.front_of(number), frame(Kind.JOB_DONE, body, plan_tag=deployment.tag)
        )

    def _catch_up(self, batch_id: int, batch: BatchInFlight, now_us: int) -> None:
        """Take in what the next stage reported before its turn."""
        if batch.reported not in batch.early:
            return
        times = batch.early.pop(batch.reported)
        if times is None:
            self.batch_failed(batch_id, batch.reported, now_us)
        else:
            self.stage_done(batch_id, batch.reported, times, now_us)

    def batch_failed(self, batch_id: int, stage: int, now_us: int, reason: str = "") -> None:
        """A batch could not be run at a stage: its requests are answered by the front as failed."""
        number = batch_id - self._first_batch
        batch = self._batches.get(number)
        if batch is None or not batch.expects(stage):
            return
        if stage > batch.reported:
            batch.early[stage] = None
            return
        batch.early.clear()
        self.counters.batches_failed += 1
        model = batch.generation.deployment.plan.models[batch.dispatch.model]
        self.counters.bad[model.name] += self._core.usual_requests(batch.dispatch.request_ids)
        now_us = self._at(now_us)
        if batch.output_slot is not None:
            self._fail_jobs(batch, batch.output_slot, reason)
        for later in range(stage, len(batch.slots)):
            # As if every stage that is left had taken no time: all that was reserved is free.
            if number not in self._batches:
                return  # too late for a shared batch, and aborted
            if later:
                self._apply(
                    TransferDone(
                        now_us=now_us, batch_id=number, stage=later, start_us=now_us, end_us=now_us
                    )
                )
            if number in self._batches:
                self._end_stage(number, batch, now_us, now_us)

    def _fail_jobs(
        self, batch: BatchInFlight, output_slot: RetainedOutputSlot, reason: str
    ) -> None:
        """Have the jobs of a batch answered as failed; the core knows that they are not wanted."""
        batch.failed = True
        for number, module in self._jobs.failed(batch.dispatch, output_slot):
            body = JobFailedBody(number % LOCALS, f"module {module!r}: {reason}")
            self._send(self._fronts.front_of(number), frame(Kind.JOB_FAILED, pack_job_failed(body)))
            in_core = number not in batch.dispatch.request_ids
            self._jobs.drop(number)
            if in_core:
                failed = DropReason.FAILED
                self._apply(JobCancel(now_us=self._last_us, job_id=number, reason=failed))

    def batch_lost(self, batch_id: int, stage: int) -> None:
        """A batch cannot be brought to the worker of a stage: with the next look it runs again.

        Not at once: a worker that cannot be reached now cannot be in the next millisecond.
        """
        number = batch_id - self._first_batch
        if number in self._batches:
            self._lost_batches[number] = stage

    def _give_up_unreachable(self, now_us: int) -> None:
        lost, self._lost_batches = self._lost_batches, {}
        for number, stage in lost.items():
            batch = self._batches.get(number)
            if batch is None:
                continue
            if batch.generation is self.generations.served and 0 <= stage < len(
                batch.slots
            ):  # first, lest its requests are sent there again
                vgpu = batch.dispatch.hops[stage].vgpu
                supervisor = self.generations.served.supervisor
                self._take(supervisor.unreachable(vgpu, now_us, self.generations.up_served()))
            self._give_up(number)

    def let_go(self, names: Sequence[Address], batch_id: int) -> None:
        """A front or worker, by its names, writes nothing of a batch any more that was aborted."""
        if self._held.let_go(batch_id - self._first_batch, names):
            self._may_send = True
            self._send_waiting()

    def to_let_go(self, peer: Address) -> list[bytes]:
        """ABORT of every batch not let go of yet, for a front or worker that comes back."""
        return self._held.notices(peer)

    def _give_up(self, number: int) -> None:
        """Have the requests of a batch run again that have no reporter."""
        self.counters.batches_lost += 1
        if number in self._batches:
            self._apply(BatchLost(now_us=self._last_us, batch_id=number))

    def pace_result(self, worker: WorkerAddress, times: TimesBody, now_us: int) -> None:
        """A worker ran its stage on zeros."""
        self._at(now_us)
        took_us = times.end_us - times.start_us
        self._take(
            self.generations.served.supervisor.pace_result(
                worker.vgpu, took_us, self.generations.up_served()
            )
        )

    # Time

    def timer(self, now_us: int) -> None:
        """The instant of `timer_us` has come.

        It comes a little before the last moment, and the core gets the last moment itself: so
        the dispatch is decided early, for an instant that lies ahead, and a late wake-up of this
        process does not cost the requests that waited for it.
        """
        self.timer_us = None
        self._apply(Timer(now_us=self._at(max(now_us, self._expiry_us))))

    def look(self, now_us: int) -> None:
        """Do what has to be done by the clock, whatever happens; some twenty times a second."""
        self._end_roll_call(now_us)
        now_us = self._at(now_us)
        self._offer(self._put_off.due(now_us))
        self.generations.served.use.look(now_us)
        for generation in self.generations.begun():
            self._may_send |= generation.slots.release(now_us)
        self._may_send |= self._held.release(now_us)
        self._send_waiting()
        self._shared_batches.send_changed(self._last_us)
        self._end_shared_batches()
        self._give_up_unreachable(now_us)
        self._look_at_former_batches(now_us)
        ends_us = self._shared_batches.ends_us()
        awaited = [
            Awaited(
                number,
                b.place(b.reported),
                hop._replace(end_us=ends_us.get((number, b.reported), hop.end_us)),
                b.heard_us,
            )
            for number, b in self._batches.items()
            if b.generation is self.generations.served
            for hop in (b.dispatch.hops[b.reported],)
        ]
        self._take(
            self.generations.served.supervisor.look(awaited, now_us, self.generations.up_served())
        )
        if self._rollout.lease_ended(self.in_flight, now_us):
            self.abort(now_us)

    def _look_at_former_batches(self, now_us: int) -> None:
        """Give up batches of earlier generations that should have ended long ago.

        Forget those that have none.
        """
        if not self.generations.former:
            return
        left: set[int] = {
            generation.deployment.generation for generation, _ in self._waiting_for_slots
        }
        left |= self._jobs.generations() | self._held.generations()
        left |= {
            number for number, former in self.generations.former.items() if former.slots.holds_back
        }
        for number, batch in list(self._batches.items()):
            deployment = batch.generation.deployment
            left.add(deployment.generation)
            slo_us = deployment.longest_slos_us[batch.dispatch.model]
            last_us = max(batch.dispatch.hops[batch.reported].end_us, batch.heard_us)
            late = now_us - last_us > max(slo_us, FORMER_BATCH_PATIENCE_US)
            if late and batch.generation is not self.generations.served:
                self._give_up(number)
        over = self.generations.former.keys() - left
        for generation in over:
            self.generations.forget(generation)
        if over:  # batches that only they ran are given up
            vgpus = range(len(self.deployment.vgpus))
            latest = self.generations.prepared or self.generations.served
            self._adopt(latest.deployment, vgpus)

    def _end_roll_call(self, now_us: int) -> None:
        """Dispatch from now on, where enough workers have reported, or had the time to."""
        call = self._roll_call
        if call is None or not call.is_over(self.generations.up_served(), now_us):
            return
        self._roll_call = None
        for vgpu, idle_us in call.busy.items():
            self.worker_up(WorkerAddress(self.deployment.generation, vgpu), now_us, idle_us)
        if not self._rollout.paused:
            self._apply(Resume(now_us=self._at(now_us)))

    # Decisions of the workers' supervisor

    def _take(self, actions: Iterator[Action] | Sequence[Action]) -> None:
        """Take the supervisor's actions, at the instant of the core's last event."""
        deployment = self.deployment
        for action in actions:
            match action:
                case TakeOut(vgpu):
                    self.counters.workers_drained += 1
                    self._take_out(WorkerAddress(deployment.generation, vgpu), self._last_us)
                case Readmit(vgpu):
                    self.worker_up(WorkerAddress(deployment.generation, vgpu), self._last_us)
                case Order(vgpu, kind):
                    worker = WorkerAddress(deployment.generation, vgpu)
                    self._send(worker, frame(kind, plan_tag=deployment.tag))
                case GiveUpBatch(number) if number in self._batches:
                    self._give_up(number)
                case GiveUpBatch():
                    pass  # an action before this one has ended it
                case _:
                    self._apply(action)

    # Rollout

    def prepare(self, deployment: Deployment) -> None:
        """Accept a second generation beside the one served."""
        if deployment.generation == self.deployment.generation:
            return
        # Made now, because it takes longer than the change may.
        slots = WorkerSlots(deployment, self._epoch, 0)
        self.generations.prepared = Generation(deployment, slots, self._threads_of)
        self._core.prepare(deployment.plan)
        self._announce(deployment, self.deployment, prepared=True)
        self._adopt(deployment, [before for before, _ in self._inherited(deployment)])

    def _adopt(self, latest: Deployment, vgpus: Iterable[int]) -> None:
        """Have workers of the generation served serve another one too, and none after it."""
        oldest = min(self.generations.former, default=self.deployment.generation)
        adopt = frame(Kind.ADOPT, pack_adopt(AdoptBody(latest.generation, oldest)))
        for vgpu in vgpus:
            self._deferred.put(WorkerAddress(self.deployment.generation, vgpu), adopt)

    @property
    def deferred_us(self) -> int | None:
        """When `send_deferred` has something to do."""
        return self._deferred.due_us

    def send_deferred(self, now_us: int) -> None:
        """Send frames without a waiter whose turn has come."""
        self._deferred.send(now_us)

    def _offer_adoption(self, worker: WorkerAddress) -> None:
        """Have a worker that goes on serve the prepared generation too; harmless where it does."""
        prepared = self.generations.prepared
        if prepared is None or worker.generation != self.deployment.generation:
            return
        if any(worker.vgpu == before for before, _ in self._inherited(prepared.deployment)):
            self._adopt(prepared.deployment, [worker.vgpu])

    def _inherited(self, deployment: Deployment) -> tuple[tuple[int, int], ...]:
        """Numbers of the workers that go on: in the generation served, and in a later one."""
        numbers = {origin: vgpu for vgpu, origin in enumerate(self.deployment.origins)}
        return tuple(
            (numbers[origin], vgpu)
            for vgpu, origin in enumerate(deployment.origins)
            if origin in numbers
        )

    def flush(self, now_us: int) -> None:
        """Dispatch nothing more; the state becomes *flushed* when nothing is in flight."""
        if self._rollout.flush():
            self._apply(Pause(now_us=self._at(now_us)))

    def swap(self, now_us: int) -> None:
        """Go on under the prepared generation, with batches in flight or, after a flush, without.

        Raises:
            InputError: nothing is prepared, its workers are not all up, or a flush has not ended.
        """
        self._offer(self._put_off.end())  # by the plan that they were announced for
        self._rollout.check_swap(self.in_flight)
        self._rollout.end()
        former, served = self.generations.served, self.generations.prepared
        assert served is not None
        deployment = served.deployment
        inherited = self._inherited(deployment)  # `deployment` is not served yet
        served.slots.share(former.slots, inherited)
        self._former_link_busy_us = self.link_busy_us()
        self.count_times()  # the core forgets them with the plan
        served.serve(self._core.plan_number + 1, self.counters, now_us, former.use.asked)
        self.generations.swap()
        self._roll_call = None
        self._busy_until_us = {}
        self._fronts.add(deployment)
        self._announce(deployment, former.deployment, prepared=False)
        self._core.set_shared_batch_times(deployment.shared_batch_times)
        changed = PlanChanged(now_us=self._at(now_us), plan=deployment.plan, inherited=inherited)
        self._apply(changed)

    def abort(self, now_us: int) -> None:
        """Forget what is prepared and go on under the plan served."""
        prepared = self.generations.prepared
        if prepared is not None:
            self._announce(self.deployment, prepared.deployment, prepared=False)
            inherited = self._inherited(prepared.deployment)
            self._adopt(self.deployment, [before for before, _ in inherited])
        self.generations.prepared = None
        if self._rollout.end():
            self._apply(Resume(now_us=self._at(now_us)))

    def _announce(self, deployment: Deployment, other: Deployment, *, prepared: bool) -> None:
        """Tell the fronts of a plan of it, and those of the plan that it follows or outlives."""
        data = plan_frame(deployment, prepared=prepared)
        for front in fronts_in(self.deployment.settings.gateways, deployment, other):
            self._deferred.forget(front)
            if prepared:
                self._deferred.put(front, data)
            else:
                self._send(front, data)

    def expected_fronts(self) -> list[FrontAddress]:
        """The fronts of the plan served, and of the one prepared."""
        prepared = self.generations.prepared
        plans = [self.deployment, *([] if prepared is None else [prepared.deployment])]
        return fronts_in(self.deployment.settings.gateways, *plans)

    # Decisions of the core

    def _apply(self, event: Event) -> None:
        """Hand the core an event, and carry out what it decides."""
        decisions = self._core.handle(event)
        self._observe(event, decisions)
        served = self.generations.served
        shared_batches: dict[int, SharedBatch] = {}  # of several decisions on one, the last counts
        for decision in decisions:
            match decision:
                case Dispatch():
                    if served.retained_models[decision.model]:
                        self._jobs.dispatched(decision)
                    self._waiting_for_slots.append((served, decision))
                    self._may_send = True
                case SetTimer():
                    self._expiry_us = decision.at_us
                    self.timer_us = decision.at_us - served.timer_lead_us
                case Drop():
                    self._drop(decision)
                case Abort():
                    self._abort(decision.batch_id)
                case SharedBatch():
                    shared_batches[decision.shared_batch_id] = decision
                case _:
                    self._apply_to_job(decision)
        if shared_batches:
            waiting = self._waiting_for_slots
            self._shared_batches.note(shared_batches.values(), waiting, self._last_us)
        if self._may_send:
            self._send_waiting()
        self._shared_batches.send_changed(self._last_us)

    def _apply_to_job(self, decision: TaskReady | ModuleSkipped | JobDone | JobDropped) -> None:
        self._may_send = True  # slots for retained outputs may be free
        match decision:
            case TaskReady():
                self._jobs.ready(decision)
                name = self._jobs.module_name(decision.job_id, decision.module)
                self.counters.module_rows[name] += decision.rows
                if decision.first_row == 0:
                    self.counters.module_samples[name] += self._jobs.samples_of(decision.job_id)
                self.counters.offered[self._jobs.model_of(decision.job_id, decision.module)] += 1
            case ModuleSkipped():
                dropped = decision.reason is not None
                name = self._jobs.module_name(decision.job_id, decision.module)
                if dropped:
                    self.counters.module_drops[name] += 1
                else:
                    self.counters.module_samples[name] += self._jobs.samples_of(decision.job_id)
                self._jobs.skip(decision.job_id, decision.module, dropped=dropped)
            case JobDone():
                self._answer_job(decision.job_id)
            case JobDropped():
                self._drop_job(decision)

    def _send_waiting(self) -> None:
        """Send what was dispatched, in this order, where slots are free at all of its stages.

        A batch that waits for a slot holds up later ones that share a vGPU with it, so that none of
        them runs there before it. It holds up no others, because its worker may be cut off.
        """
        if not self._may_send:
            return
        self._may_send = False
        held_up: set[tuple[int, int]] = set()  # generations and vGPUs
        for _ in range(len(self._waiting_for_slots)):
            generation, dispatch = self._waiting_for_slots.popleft()
            number = generation.deployment.generation
            places = [(number, hop.vgpu) for hop in dispatch.hops]
            free = not held_up or held_up.isdisjoint(places)
            slots = generation.slots.grant(dispatch.hops) if free else None
            output_slot = None
            if slots is not None and generation.retained_models[dispatch.model]:
                output_slot = generation.retained.grant(dispatch.hops[-1].vgpu)
                if output_slot is None:
                    generation.slots.give_all(dispatch.hops, slots)
                    slots = None
            if slots is None:
                held_up.update(places)
                self._waiting_for_slots.append((generation, dispatch))
            elif output_slot is None:
                self._send_batch(generation, dispatch, slots)
            else:
                self._send_tasks(generation, dispatch, slots, output_slot)

    def _send_tasks(
        self,
        served: Generation,
        dispatch: Dispatch,
        slots: list[int],
        output_slot: RetainedOutputSlot,
    ) -> None:
        """To its first worker, which gathers it from where the rows lie."""
        number, deployment = dispatch.batch_id, served.deployment
        low = not self._core.usual_requests(dispatch.request_ids)
        batch = BatchInFlight(served, dispatch, slots, self._last_us, output_slot=output_slot)
        batch.low = low
        self._batches[number] = batch
        model = deployment.plan.models[dispatch.model]
        self.counters.dispatched(model.name, dispatch.samples)
        body = BatchBody(
            dispatch.model,
            dispatch.pipeline,
            dispatch.samples,
            output_slot.slot,
            0,
            self._last_us,
            self._last_us,
            RETAINED,
            dispatch.hops,
            tuple(slots),
        )
        pieces = self._jobs.pieces(deployment, dispatch)
        data = frame(
            Kind.GATHER,
            pack_gather(body, pieces),
            batch_id=self._first_batch + number,
            plan_tag=deployment.tag,
        )
        self._send(WorkerAddress(deployment.generation, dispatch.hops[0].vgpu), data)

    def _send_batch(self, served: Generation, dispatch: Dispatch, slots: list[int]) -> None:
        """To the front that gathers it, or, an express request, to its first worker."""
        number = dispatch.batch_id
        low = not self._core.usual_requests(dispatch.request_ids)
        self._batches[number] = BatchInFlight(served, dispatch, slots, self._last_us, low=low)
        front = self._fronts.front_of(dispatch.request_ids[0])
        self.counters.dispatched(front.model, dispatch.samples)
        number += self._first_batch
        express = served.express.batch_frame(dispatch, slots, number, self._last_us)
        if express is not None:
            worker = WorkerAddress(served.deployment.generation, dispatch.hops[0].vgpu)
            self._send(worker, express)
            return
        requests = [request % LOCALS for request in dispatch.request_ids]
        body = pack_dispatch(dispatch.pipeline, dispatch.samples, dispatch.hops, slots, requests)
        tag = served.deployment.tag
        self._send(front, frame(Kind.DISPATCH, body, batch_id=number, plan_tag=tag))

    def _drop(self, decision: Drop) -> None:
        number = decision.request_id
        self.generations.served.express.forget(number)
        if self._put_off.puts_off(number, decision.reason, self._last_us):
            return
        if self._jobs:
            self._jobs.drop(number)
        front = self._fronts.front_of(number)
        if not decision.low:
            self.counters.dropped_for(front.model, decision.reason)
        dropped = drop_frame(
            number % LOCALS,
            decision.reason,
            decision.deadline_us,
            best_finish_us=decision.best_finish_us or 0,
            queue_position=decision.queue_position,
        )
        self._send(front, dropped)

    def _drop_job(self, decision: JobDropped) -> None:
        job = self._jobs.drop(decision.job_id)
        if job is None:
            return  # it failed, and is answered
        front = self._fronts.front_of(decision.job_id)
        self.counters.dropped_for(front.model, decision.reason)
        if decision.module is not None:
            module = job.graph.modules[decision.module]
            self.counters.module_drops[job.graph.name, module.name] += 1
            self.counters.bad[module.model] += 1
        dropped = drop_frame(
            decision.job_id % LOCALS,
            decision.reason,
            decision.deadline_us,
            best_finish_us=decision.best_finish_us or 0,
            queue_position=decision.queue_position,
            module=NONE if decision.module is None else decision.module,
        )
        self._send(front, dropped)

    def _abort(self, batch_id: int) -> None:
        """Have front and workers forget a batch.

        Its slots are held until no process can write there.
        """
        batch = self._batches.pop(batch_id, None)
        if batch is None:
            for generation, dispatch in self._waiting_for_slots:
                if dispatch.batch_id == batch_id and generation.retained_models[dispatch.model]:
                    self._jobs.aborted(dispatch)
            kept = [item for item in self._waiting_for_slots if item[1].batch_id != batch_id]
            self._waiting_for_slots = deque(kept)
            self._may_send = True  # those it held up
            return
        deployment, dispatch = batch.generation.deployment, batch.dispatch
        number = self._first_batch + batch_id
        notice = frame(Kind.ABORT, batch_id=number, plan_tag=deployment.tag)
        path: list[Address] = [WorkerAddress(deployment.generation, h.vgpu) for h in dispatch.hops]
        if batch.output_slot is None:
            path.insert(0, self._fronts.front_of(dispatch.request_ids[0]))
        else:
            path.insert(0, path[0])  # which gathers it
            self._jobs.aborted(dispatch)
        stages = deployment.plan.models[dispatch.model].pipelines[dispatch.pipeline].stages
        self._held.hold(
            batch_id,
            deployment.generation,
            notice,
            [*self._held_slots(batch, path)],
            written_until_us(
                self._last_us,
                dispatch.hops[-1].end_us,
                slo_us=max(deployment.longest_slos_us),
                latency_us=max(stage.latency_us for stage in stages),
            ),
        )
        # A front forgets its batch in any case, and a worker may still hand on what it has
        # reported.
        for peer in {path[0]: None, **dict.fromkeys(path[batch.reported :])}:
            self._send(peer, notice)

    def _held_slots(self, batch: BatchInFlight, path: Sequence[Address]) -> Iterator[HeldSlot]:
        """Slots of a batch that stages to come may still write.

        `path`: its sender, and its workers.
        """
        hops = batch.dispatch.hops
        for stage in range(batch.reported, len(hops)):
            pool, slot = batch.generation.slots.of(hops[stage].vgpu), batch.slots[stage]
            pool.hold(slot)
            yield HeldSlot(frozenset(path[stage : stage + 2]), partial(pool.give, slot))
        if batch.output_slot is not None:
            yield HeldSlot(frozenset(path[-1:]), batch.output_slot.release)


def _past(times: TimesBody, now_us: int) -> tuple[int, int]:
    """Times of another host may be a little ahead of ours; nothing ended after it was reported."""
    end_us = min(times.end_us, now_us)
    return min(times.start_us, end_us), end_us
