"""One generation of the plan, as the scheduler's process keeps it."""

from collections.abc import Callable, Mapping

from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gateway.admission import Admission
from triton_backend.serving.gateway.applications.jobs import RetainedOutputs
from triton_backend.serving.gateway.batches.express import ExpressArrivals
from triton_backend.serving.gateway.batches.slots import WorkerSlots
from triton_backend.serving.gateway.counters import GatewayCounters
from triton_backend.serving.gateway.loads import loads_of
from triton_backend.serving.gateway.peers.addresses import WorkerAddress
from triton_backend.serving.gateway.pool_use import AskedRates, PoolUse
from triton_backend.serving.liveness.supervisor import WorkerSupervisor
from triton_backend.serving.liveness.threads import ThreadUse

ThreadsOf = Callable[[WorkerAddress], Mapping[int, ThreadUse]]
"""The threads of a worker's process now (`WorkerSupervisor`)."""


class Generation:
    """The gateway's state of a generation.

    Of the one served, and of those before with batches left.

    Attributes:
        number: of its plan in the core; None while it is only prepared.
        runs: by stage, what is counted of its runs; this and the next three from `serve` on.
        use: how busy its pools were.
        loads: of its stages on demand; None where it has none.
        supervisor: judges its workers.
    """

    def __init__(self, deployment: Deployment, slots: WorkerSlots, threads_of: ThreadsOf) -> None:
        models = deployment.plan.models
        self._threads_of = threads_of
        self.number: int | None = None
        self.deployment = deployment
        self.models = {model.name: number for number, model in enumerate(models)}
        self.queues = deployment.plan.queues()
        self.entries = [[entry.name for entry in model.entries] for model in models]
        settings = deployment.settings
        self.admission = Admission(deployment.plan, settings.policy, settings.guard_us)
        self.slots = slots
        self.express = ExpressArrivals(deployment)
        self.retained = RetainedOutputs(deployment, slots.life)
        self.applications = frozenset(one.name for one in deployment.plan.applications)
        self.retained_models = [
            model.name in deployment.applications.retained_models for model in models
        ]
        self._most_us = {model.name: settings.guard_us(model.slo_us) for model in models}
        self._guards_us = dict(self._most_us)
        self.timer_lead_us = min(self._guards_us.values())

    def announced(self, model: str, guard_us: int) -> None:
        """A front said what it keeps back of a request's time.

        Timers ring as much before their instants. Of several models the least counts, as always:
        one that is sent early leaves out those that come later. A client that allows more than the
        SLO keeps back more, too, and would move all that waits, and a shared batch's patience with
        its members, by as much: no more counts than the SLO's own.
        """
        guard_us = min(guard_us, self._most_us.get(model, guard_us))
        if self._guards_us.get(model, guard_us) != guard_us:
            self._guards_us[model] = guard_us
            self.timer_lead_us = min(self._guards_us.values())

    def serve(
        self, number: int, counters: GatewayCounters, now_us: int, asked: AskedRates | None = None
    ) -> None:
        """Its plan, of that number in the core, is served; workers are judged from now on.

        `asked` are rates of clients as counted under the plans before.
        """
        deployment, threads_of = self.deployment, self._threads_of
        self.number = number
        self.runs = counters.serve(deployment.plan, deployment.settings.time_stretch)
        self.use = PoolUse(deployment.plan, counters, now_us, asked)
        self.loads = loads_of(deployment.plan, counters)
        self.supervisor = WorkerSupervisor(
            deployment,
            now_us,
            lambda vgpu: threads_of(WorkerAddress(deployment.generation, vgpu)),
        )
