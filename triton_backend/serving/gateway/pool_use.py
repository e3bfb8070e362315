"""How busy and how bad the pools of a plan were lately, and how many GPUs their load asks for.

Rates of all that clients ask for are counted by the second, whatever plan is in force, and sized as
`poolpipe autoscale` does it at its usual period (`scheduler.policies.demand`): where it would make
a plan, a pool is advised as many times its vGPUs as it would have to run. Where requests are
answered late or not at all, though no more is asked for than was planned, GPUs are slower than
their profiles: those that the late ones need are added (Symphony, section 3.5), which no plan for
rates would do.

Totals are noted every `STEP_US`; a figure is the growth since the oldest note, which is `WINDOW_US`
old. So a call costs no more than a few sums, and nothing is counted twice. A generation begins
without notes: a plan that has just come is measured before GPUs of it are given up.

Not here: following it.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from triton_backend.contract.entries import demand_name
from triton_backend.contract.plan import Plan, Pool
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.contract.units import us_to_s
from triton_backend.scheduler.policies.advice import Epoch, bad_rate, change, idle_fraction
from triton_backend.scheduler.policies.demand import (
    FULL_SPEED,
    LEAST_RATE_RPS,
    PERIOD_S,
    RateTracker,
    fell,
    planned_rates,
    pool_factors,
    rose,
    vgpus_for,
)
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


class AskedRates:
    """Rates of all that clients ask for, by name, from `now_us` on, across plans."""

    def __init__(self, counters: GatewayCounters, now_us: int) -> None:
        self._counters = counters
        self._tracker = RateTracker(PERIOD_S)
        self._since_us = self._read_us = now_us
        self._totals = self._read()
        self._known: tuple[dict[str, float], dict[str, float]] | None = None

    def look(self, now_us: int) -> None:
        """Count, where a second has passed."""
        passed_s = us_to_s(now_us - self._read_us)
        if passed_s >= 1.0:
            totals = self._read()
            self._tracker.seconds(totals, self._totals, passed_s)
            self._totals, self._read_us, self._known = totals, now_us, None

    def sized_rps(self) -> tuple[dict[str, float], dict[str, float]] | None:
        """Rates to plan for, and those of now, with headroom; None before a period was counted."""
        if us_to_s(self._read_us - self._since_us) < PERIOD_S:
            return None
        if self._known is None:  # a few microseconds for every name
            self._known = self._tracker.targets_rps(), self._tracker.now_rps()
        return self._known

    def _read(self) -> dict[str, int]:
        entries = self._counters.entries.items()
        at_entries = {demand_name(model, entry): count for (model, entry), count in entries}
        return {**self._counters.asked, **at_entries}


class PoolUse:
    """The pools of the plan in force, from `now_us` on."""

    def __init__(
        self, plan: Plan, counters: GatewayCounters, now_us: int, asked: AskedRates | None = None
    ) -> None:
        self.asked = asked or AskedRates(counters, now_us)
        self._plan = plan
        self._planned_rps = {n: max(r, LEAST_RATE_RPS) for n, r in planned_rates(plan).items()}
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
        self.asked.look(now_us)
        notes = self._notes
        if now_us - notes[-1].at_us >= STEP_US:
            self._counters.count()  # until then it takes memory
            notes.append(self._note(now_us))
            while now_us - notes[1].at_us >= WINDOW_US:
                notes.popleft()

    def demands(self) -> dict[str, dict[str, float]]:
        """Requests/s by name that the plan is for, and that a plan made now would be for.

        Empty before they were counted for a period.
        """
        sized = self.asked.sized_rps()
        if sized is None:
            return {}
        return {
            name: {"planned_rps": planned, "wanted_rps": sized[0].get(name, LEAST_RATE_RPS)}
            for name, planned in self._planned_rps.items()
        }

    def _factors(self, span_us: int) -> dict[str, float]:
        """By pool, how many times as much it would run under the plan that the rates ask for.

        Empty where they ask for none.
        """
        sized = self.asked.sized_rps()
        if sized is None or span_us < STEP_US:
            return {}
        wanted, now = (
            {name: rates.get(name, LEAST_RATE_RPS) for name in self._planned_rps} for rates in sized
        )
        more = rose(wanted, self._planned_rps, FULL_SPEED)
        if more or (span_us >= WINDOW_US and fell(now, self._planned_rps)):
            return pool_factors(self._plan, wanted)
        return {}

    def _note(self, now_us: int) -> _Note:
        counters = self._counters
        names = [model.name for model in self._plan.models]
        offered = [counters.offered[name] for name in names]
        return _Note(now_us, self._busy_us.copy(), offered, [counters.bad[name] for name in names])

    def advice(self, now_us: int) -> list[PoolAdvice]:
        """Every pool of the plan, in its order."""
        then, now = self._notes[0], self._note(now_us)
        span_us = now_us - then.at_us
        factors = self._factors(span_us)
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
                    advised=_advised(pool, epoch, factors.get(pool.name, 1.0), span_us),
                )
            )
        return found


def _advised(pool: Pool, epoch: Epoch, factor: float, span_us: int) -> int:
    """vGPUs of a pool that has so many times as much to run, after it was watched for so long."""
    asked = vgpus_for(pool.vgpus, factor)
    if span_us < WINDOW_US:  # as if it had grown just now: nothing is freed
        asked = max(asked, pool.vgpus)
    late = change(epoch) if span_us >= STEP_US else 0
    return max(asked, pool.vgpus + late * WHOLE_GPU // pool.share) if late > 0 else asked


def advice_document(
    plan: Plan, pools: Iterable[PoolAdvice], demands: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """The object of `poolpipe advice --json`: pools, whole GPUs by class, rates by name."""
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
        "demands": {name: dict(rates) for name, rates in demands.items()},
    }
