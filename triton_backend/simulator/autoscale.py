"""Pools that follow the load.

Epochs simulated one by one, vGPUs added or freed between them by advice. What is offered is drawn
once for the whole run and cut into epochs. After each, every pool is given its advice
(`scheduler.policies.advice`): it frees vGPUs from the highest number on, or takes free GPUs of its
class, as far as there are any. Batch sizes stay as planned; only numbers of vGPUs change.

An epoch begins with idle vGPUs and an empty queue: what waits or runs at a boundary is finished by
the epoch it came in, beside the next one. With epochs of minutes and SLOs of milliseconds nothing
shows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import PlacementRun, Plan, Pool, Slot
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.contract.units import s_to_us
from triton_backend.scheduler.compiled import Records
from triton_backend.scheduler.policies.advice import UTILISATION, change, damped_change
from triton_backend.simulator.offered import Drawn, Offer, offered_requests
from triton_backend.simulator.results import PoolResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions, low_rates_of, rates_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEpoch:
    """A pool in an epoch: its vGPUs, what was measured, and what that advises.

    Attributes:
        advice: GPUs to add or to free, by the paper's formulas.
        change: the same, damped; what is followed as far as there are GPUs.
    """

    vgpus: int
    idle: float
    bad: float
    advice: int
    change: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochResult:
    """One epoch: when it began and ended, what was offered, how much in time, and every pool."""

    start_s: float
    end_s: float
    offered: int
    attainment: float
    pools: Mapping[str, PoolEpoch]

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return {
            "start_s": self.start_s,
            "end_s": self.end_s,
            "offered": self.offered,
            "attainment": self.attainment,
            "pools": {
                name: {
                    "vgpus": pool.vgpus,
                    "idle_fraction": pool.idle,
                    "bad_rate": pool.bad,
                    "advice_gpus": pool.advice,
                    "damped_gpus": pool.change,
                }
                for name, pool in self.pools.items()
            },
        }


def epochs_of(
    plan: Plan,
    options: SimOptions,
    epoch_s: float,
    *,
    follow: bool = True,
    utilisation: float = UTILISATION,
) -> Iterator[EpochResult]:
    """Simulate epoch after epoch, pools resized in between.

    Args:
        plan: what serves first.
        options: what is offered and how; failures and changes of plan are none of it.
        epoch_s: length of an epoch (s); the last one may be shorter.
        follow: whether the advice is followed, or only shown; not of applications and entries.
        utilisation: share of a GPU's time that shall be busy.

    Raises:
        InputError: the epoch is not positive, or an option does not fit.
    """
    if not epoch_s > 0:
        raise InputError("epoch", f"{epoch_s} s is not positive")
    if options.failures or options.changes:
        raise InputError("epoch", "pools that follow the load know no failures and no other plan")
    if follow and pools_depend(plan):
        raise InputError(
            "epoch", "pools of applications and entries follow the load by new plans, not by advice"
        )
    first = replace(options, reference=options.reference or plan)
    offer = Offer(
        arrivals=options.arrivals,
        rates_rps=rates_of(plan, first),
        low_rates_rps=low_rates_of(plan, first),
        duration_us=s_to_us(options.duration_s),
        seed=options.seed,
    )
    requests = offered_requests(plan, offer)
    edges = [*np.arange(0.0, options.duration_s, epoch_s).tolist(), options.duration_s]
    last = dict.fromkeys((pool.name for pool in plan.pools), 0)
    for number, (begin, end) in enumerate(pairwise(edges)):
        here = replace(first, duration_s=end - begin, seed=options.seed + number)
        result = simulate(plan, replace(here, arrivals=_between(requests, begin, end)))
        pools = {
            name: _pool_epoch(pool, last[name], utilisation) for name, pool in result.pools.items()
        }
        yield EpochResult(
            start_s=begin,
            end_s=end,
            offered=int((result.requests["low"] == 0).sum()),
            attainment=result.attainment,
            pools=pools,
        )
        wanted = {name: pool.change for name, pool in pools.items()} if follow else {}
        resized = with_gpus(plan, wanted)
        last = {
            after.name: after.vgpus - before.vgpus
            for before, after in zip(plan.pools, resized.pools, strict=True)
        }
        plan = resized


def pools_depend(plan: Plan) -> bool:
    """True if its pools depend on each other: more GPUs for one alone are no plan."""
    return bool(plan.applications) or any(model.entries for model in plan.models)


def _between(requests: Records, begin_s: float, end_s: float) -> Drawn:
    """The arrivals of an epoch, from its own beginning on."""
    begin, end = s_to_us(begin_s), s_to_us(end_s)
    chosen = requests[(requests["arrival_us"] >= begin) & (requests["arrival_us"] < end)]
    chosen["arrival_us"] -= begin
    chosen["deadline_us"] -= begin
    return Drawn(requests=chosen)


def _pool_epoch(measured: PoolResult, last_change: int, utilisation: float) -> PoolEpoch:
    """A pool's measurements, and the advice from them at a utilisation."""
    epoch = measured.epoch
    return PoolEpoch(
        vgpus=len(measured.busy_by_vgpu),
        idle=epoch.idle,
        bad=epoch.bad,
        advice=change(epoch),
        change=damped_change(epoch, last_change, utilisation=utilisation),
    )


def with_gpus(plan: Plan, changes: Mapping[str, int]) -> Plan:
    """A plan whose pools have more or fewer GPUs, by name; those of one part of a GPU in its parts.

    Pools that shrink keep their first vGPUs; those that grow take free GPUs of their class in the
    cluster's order, as many as there are. What a smaller pool can no longer carry is no longer
    promised: promises are scaled down with it.
    """
    kept = {pool.name: _first_slots(pool, changes.get(pool.name, 0)) for pool in plan.pools}
    taken = {(slot.node, slot.gpu) for slots in kept.values() for slot in slots}
    pools: list[Pool] = []
    for pool in plan.pools:
        slots = kept[pool.name]
        parts = WHOLE_GPU // pool.share
        wanted = len(slots) + parts * max(0, changes.get(pool.name, 0))
        for node, gpu in _gpus_of(plan, pool.gpu_class):
            if len(slots) >= wanted:
                break
            if (node, gpu) not in taken:
                taken.add((node, gpu))
                slots = [*slots, *(Slot(node, gpu, part) for part in range(parts))]
        runs = tuple(PlacementRun(node=s.node, gpu=s.gpu, slot=s.slot) for s in slots)
        pools.append(replace(pool, vgpus=len(slots), placement=runs))
    smaller = {
        before.name: min(1.0, after.vgpus / before.vgpus)
        for before, after in zip(plan.pools, pools, strict=True)
    }
    models = tuple(
        replace(
            model,
            pipelines=tuple(
                replace(
                    pipeline,
                    throughput_rps=pipeline.throughput_rps
                    * min(smaller[stage.pool] for stage in pipeline.stages),
                )
                for pipeline in model.pipelines
            ),
        )
        for model in plan.models
    )
    resized = replace(plan, pools=tuple(pools), models=models)
    return resized.counted()


def _first_slots(pool: Pool, gpus: int) -> list[Slot]:
    """The vGPUs that a pool keeps; one at least."""
    slots = list(pool.slots())
    fewer = max(0, -gpus) * (WHOLE_GPU // pool.share)
    return slots[: max(1, len(slots) - fewer)]


def _gpus_of(plan: Plan, gpu_class: str) -> Iterator[tuple[int, int]]:
    """GPUs of a class, node by node."""
    for node in range(plan.cluster.node_count):
        group = plan.cluster.node_group_of(node)
        if group.gpu_class == gpu_class:
            yield from ((node, gpu) for gpu in range(group.gpus))
