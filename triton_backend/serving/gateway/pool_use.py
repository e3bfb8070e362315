"""How busy and how bad the pools of a plan were lately, and how many GPUs that advises.

Totals are noted every `STEP_US`; a figure is the growth since the oldest note, which is `WINDOW_US`
old. So a call costs no more than a few sums, and nothing is counted twice. A generation begins
without notes: a plan that has just come is measured before GPUs of it are given up, but requests
that it cannot answer count after `STEP_US`.

The formula is that of the simulator (`scheduler.policies.advice`). Not here: following it.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from triton_backend.contract.plan import Plan, Pool
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.scheduler.policies.advice import Epoch, bad_rate, damped_change, idle_fraction
from triton_backend.serving.gateway.counters import GatewayCounters

STEP_US = 5_000_000
WINDOW_US = 60_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAdvice:
    """A pool: what was measured of it, and what that advises.

    Attributes:
        busy_by_vgpu: share of the time, of every vGPU in order, low requests apart.
        advised: vGPUs that it should have.
    """

    pool: Pool
    busy_by_vgpu: tuple[float, ...]
    idle_fraction: float
    bad_rate: float
    advised: int

    @property
    def advised_gpus(self) -> float:
        """The same in GPUs, whole ones and parts."""
        return self.advised * self.pool.share / WHOLE_GPU

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return {
            "gpu_class": self.pool.gpu_class,
            "vgpus": self.pool.vgpus,
            "advised": self.advised,
            "idle_fraction": self.idle_fraction,
            "busy_by_vgpu": list(self.busy_by_vgpu),
            "bad_rate": self.bad_rate,
        }


class _Note(NamedTuple):
    """Totals at an instant: busy time by vGPU; requests offered, and bad ones, by model."""

    at_us: int
    busy_us: list[int]
    offered: list[int]
    bad: list[int]


class PoolUse:
    """The pools of the plan in force, from `now_us` on."""

    def __init__(self, plan: Plan, counters: GatewayCounters, now_us: int) -> None:
        self._plan = plan
        self._counters = counters
        self._busy_us = [0] * sum(pool.vgpus for pool in plan.pools)
        self._users = {
            pool.name: [
                number
                for number, model in enumerate(plan.models)
                if any(s.pool == pool.name for p in model.pipelines for s in p.stages)
            ]
            for pool in plan.pools
        }
        self._notes = deque([self._note(now_us)])

    def ran(self, vgpu: int, busy_us: int) -> None:
        """A vGPU was busy for so long."""
        self._busy_us[vgpu] += busy_us

    def look(self, now_us: int) -> None:
        """Note how things stand, where it is time to."""
        notes = self._notes
        if now_us - notes[-1].at_us >= STEP_US:
            self._counters.count()  # until then it takes memory
            notes.append(self._note(now_us))
            while now_us - notes[1].at_us >= WINDOW_US:
                notes.popleft()

    def _note(self, now_us: int) -> _Note:
        counters = self._counters
        names = [model.name for model in self._plan.models]
        offered = [counters.offered[name] for name in names]
        return _Note(now_us, self._busy_us.copy(), offered, [counters.bad[name] for name in names])

    def advice(self, now_us: int) -> list[PoolAdvice]:
        """Every pool of the plan, in its order."""
        then, now = self._notes[0], self._note(now_us)
        span_us = now_us - then.at_us
        found: list[PoolAdvice] = []
        first = 0
        for pool in self._plan.pools:
            mine = range(first, first + pool.vgpus)
            first += pool.vgpus
            busy_us = [now.busy_us[vgpu] - then.busy_us[vgpu] for vgpu in mine]
            users = self._users[pool.name]
            offered, bad = (
                sum(after[user] - before[user] for user in users)
                for before, after in ((then.offered, now.offered), (then.bad, now.bad))
            )
            epoch = Epoch(
                gpus=pool.vgpus * pool.share / WHOLE_GPU,
                idle=idle_fraction(sum(busy_us), pool.vgpus, span_us),
                bad=min(1.0, bad_rate(offered, offered - bad)),
            )
            found.append(
                PoolAdvice(
                    pool=pool,
                    busy_by_vgpu=tuple(min(1.0, busy / max(span_us, 1)) for busy in busy_us),
                    idle_fraction=epoch.idle,
                    bad_rate=epoch.bad,
                    advised=pool.vgpus + _more_vgpus(pool, epoch, span_us),
                )
            )
        return found


def _more_vgpus(pool: Pool, epoch: Epoch, span_us: int) -> int:
    """vGPUs to add to a pool, or to free, after it was watched for so long."""
    if span_us < STEP_US:
        return 0
    whole = span_us >= WINDOW_US  # before, as if it had grown just now: nothing is freed
    gpus = damped_change(epoch, last_change=0 if whole else 1)
    return max(gpus * WHOLE_GPU // pool.share, 1 - pool.vgpus)


def advice_document(plan: Plan, pools: Iterable[PoolAdvice]) -> dict[str, Any]:
    """The object of `poolpipe advice --json`: pools, and whole GPUs by class."""
    wanted = dict.fromkeys(plan.gpus_used, 0.0)
    by_pool: dict[str, Any] = {}
    for advice in pools:
        by_pool[advice.pool.name] = advice.to_dict()
        wanted[advice.pool.gpu_class] = wanted.get(advice.pool.gpu_class, 0.0) + advice.advised_gpus
    held = plan.gpus()
    return {
        "pools": by_pool,
        "gpu_classes": {
            name: {"gpus": held.get(name, 0), "advised": math.ceil(gpus - 1e-9)}
            for name, gpus in wanted.items()
        },
    }
