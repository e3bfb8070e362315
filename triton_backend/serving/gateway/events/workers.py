"""Workers that come and go, and what the supervisor wants done with them.

`Workers` knows which are busy with batches of the life before, and calls the roll of a new
scheduler: until it is over nothing is dispatched. It runs jobs again whose rows are lost with a
host, and takes the supervisor's actions.

Not here: which workers are up (`batches.generations`), which are slow or silent
(`liveness.supervisor`), what they report of batches (`reports`).
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from triton_backend.contract.decisions import DropReason
from triton_backend.contract.events import JobCancel, Pause, Resume, WorkerBack, WorkerLost
from triton_backend.serving.gateway.applications.job import Job
from triton_backend.serving.gateway.events.announcements import Announcements
from triton_backend.serving.gateway.hub import Hub
from triton_backend.serving.gateway.peers.addresses import WorkerAddress
from triton_backend.serving.gateway.roll_call import StartupBarrier
from triton_backend.serving.gateway.rollout import Rollout
from triton_backend.serving.liveness.supervisor import Action, GiveUpBatch, Order, Readmit, TakeOut
from triton_backend.serving.transport.wire import TimesBody, frame


class Workers:
    """The workers of all generations; those of the first count as lost until they report."""

    def __init__(
        self, hub: Hub, announcements: Announcements, rollout: Rollout, now_us: int
    ) -> None:
        self._hub = hub
        self._announcements = announcements
        self._rollout = rollout
        self._generations = hub.generations
        self._jobs = hub.jobs
        self._counters = hub.counters
        self._busy_until_us: dict[int, int] = {}  # vGPUs up, with batches of the life before
        deployment = hub.generations.deployment
        for vgpu in deployment.vgpus:
            hub.apply(WorkerLost(now_us=hub.at(now_us), vgpu=vgpu.index))
        # The workers of an earlier life are about to report; what fronts announce again waits for
        # them.
        self._roll_call: StartupBarrier | None = StartupBarrier(deployment, now_us)
        hub.apply(Pause(now_us=hub.at(now_us)))

    @property
    def calls_roll(self) -> bool:
        """True if workers are waited for before anything is dispatched.

        The gateway is to look often.
        """
        return self._roll_call is not None

    def swapped(self) -> None:
        """Another generation is served: all of its workers are up, and idle."""
        self._roll_call = None
        self._busy_until_us = {}

    def busy(self, worker: WorkerAddress, idle_us: int, now_us: int) -> None:
        """A worker is ready, and busy with batches of the life before until an instant, as planned.

        What it gets until then is planned behind them: without it the core would drop requests that
        it runs in time. Not in the first moments, in which others that are idle have yet to report.
        """
        if worker.generation != self._generations.deployment.generation:
            self._announcements.offer(worker)
        elif self._roll_call is None:
            self.up(worker, now_us, idle_us)
        else:
            self._announcements.offer(worker)
            self._roll_call.busy[worker.vgpu] = idle_us
            self._roll_call.heard_us = now_us
            self.end_roll_call(now_us)

    def up(self, worker: WorkerAddress, now_us: int, idle_us: int = 0) -> None:
        """A worker is ready, and idle from an instant on (0: now), at most an SLO from now."""
        up, generation = self._generations.up(worker.generation), self._generations.served
        served = worker.generation == generation.deployment.generation
        if worker.vgpu in up:
            if served and self._busy_until_us.pop(worker.vgpu, 0) > now_us:  # it was quicker
                self._hub.apply(WorkerBack(now_us=self._hub.at(now_us), vgpu=worker.vgpu))
            return
        self._announcements.offer(worker)
        if served and not generation.supervisor.worker_up(worker.vgpu, now_us, up):
            return
        self._generations.came(worker)
        if served:
            if generation.loads is not None:
                generation.loads.worker_up(worker.vgpu)
            now_us = self._hub.at(now_us)
            idle_us = min(idle_us, now_us + max(generation.deployment.longest_slos_us))
            if idle_us > now_us:
                self._busy_until_us[worker.vgpu] = idle_us
            self._hub.apply(WorkerBack(now_us=now_us, vgpu=worker.vgpu, idle_us=idle_us))
            if self._roll_call is not None:
                self._roll_call.heard_us = now_us
                self.end_roll_call(now_us)
            self._hub.offer(self._hub.put_off.reported(worker.vgpu))

    def lost(self, worker: WorkerAddress, now_us: int) -> None:
        """A worker's process is gone, with what it held."""
        if worker.generation == self._generations.deployment.generation:
            self._generations.served.supervisor.process_ended(worker.vgpu, now_us)
            if self._roll_call is not None:
                self._roll_call.busy.pop(worker.vgpu, None)
        self._take_out(worker, now_us)
        former = self._generations.former.get(worker.generation)
        if former is not None:  # the core knows what of it was still to run
            lost = WorkerLost(now_us=self._hub.at(now_us), vgpu=worker.vgpu, plan=former.number)
            self._hub.apply(lost)
        self._run_stranded_again(worker, now_us)

    def _run_stranded_again(self, worker: WorkerAddress, now_us: int) -> None:
        """Run jobs from their first module whose rows lie on a host without a process left to ask.

        What the host itself has kept counts as lost with it: its memory may be new when it is back.
        """
        generation = self._generations.begun_of(worker.generation)
        if generation is None or generation.deployment.at_gateway(worker.vgpu):
            return
        deployment = generation.deployment
        node = deployment.node_name_of(worker.vgpu)
        there = {
            v.index
            for v in deployment.vgpus
            if deployment.same_host(deployment.node_name_of(v.index), node)
        }
        if there & self._generations.up(worker.generation):
            return
        for job in self._jobs.stranded(worker.generation, there):
            number, name = job.number, job.graph.name
            self._jobs.drop(number)
            reason = DropReason.BEGUN_ANEW
            self._hub.apply(JobCancel(now_us=self._hub.at(now_us), job_id=number, reason=reason))
            application = self._generations.deployment.applications.numbers.get(name)
            if application is None or name not in self._generations.served.applications:
                why = f"the host of node {node!r} is lost, with what its modules gave"
                self._hub.fail_job(number, why)
                continue
            self._counters.jobs_begun_anew += 1
            graph = self._generations.deployment.applications.graphs[application]
            again = Job(number, graph, job.samples, job.inputs, job.deadline_us)
            self._hub.begin_job(again, application)

    def _take_out(self, worker: WorkerAddress, now_us: int) -> None:
        """Count a worker as lost, where it was up."""
        if not self._generations.went(worker):
            return
        if worker.generation == self._generations.deployment.generation:
            self._busy_until_us.pop(worker.vgpu, None)
            self._counters.workers_lost += 1
            self._hub.apply(WorkerLost(now_us=self._hub.at(now_us), vgpu=worker.vgpu))

    def lost_vgpus(self) -> dict[str, int]:
        """VGPUs without a worker that is up, by pool; not counted where no request has variants."""
        if not self._generations.deployment.plan.workload.variants:
            return {}
        deployment, up = self._generations.deployment, self._generations.up_served()
        there = range(len(deployment.vgpus))
        return Counter(deployment.pool_of(vgpu).name for vgpu in there if vgpu not in up)

    def pace_result(self, worker: WorkerAddress, times: TimesBody, now_us: int) -> None:
        """A worker ran its stage on zeros."""
        self._hub.at(now_us)
        took_us = times.end_us - times.start_us
        supervisor, up = self._generations.served.supervisor, self._generations.up_served()
        self.take(supervisor.pace_result(worker.vgpu, took_us, up))

    def end_roll_call(self, now_us: int) -> None:
        """Dispatch from now on, where enough workers have reported, or had the time to."""
        call = self._roll_call
        if call is None or not call.is_over(self._generations.up_served(), now_us):
            return
        self._roll_call = None
        for vgpu, idle_us in call.busy.items():
            self.up(WorkerAddress(self._generations.deployment.generation, vgpu), now_us, idle_us)
        if not self._rollout.paused:
            self._hub.apply(Resume(now_us=self._hub.at(now_us)))

    def take(self, actions: Iterator[Action] | Sequence[Action]) -> None:
        """Take the supervisor's actions, at the instant of the core's last event."""
        deployment = self._generations.deployment
        for action in actions:
            match action:
                case TakeOut(vgpu):
                    self._counters.workers_drained += 1
                    self._take_out(WorkerAddress(deployment.generation, vgpu), self._hub.now_us)
                case Readmit(vgpu):
                    self.up(WorkerAddress(deployment.generation, vgpu), self._hub.now_us)
                case Order(vgpu, kind):
                    worker = WorkerAddress(deployment.generation, vgpu)
                    self._hub.send(worker, frame(kind, plan_tag=deployment.tag))
                case GiveUpBatch(number) if number in self._hub.batches.sent:
                    self._hub.run_again(number)
                case GiveUpBatch():
                    pass  # an action before this one has ended it
                case _:
                    self._hub.apply(action)
