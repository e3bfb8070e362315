"""Counts of minutes by model, vGPU and reason of a drop, and as rows of the warehouse.

Rows are totals of a minute so far, never differences, so that saying one again does no harm. Here:
what is counted and how it is stored. Not here: which line of a log counts where (`aggregator`).
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from triton_backend.contract.plan import Plan
from warehouse.observations import (
    DropMinute,
    EntryMinute,
    ModelMinute,
    ModuleMinute,
    NeighbourMinute,
    VGpuMinute,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ModelKey = tuple[str, str, int]  # plan, model, minute
VGpuKey = tuple[str, int, str, int, int]  # plan, vGPU, model, stage, minute
DropKey = tuple[str, int, str]  # model, minute, reason
Side = tuple[str, int, int]  # model, samples, share
PairKey = tuple[str, Side, Side, int]  # class, what ran, what ran beside it, minute
ModuleKey = tuple[str, str, str, int]  # plan, application, module, minute
EntryKey = tuple[str, str, str, int, int, int]  # plan, model, entry, block, budget, minute


class VGpuFacts(NamedTuple):
    """A vGPU in the plan: its pool, the pool's class, its share in 300ths of a GPU.

    `pool` is None where a plan was counted before pools had names.
    """

    pool: str | None
    gpu_class: str
    share: int


@dataclass(slots=True)
class ModelCounts:
    """One model, plan and minute."""

    offered: int = 0
    served: int = 0
    late: int = 0
    dropped: int = 0
    failed: int = 0
    batches: int = 0
    samples: int = 0
    latency_sum_us: int = 0


@dataclass(slots=True)
class VGpuCounts:
    """One vGPU, plan, stage and minute, with what the plan says of the vGPU."""

    facts: VGpuFacts
    batches: int = 0
    busy_us: int = 0
    profiled_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Minutes as the warehouse stores them."""

    models: tuple[ModelMinute, ...]
    vgpus: tuple[VGpuMinute, ...]
    drops: tuple[DropMinute, ...]
    pairs: tuple[NeighbourMinute, ...]
    modules: tuple[ModuleMinute, ...]
    entries: tuple[EntryMinute, ...]


@dataclass(slots=True)
class MinuteStats:
    """Counts of every minute that is still open, by the keys above."""

    models: dict[ModelKey, ModelCounts] = field(default_factory=dict[ModelKey, ModelCounts])
    vgpus: dict[VGpuKey, VGpuCounts] = field(default_factory=dict[VGpuKey, VGpuCounts])
    drops: dict[DropKey, int] = field(default_factory=dict[DropKey, int])
    pairs: dict[PairKey, tuple[int, int]] = field(default_factory=dict[PairKey, tuple[int, int]])
    modules: dict[ModuleKey, tuple[int, int]] = field(
        default_factory=dict[ModuleKey, tuple[int, int]]
    )
    entries: dict[EntryKey, int] = field(default_factory=dict[EntryKey, int])

    def model(self, key: ModelKey) -> ModelCounts:
        """A model's counts, from zero where it has none."""
        counts = self.models.get(key)
        if counts is None:
            counts = self.models[key] = ModelCounts()
        return counts

    def vgpu(self, key: VGpuKey, facts: VGpuFacts) -> VGpuCounts:
        """A vGPU's counts with a stage, likewise."""
        counts = self.vgpus.get(key)
        if counts is None:
            counts = self.vgpus[key] = VGpuCounts(facts)
        return counts

    def drop(self, key: DropKey, more: int = 1) -> None:
        """One more, or one less."""
        self.drops[key] = self.drops.get(key, 0) + more

    def pair(self, key: PairKey, busy_us: int) -> None:
        """One more run beside another, and how long it took."""
        runs, total_us = self.pairs.get(key, (0, 0))
        self.pairs[key] = (runs + 1, total_us + busy_us)

    def module(self, key: ModuleKey, samples: int, rows: int) -> None:
        """One more request, of so many samples, for which a module runs so many rows."""
        samples_before, rows_before = self.modules.get(key, (0, 0))
        self.modules[key] = (samples_before + samples, rows_before + rows)

    def entry(self, key: EntryKey) -> None:
        """One more request at an entry."""
        self.entries[key] = self.entries.get(key, 0) + 1

    def rows(self, instance: str) -> Rows:
        """Everything, as one life of a gateway stores it."""
        return Rows(
            models=tuple(model_row(instance, k, self.models[k]) for k in sorted(self.models)),
            vgpus=tuple(vgpu_row(instance, k, self.vgpus[k]) for k in sorted(self.vgpus)),
            drops=tuple(drop_row(instance, k, self.drops[k]) for k in sorted(self.drops)),
            pairs=tuple(pair_row(instance, k, *self.pairs[k]) for k in sorted(self.pairs)),
            modules=tuple(module_row(instance, k, *self.modules[k]) for k in sorted(self.modules)),
            entries=tuple(entry_row(instance, k, self.entries[k]) for k in sorted(self.entries)),
        )

    def forget_before(self, minute: int) -> None:
        """Drop the counts of minutes before this one, counted from 1970."""
        self.models = {k: v for k, v in self.models.items() if k[2] >= minute}
        self.vgpus = {k: v for k, v in self.vgpus.items() if k[4] >= minute}
        self.drops = {k: v for k, v in self.drops.items() if k[1] >= minute}
        self.pairs = {k: v for k, v in self.pairs.items() if k[3] >= minute}
        self.modules = {k: v for k, v in self.modules.items() if k[3] >= minute}
        self.entries = {k: v for k, v in self.entries.items() if k[5] >= minute}


def model_row(instance: str, key: ModelKey, counts: ModelCounts) -> ModelMinute:
    """One model's minute."""
    plan_id, model, minute = key
    return ModelMinute(
        instance=instance,
        model=model,
        minute=instant_of(minute),
        plan_id=plan_id,
        offered=counts.offered,
        served=counts.served,
        late=counts.late,
        dropped=counts.dropped,
        failed=counts.failed,
        batches=counts.batches,
        samples=counts.samples,
        latency_sum_us=counts.latency_sum_us,
    )


def vgpu_row(instance: str, key: VGpuKey, counts: VGpuCounts) -> VGpuMinute:
    """One vGPU's minute with a stage."""
    plan_id, vgpu, model, stage, minute = key
    return VGpuMinute(
        instance=instance,
        plan_id=plan_id,
        vgpu=vgpu,
        pool=counts.facts.pool,
        model=model,
        stage=stage,
        gpu_class=counts.facts.gpu_class,
        share=counts.facts.share,
        minute=instant_of(minute),
        batches=counts.batches,
        busy_us=counts.busy_us,
        profiled_us=counts.profiled_us,
    )


def drop_row(instance: str, key: DropKey, dropped: int) -> DropMinute:
    """One model's drops for one reason in a minute."""
    model, minute, reason = key
    return DropMinute(
        instance=instance,
        model=model,
        minute=instant_of(minute),
        reason=reason,
        dropped=dropped,
    )


def pair_row(instance: str, key: PairKey, runs: int, busy_us: int) -> NeighbourMinute:
    """Runs of one kind beside those of another in a minute."""
    gpu_class, (model, batch, share), (beside_model, beside_batch, beside_share), minute = key
    return NeighbourMinute(
        instance=instance,
        gpu_class=gpu_class,
        model=model,
        batch=batch,
        share=share,
        beside_model=beside_model,
        beside_batch=beside_batch,
        beside_share=beside_share,
        minute=instant_of(minute),
        runs=runs,
        busy_us=busy_us,
    )


def module_row(instance: str, key: ModuleKey, samples: int, rows: int) -> ModuleMinute:
    """One module's rows of a minute."""
    plan_id, application, module, minute = key
    return ModuleMinute(
        instance=instance,
        application=application,
        module=module,
        minute=instant_of(minute),
        plan_id=plan_id,
        samples=samples,
        rows=rows,
    )


def entry_row(instance: str, key: EntryKey, offered: int) -> EntryMinute:
    """One entry's minute."""
    plan_id, model, entry, block, budget_us, minute = key
    return EntryMinute(
        instance=instance,
        model=model,
        entry=entry,
        block=block,
        budget_us=budget_us,
        minute=instant_of(minute),
        plan_id=plan_id,
        offered=offered,
    )


def instant_of(minute: int) -> datetime:
    """When a minute began."""
    return EPOCH + timedelta(minutes=minute)


def vgpu_facts(plan: Plan) -> tuple[VGpuFacts, ...]:
    """The vGPUs of a plan, by number."""
    facts = [VGpuFacts(pool.name, pool.gpu_class, pool.share) for pool in plan.pools]
    return tuple(facts[vgpu.pool] for vgpu in plan.vgpus())
