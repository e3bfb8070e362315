"""Every event passes here on its way to the core, and every decision on its way out.

`Hub` hands the core an event, has the log see both, and carries the decisions out: batches to
`batches.dispatched`, drops and answers of jobs to fronts, and the one timer. The instants that it
gives the core never go back. What the parts that know it share lies here for them.

Not here: which events there are. They come from fronts (`events.requests`), from workers
(`events.workers`), from reports on batches (`events.reports`) and with a change of plan (`state`).
"""

from collections.abc import Callable, Iterable, Sequence

from triton_backend.contract.decisions import (
    Abort,
    Decision,
    Dispatch,
    Drop,
    JobDone,
    JobDropped,
    ModuleSkipped,
    SetTimer,
    SharedBatch,
    TaskReady,
)
from triton_backend.contract.events import Arrival, BatchLost, Event, JobArrival, Timer
from triton_backend.scheduler.scheduler import Scheduler
from triton_backend.serving.gateway.admission import Refused, RefusedJob
from triton_backend.serving.gateway.applications.job import Job
from triton_backend.serving.gateway.applications.jobs import Jobs
from triton_backend.serving.gateway.batches.dispatched import DispatchedBatches
from triton_backend.serving.gateway.batches.generations import Generations
from triton_backend.serving.gateway.counters import GatewayCounters
from triton_backend.serving.gateway.peers.addresses import FrontAddress, Send
from triton_backend.serving.gateway.peers.fronts import Fronts, drop_frame
from triton_backend.serving.gateway.put_off import Offered, PutOff
from triton_backend.serving.transport.wire import (
    LOCALS,
    NONE,
    JobDoneBody,
    JobFailedBody,
    Kind,
    frame,
    pack_job_done,
    pack_job_failed,
)

Observer = Callable[[Event | Refused | RefusedJob, Sequence[Decision]], None]
"""Is shown every event and what the core decided on it, in order (the event log)."""


class Hub:
    """The core, its time, and what carries out its decisions.

    Attributes:
        now_us: of the core's last event.
        timer_us: when `timer` wants to be called; None where the core wants none.
        core: asked by all, but given events only here.
        put_off: requests that wait for workers which have yet to report.
    """

    def __init__(
        self,
        core: Scheduler,
        generations: Generations,
        counters: GatewayCounters,
        *,
        first_number: int,
        now_us: int,
        observe: Observer,
        send: Send,
    ) -> None:
        self.core = core
        self.generations = generations
        self.counters = counters
        self.observe = observe
        self.send = send
        self.jobs = Jobs()
        self.fronts = Fronts()
        self.fronts.add(generations.deployment)
        self.batches = DispatchedBatches(
            core, self.jobs, self.fronts, counters, first_number=first_number, send=send
        )
        self.put_off = PutOff(len(generations.deployment.vgpus), now_us)
        self.now_us = 0
        self.timer_us: int | None = None
        self._expiry_us = 0  # the core's timer; `timer_us` lies a little before

    def at(self, now_us: int) -> int:
        """The instant for the core, for which instants never go back."""
        self.now_us = max(self.now_us, now_us)
        return self.now_us

    # Events

    def offer(self, requests: Iterable[tuple[int, Offered]]) -> None:
        """Requests for the core: new ones, and again those that were put off."""
        for number, request in requests:
            if not self.put_off.over and self.jobs.get(number) is None:
                self.put_off.offered(number, request)
            arrival = Arrival(
                now_us=self.now_us,
                request_id=number,
                model=request.model,
                deadline_us=request.deadline_us,
                samples=request.samples,
                entry=request.entry,
                low=request.low,
            )
            self.apply(arrival)

    def timer(self, now_us: int) -> None:
        """The instant of `timer_us` has come.

        It comes a little before the last moment, and the core gets the last moment itself: so
        the dispatch is decided early, for an instant that lies ahead, and a late wake-up of this
        process does not cost the requests that waited for it.
        """
        self.timer_us = None
        self.apply(Timer(now_us=self.at(max(now_us, self._expiry_us))))

    def apply(self, event: Event) -> None:
        """Hand the core an event, and carry out what it decides."""
        decisions = self.core.handle(event)
        self.observe(event, decisions)
        served = self.generations.served
        shared_batches: dict[int, SharedBatch] = {}  # of several decisions on one, the last counts
        for decision in decisions:
            match decision:
                case Dispatch():
                    self.batches.add(served, decision)
                case SetTimer():
                    self._expiry_us = decision.at_us
                    self.timer_us = decision.at_us - served.timer_lead_us
                case Drop():
                    self._drop(decision)
                case Abort():
                    self.batches.abort(decision.batch_id, self.now_us)
                case SharedBatch():
                    shared_batches[decision.shared_batch_id] = decision
                case _:
                    self._apply_to_job(decision)
        if shared_batches:
            self.batches.share(shared_batches.values(), self.now_us)
        self.batches.send(self.now_us)

    def _apply_to_job(self, decision: TaskReady | ModuleSkipped | JobDone | JobDropped) -> None:
        self.batches.may_send = True  # slots for retained outputs may be free
        match decision:
            case TaskReady():
                self.jobs.ready(decision)
                name = self.jobs.module_name(decision.job_id, decision.module)
                self.counters.module_rows[name] += decision.rows
                if decision.first_row == 0:
                    self.counters.module_samples[name] += self.jobs.samples_of(decision.job_id)
                self.counters.offered[self.jobs.model_of(decision.job_id, decision.module)] += 1
            case ModuleSkipped():
                dropped = decision.reason is not None
                name = self.jobs.module_name(decision.job_id, decision.module)
                if dropped:
                    self.counters.module_drops[name] += 1
                else:
                    self.counters.module_samples[name] += self.jobs.samples_of(decision.job_id)
                self.jobs.skip(decision.job_id, decision.module, dropped=dropped)
            case JobDone():
                self.answer_job(decision.job_id)
            case JobDropped():
                self._drop_job(decision)

    def _drop(self, decision: Drop) -> None:
        number = decision.request_id
        self.generations.served.express.forget(number)
        if self.put_off.puts_off(number, decision.reason, self.now_us):
            return
        if self.jobs:
            self.jobs.drop(number)
        front = self.fronts.front_of(number)
        if not decision.low:
            self.counters.dropped_for(front.model, decision.reason)
        self._send_drop(front, number, decision)

    def _drop_job(self, decision: JobDropped) -> None:
        job = self.jobs.drop(decision.job_id)
        if job is None:
            return  # it failed, and is answered
        front = self.fronts.front_of(decision.job_id)
        self.counters.dropped_for(front.model, decision.reason)
        if decision.module is not None:
            dropped = job.graph.modules[decision.module]
            self.counters.module_drops[job.graph.name, dropped.name] += 1
            self.counters.bad[dropped.model] += 1
        module = NONE if decision.module is None else decision.module
        self._send_drop(front, decision.job_id, decision, module)

    def _send_drop(
        self, front: FrontAddress, number: int, decision: Drop | JobDropped, module: int = NONE
    ) -> None:
        data = drop_frame(
            number % LOCALS,
            decision.reason,
            decision.deadline_us,
            best_finish_us=decision.best_finish_us or 0,
            queue_position=decision.queue_position,
            module=module,
        )
        self.send(front, data)

    # Answers of jobs, and events that several parts cause

    def answer_job(self, number: int) -> None:
        """Tell the front where the outputs of a job lie."""
        deployment = self.generations.deployment
        if self.jobs.get(number) is None:
            return
        pieces = tuple(self.jobs.done(number, deployment))
        body = pack_job_done(JobDoneBody(number % LOCALS, pieces))
        self.send(self.fronts.front_of(number), frame(Kind.JOB_DONE, body, plan_tag=deployment.tag))

    def run_again(self, number: int) -> None:
        """Have the requests of a batch run again that no worker reports of."""
        self.counters.batches_lost += 1
        if number in self.batches.sent:
            self.apply(BatchLost(now_us=self.now_us, batch_id=number))

    def begin_job(self, job: Job, application: int) -> None:
        """A job of an application comes, or begins again."""
        self.jobs.begin(job)
        self.apply(
            JobArrival(
                now_us=self.now_us,
                job_id=job.number,
                application=application,
                deadline_us=job.deadline_us,
                samples=job.samples,
            )
        )

    def fail_job(self, number: int, reason: str) -> None:
        """Have a front answer a job as failed; no part knows it any more."""
        self.jobs.drop(number)
        body = pack_job_failed(JobFailedBody(number % LOCALS, reason))
        self.send(self.fronts.front_of(number), frame(Kind.JOB_FAILED, body))
