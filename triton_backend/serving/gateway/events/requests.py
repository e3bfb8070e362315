"""Requests of fronts: they arrive, are refused at the door, cancelled, and read.

Here: what an announced request means under the plan that is served, its number, its entry, its job,
and whether it is admitted at all. Not here: what the core makes of it (`hub`), where rows of a job
lie (`applications.jobs`).
"""

from triton_backend.contract.decisions import FIRST_TASK, DropReason
from triton_backend.contract.events import Cancel, JobCancel
from triton_backend.scheduler.handover import matching_queues
from triton_backend.serving.gateway.admission import Refused, RefusedJob
from triton_backend.serving.gateway.applications.job import InputSlot, Job
from triton_backend.serving.gateway.hub import Hub
from triton_backend.serving.gateway.peers.addresses import FrontAddress
from triton_backend.serving.gateway.peers.fronts import drop_frame
from triton_backend.serving.gateway.put_off import Offered
from triton_backend.serving.transport.wire import LOCALS, NONE, ArrivalBody


class Requests:
    """Makes requests of fronts events of the core; of its own it keeps nothing."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._generations = hub.generations
        self._batches = hub.batches
        self._jobs = hub.jobs
        self._fronts = hub.fronts
        self._counters = hub.counters

    def arrival(
        self, front: FrontAddress, arrival: ArrivalBody, now_us: int, plan_tag: int = 0
    ) -> None:
        """A request, its express slot of the plan of `plan_tag`.

        Dropped where no plan has its model.

        Raises:
            InputError: its number is none that a front counts to.
        """
        served = self._generations.served
        local, deadline_us, samples, entry, express_slot, *_ = arrival
        number = self._fronts.number_of(front, local)
        if self._hub.core.has_request(number) or self._hub.put_off.waits(number):
            return  # announced again after a reconnection
        if front.model in served.applications:
            self._job_arrival(front, number, arrival, now_us, plan_tag)
            return
        arrival = self._with_priority(arrival)
        self._counters.asked[front.model] += 1 - arrival.low
        self._counters.offered[front.model] += 1 - arrival.low
        self._fronts.guards_us[front.model] = arrival.guard_us
        served.announced(front.model, arrival.guard_us)
        model = served.models.get(front.model)
        if model is not None and (served.entries[model] or entry):
            entry = self._entry_now(model, entry, plan_tag)
            arrival = arrival._replace(entry=entry)
            if entry != NONE and served.entries[model]:
                self._counters.entries[front.model, served.entries[model][entry]] += 1 - arrival.low
        if model is None or not 0 <= entry < len(served.queues[model]):
            self._hub.send(front, drop_frame(local, DropReason.MODEL_REMOVED, deadline_us))
            return
        now_us = self._hub.at(now_us)
        if not self._admits(served.queues[model][entry], arrival, now_us):
            self._refuse(front, arrival, model, now_us)
            return
        if served.retained_models[model]:
            job = self._job(front, number, arrival, plan_tag)
            if job is None:
                return
            self._jobs.begin_alone(job)
        elif express_slot != NONE:
            served.express.add(number, model, arrival, plan_tag)
        offered = Offered(front, model, samples, entry, deadline_us, arrival.low)
        self._hub.offer([(number, offered)])

    def _with_priority(self, arrival: ArrivalBody) -> ArrivalBody:
        """As the scheduler serves it: as usual where batches board shared ones."""
        boards = arrival.low == 1 and self._generations.served.deployment.boards
        return arrival._replace(low=0) if boards else arrival

    def _admits(self, queue: int, arrival: ArrivalBody, now_us: int) -> bool:
        """Low requests are no work that admission counts, and it refuses none of them."""
        door = self._generations.served.admission
        offer = queue, arrival.samples, arrival.deadline_us, now_us
        return arrival.low == 1 or door.admits(*offer)

    def _entry_now(self, model: int, entry: int, plan_tag: int) -> int:
        """The entry that an arrival names, in the plan that is served.

        NONE where its plan or block is gone. A front hears of another plan a moment later than
        this: what it sent before names entries of the last.
        """
        served = self._generations.served
        if plan_tag in (0, served.deployment.tag):
            return entry if entry < len(served.queues[model]) else NONE
        sender = self._generations.tagged(plan_tag)
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
        served = self._generations.served
        self._counters.asked[front.model] += 1
        self._counters.offered[front.model] += 1
        application = served.deployment.applications.numbers[front.model]
        now_us = self._hub.at(now_us)
        offer = application, arrival.samples, arrival.deadline_us, now_us
        if not served.admission.admits_job(*offer):
            self._counters.dropped_for(front.model, DropReason.OVERLOAD)
            refused = RefusedJob(
                now_us=now_us,
                application=application,
                deadline_us=arrival.deadline_us,
                samples=arrival.samples,
            )
            self._hub.observe(refused, ())
            reason = DropReason.OVERLOAD
            self._hub.send(front, drop_frame(arrival.request, reason, arrival.deadline_us))
            return
        job = self._job(front, number, arrival, plan_tag)
        if job is not None:
            self._hub.begin_job(job, application)

    def _job(
        self, front: FrontAddress, number: int, arrival: ArrivalBody, plan_tag: int
    ) -> Job | None:
        """A job whose inputs lie in a slot of its front; None, and refused, where they do not.

        So it is with a front that has not heard of this plan yet, or that still gathered itself.
        """
        sender = self._generations.tagged(plan_tag)
        if sender is None or arrival.express_slot == NONE:
            reason = DropReason.MODEL_REMOVED
            self._hub.send(front, drop_frame(arrival.request, reason, arrival.deadline_us))
            return None
        deployment = self._generations.deployment
        graph = deployment.applications.graph_of(front.model)
        inputs = InputSlot(sender.deployment.generation, front.gateway, arrival.express_slot)
        return Job(number, graph, arrival.samples, inputs, arrival.deadline_us)

    def _refuse(self, front: FrontAddress, arrival: ArrivalBody, model: int, now_us: int) -> None:
        """Overload: the core does not see what not even an ideal server could answer in time."""
        self._counters.dropped_for(front.model, DropReason.OVERLOAD)
        local, deadline_us, samples, entry, *_ = arrival
        queue = self._generations.served.queues[model][entry]
        refused = Refused(
            now_us=now_us, model=model, deadline_us=deadline_us, samples=samples, entry=entry
        )
        self._hub.observe(refused, ())
        dropped = drop_frame(
            local,
            DropReason.OVERLOAD,
            deadline_us,
            best_finish_us=self._generations.served.admission.best_finish_us(queue, now_us),
            queue_position=self._hub.core.queue_lengths()[model],
        )
        self._hub.send(front, dropped)

    def cancel(self, front: FrontAddress, local: int, now_us: int) -> None:
        """The client of a request gave up.

        Raises:
            InputError: its number is none that a front counts to.
        """
        number = self._fronts.number_of(front, local)
        if self._hub.core.has_request(number):
            self._hub.apply(Cancel(now_us=self._hub.at(now_us), request_id=number))
        elif self._hub.put_off.waits(number):
            self._hub.put_off.forget(number)
        elif self._jobs.open(number):
            self._hub.apply(JobCancel(now_us=self._hub.at(now_us), job_id=number))

    def job_read(self, front: FrontAddress, local: int) -> None:
        """A front has read the outputs of a job.

        Raises:
            InputError: its number is none that a front counts to.
        """
        number = self._fronts.number_of(front, local)
        if not self._jobs.open(number):
            self._jobs.drop(number)
            self._batches.may_send = True
            self._batches.send_waiting(self._hub.now_us)

    def front_lost(self, front: FrontAddress, now_us: int) -> None:
        """A front is gone, and its requests with it."""
        self._hub.put_off.forget_front(front)
        for number in (*self._hub.core.request_ids(), *self._jobs.numbers()):
            if number >= FIRST_TASK or self._fronts.front_of(number) != front:
                continue
            self.cancel(front, number % LOCALS, now_us)
            if self._jobs.get(number) is not None:  # done, and its front will not read it
                self.job_read(front, number % LOCALS)
