"""Which workers of a generation are to be drained or renewed: slow ones, and silent ones.

Their node notices a hung process too, but later; here it is told from results, so that the
requests run elsewhere in time. Only where the pool has another worker, lest a machine that is busy
loses them all.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from triton_backend.contract.decisions import Hop
from triton_backend.contract.events import PaceChanged
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gateway.state import Batch
from triton_backend.serving.liveness.pool_slowdown import PoolPaces
from triton_backend.serving.liveness.quarantine import DrainedWorkers
from triton_backend.serving.liveness.slow_workers import PaceWatch
from triton_backend.serving.transport.wire import Kind

# Looking at every run of a hundred workers takes half a millisecond.
JUDGE_EVERY_US = 500_000


class WorkerWatch:
    """The pace and the last report of every vGPU of a generation."""

    def __init__(self, deployment: Deployment, now_us: int) -> None:
        self._deployment = deployment
        self._pools = [(v.model, v.pipeline, v.stage) for v in deployment.vgpus]
        self._pace = PaceWatch(self._pools)
        self._heard_us = [0] * len(self._pools)
        self._ran_us = [now_us] * len(self._pools)
        self._drained = DrainedWorkers()
        stretch = deployment.settings.time_stretch
        by_pool = {
            pool: [max(round(us * stretch), 1) for us in deployment.stage_of(v).latency_us_by_batch]
            for v, pool in enumerate(self._pools)
        }
        # What the profile says of batches of 1 .. samples, by vGPU.
        self._expected_us = [by_pool[pool] for pool in self._pools]
        planned = {pool: self._planned_us(v) for v, pool in enumerate(self._pools)}
        self._asked: set[int] = set()
        self._judge_us = now_us
        self._paces = PoolPaces(self._pace, planned, now_us)

    def begins(self, vgpu: int, now_us: int) -> None:
        """A vGPU takes batches: a new process stands for it, or a drained one is back."""
        self._pace.forget(vgpu)
        self._drained.back(vgpu, now_us)
        self._heard_us[vgpu] = now_us

    def gone(self, vgpu: int) -> None:
        """The process of a drained vGPU ended."""
        self._drained.forget(vgpu)

    def drain(self, vgpu: int, now_us: int) -> None:
        """A vGPU gets no more batches until its trials are well."""
        self._pace.forget(vgpu)
        self._drained.drain(vgpu, now_us)

    def orders(self, now_us: int) -> list[tuple[int, Kind]]:
        """What drained workers are to be told now, and those whose pace is asked for."""
        asked, self._asked = sorted(self._asked), set()
        return [*self._drained.orders(now_us), *((vgpu, Kind.PACE_PROBE) for vgpu in asked)]

    def tried(self, vgpu: int, took_us: int) -> None:
        """A vGPU ran its planned batch on nothing."""
        self._pace.tried(vgpu, took_us, self._planned_us(vgpu))

    def well(self, up: AbstractSet[int]) -> list[int]:
        """Drained vGPUs that are well again, or whose pool has nobody else."""
        return [vgpu for vgpu in self._drained if self._pace.is_well(vgpu, up)]

    def ended(self, batch: Batch, vgpu: int, took_us: int, now_us: int) -> bool:
        """A worker has just ended a stage; whether that gives reason to ask `stays_slow`."""
        self._heard_us[vgpu] = self._ran_us[vgpu] = now_us
        dispatch = batch.dispatch
        expected_us = self._expected_us[vgpu][dispatch.samples - 1]
        late_us = now_us - dispatch.hops[batch.done - 1].end_us
        return self._pace.ran(vgpu, took_us, expected_us, late_us)

    def stays_slow(self, vgpu: int, up: AbstractSet[int]) -> bool:
        """Whether a worker stays slow, beside those that are up."""
        # An idle worker of the pool shows its pace when it is asked to.
        self._asked.update(self._pace.untried(vgpu, up))
        return self._pace.is_slow(vgpu, up)

    def _planned_us(self, vgpu: int) -> int:
        """What the profile says of the planned batch."""
        return self._expected_us[vgpu][self._deployment.pipeline_of(vgpu).batch - 1]

    def paces(self, now_us: int, up: AbstractSet[int]) -> list[PaceChanged]:
        """Pools that are slower than planned as a whole, or no more."""
        if now_us < self._judge_us:
            return []
        self._judge_us = now_us + JUDGE_EVERY_US
        for pool, ran_us in zip(self._pools, self._ran_us, strict=True):
            self._paces.heard(pool, ran_us)
        return [
            PaceChanged(now_us=now_us, model=m, pipeline=p, stage=s, percent=percent)
            for (m, p, s), percent in self._paces.changes(now_us, up)
        ]

    def overdue(self, batches: Iterable[Batch], now_us: int, up: AbstractSet[int]) -> list[int]:
        """VGPUs that should have ended a batch long ago and have said nothing since."""
        next_hops = [b.dispatch.hops[b.done] for b in batches if not b.ended and not b.early]
        overdue = {hop.vgpu for hop in next_hops if self._is_overdue(hop, now_us)}
        well = {self._pools[vgpu] for vgpu in up - overdue}
        return [vgpu for vgpu in overdue if self._pools[vgpu] in well]

    def _is_overdue(self, hop: Hop, now_us: int) -> bool:
        last_us = max(hop.end_us, self._heard_us[hop.vgpu])
        settings = self._deployment.settings
        stage_us = self._deployment.stage_of(hop.vgpu).latency_us * settings.time_stretch
        return now_us - last_us > self._pace.overdue_after_us(stage_us)
