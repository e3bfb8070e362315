"""The gateway without sockets: what fronts and workers say goes in, frames for them come out.

`Gateway` is made of parts, each in a file of its own, and each knows only those above it:

    Generations         the generation served and others, which workers are up in each
    DispatchedBatches   batches that wait for slots, were sent or aborted
    Hub                 events into the core, its decisions carried out
    Announcements       generations made known to fronts and workers
    Workers             workers that come and go, the supervisor's actions
    Reports             ends, failures and losses of batches
    Requests            requests of fronts

The service calls the part that something is said to. Here are the parts' order, what is asked of
all of them (status), the clock's look, and the steps of a change of plan. The gateway is given
the time with every call and sends through a function it is given, so it is tested without a socket.

Not here: sockets and timers (`service`), which batch runs when and where (`scheduler`), which
worker is slow or silent (`liveness.supervisor`), where a change of plan stands (`rollout`).
"""

from collections.abc import Iterator
from typing import Any

from triton_backend.contract.events import Pause, PlanChanged, Resume
from triton_backend.contract.plan import Pool
from triton_backend.scheduler.policies.late_rules import of_late_binding
from triton_backend.scheduler.scheduler import Scheduler
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gateway.batches.generation import Generation, ThreadsOf
from triton_backend.serving.gateway.batches.generations import Generations
from triton_backend.serving.gateway.batches.slots import WorkerSlots
from triton_backend.serving.gateway.counters import GatewayCounters
from triton_backend.serving.gateway.events.announcements import Announcements
from triton_backend.serving.gateway.events.reports import Reports
from triton_backend.serving.gateway.events.requests import Requests
from triton_backend.serving.gateway.events.workers import Workers
from triton_backend.serving.gateway.hub import Hub, Observer
from triton_backend.serving.gateway.peers.addresses import Send
from triton_backend.serving.gateway.pool_use import PoolAdvice
from triton_backend.serving.gateway.rollout import Rollout, State
from triton_backend.serving.transport.wire import BATCH_BITS

# Batches of the life before the last may still use slots for this long.
HELD_BACK_SLOS = 2


class Gateway:
    """The parts of one gateway, and the plan that they serve.

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
        settings = deployment.settings
        core = Scheduler(
            deployment.plan,
            policy=settings.policy,
            nic=settings.nic,
            shared_batch_times=deployment.shared_batch_times,
            **of_late_binding(settings.late_binding),
        )
        self._epoch = epoch
        self._threads_of = threads_of
        self._former_link_busy_us: dict[tuple[str, str], int] = {}  # of earlier generations
        self.counters = GatewayCounters()
        slots = WorkerSlots(deployment, epoch, slots_free_us)
        served = Generation(deployment, slots, threads_of)
        served.serve(core.plan_number, self.counters, now_us)
        self.generations = Generations(served)
        self._rollout = Rollout(self.generations)
        self.hub = Hub(
            core,
            self.generations,
            self.counters,
            first_number=epoch << BATCH_BITS,
            now_us=now_us,
            observe=observe,
            send=send,
        )
        self.batches = self.hub.batches
        self.announcements = Announcements(self.generations, send, now_us)
        self.workers = Workers(self.hub, self.announcements, self._rollout, now_us)
        self.reports = Reports(self.hub, self.workers)
        self.requests = Requests(self.hub)

    @property
    def deployment(self) -> Deployment:
        """The generation served."""
        return self.generations.deployment

    @property
    def state(self) -> State:
        """Where a rollout stands."""
        return self._rollout.state(self.in_flight)

    @property
    def in_flight(self) -> int:
        """Batches dispatched and not ended, those that wait for a slot included."""
        return self.hub.core.in_flight()

    @property
    def former_batches(self) -> int:
        """Batches in flight of earlier generations, and generations whose slots jobs need."""
        needed = self.hub.jobs.generations() - {self.deployment.generation}
        return self.batches.of_others(self.generations.served) + len(needed)

    @property
    def retained_slots(self) -> int:
        """Slots for retained outputs that are taken."""
        return sum(g.retained.taken for g in self.generations.begun())

    @property
    def jobs(self) -> int:
        """Jobs in hand."""
        return len(self.hub.jobs)

    def waiting(self) -> Iterator[tuple[str, int]]:
        """Queue length of every model of the plan."""
        return zip(self.generations.served.models, self.hub.core.queue_lengths(), strict=True)

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
            "jobs": len(self.hub.jobs),
            "counters": self.counters.to_dict(),
        }

    def count_times(self) -> None:
        """Take what the core counted into the counters."""
        self.counters.took(self.hub.core.take_times())

    def link_busy_us(self) -> dict[tuple[str, str], int]:
        """Time in which links of the plan served carried anything, by node and direction."""
        return {
            (node, direction): busy_us + self._former_link_busy_us.get((node, direction), 0)
            for node, direction, busy_us in self.generations.served.supervisor.link_busy_us()
        }

    def advice(self, now_us: int) -> list[PoolAdvice]:
        """Every pool of the plan served: how busy and bad it was lately, and the vGPUs advised."""
        return self.generations.served.use.advice(max(self.hub.now_us, now_us))

    def loaded_bytes(self) -> dict[Pool, int]:
        """Weights of stages on demand that are there, of every pool that loads some."""
        loads = self.generations.served.loads
        return {} if loads is None else loads.bytes_by_pool()

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

    def look(self, now_us: int) -> None:
        """Do what has to be done by the clock, whatever happens; some twenty times a second."""
        self.workers.end_roll_call(now_us)
        hub, reports = self.hub, self.reports
        now_us = hub.at(now_us)
        hub.offer(hub.put_off.due(now_us))
        self.generations.served.use.look(now_us)
        self.batches.release(self.generations.begun(), now_us)
        self.batches.send(now_us)
        reports.end_shared_batches()
        reports.give_up_unreachable(now_us)
        if self.generations.former:
            self._look_at_former(now_us)
        reports.show_awaited(now_us)
        if self._rollout.lease_ended(self.in_flight, now_us):
            self.abort(now_us)

    # The steps of a change of plan

    def prepare(self, deployment: Deployment) -> None:
        """Accept a second generation beside the one served."""
        if deployment.generation == self.deployment.generation:
            return
        # Made now, because it takes longer than the change may.
        slots = WorkerSlots(deployment, self._epoch, 0)
        self.generations.prepared = Generation(deployment, slots, self._threads_of)
        self.hub.core.prepare(deployment.plan)
        self.announcements.announce(deployment, self.deployment, prepared=True)
        inherited = self.announcements.inherited(deployment)
        self.announcements.adopt(deployment, [before for before, _ in inherited])

    def flush(self, now_us: int) -> None:
        """Dispatch nothing more; the state becomes *flushed* when nothing is in flight."""
        if self._rollout.flush():
            self.hub.apply(Pause(now_us=self.hub.at(now_us)))

    def swap(self, now_us: int) -> None:
        """Go on under the prepared generation, with batches in flight or, after a flush, without.

        Raises:
            InputError: nothing is prepared, its workers are not all up, or a flush has not ended.
        """
        self.hub.offer(self.hub.put_off.end())  # by the plan that they were announced for
        former, served = self.generations.served, self._rollout.swap(self.in_flight)
        deployment = served.deployment
        inherited = self.announcements.inherited(deployment)  # `deployment` is not served yet
        served.slots.share(former.slots, inherited)
        self._former_link_busy_us = self.link_busy_us()
        self.count_times()  # the core forgets them with the plan
        served.serve(self.hub.core.plan_number + 1, self.counters, now_us, former.use.asked)
        self.generations.swap()
        self.workers.swapped()
        self.hub.fronts.add(deployment)
        self.announcements.announce(deployment, former.deployment, prepared=False)
        self.hub.core.set_shared_batch_times(deployment.shared_batch_times)
        changed = PlanChanged(now_us=self.hub.at(now_us), plan=deployment.plan, inherited=inherited)
        self.hub.apply(changed)

    def abort(self, now_us: int) -> None:
        """Forget what is prepared and go on under the plan served."""
        prepared = self.generations.prepared
        if prepared is not None:
            self.announcements.announce(self.deployment, prepared.deployment, prepared=False)
            inherited = self.announcements.inherited(prepared.deployment)
            self.announcements.adopt(self.deployment, [before for before, _ in inherited])
        self.generations.prepared = None
        if self._rollout.abort():
            self.hub.apply(Resume(now_us=self.hub.at(now_us)))

    def _look_at_former(self, now_us: int) -> None:
        """Give up what is late of earlier generations, and forget those that nothing needs."""
        generations = self.generations
        needed = self.batches.generations() | self.hub.jobs.generations()
        needed |= {number for number, one in generations.former.items() if one.slots.holds_back}
        self.reports.give_up_former(now_us)
        over = generations.former.keys() - needed
        for number in over:
            generations.forget(number)
        if over:  # batches that only they ran are given up
            latest = generations.prepared or generations.served
            self.announcements.adopt(latest.deployment, range(len(self.deployment.vgpus)))
