"""A change that GPUs have no room to make at once, in steps: each is a plan of its own."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from triton_backend.contract.applications.steps import Step
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import (
    TOLERANCE,
    ModelPlan,
    Pipeline,
    PlacementRun,
    Plan,
    Pool,
    VGpu,
)
from triton_backend.contract.shares import share_text
from triton_backend.contract.transition.memory import (
    GpuPeak,
    gpu_memories_gib,
    transition,
    worker_sizes_gib,
)
from triton_backend.contract.transition.workers import places
from triton_backend.contract.workload import Workload


def steps(before: Plan, after: Plan, *, at_once: bool = False) -> tuple[Plan, ...]:
    """Plans to change to, one after another, so that every GPU holds old and new at each change.

    The last is `after`. Where it cannot follow at once, models go over in groups (those that share
    a pool in either plan go together). In every plan between, a group serves by its old pools or by
    its new ones: where a GPU is too full for what starts there, models that have another vGPU leave
    it first, and a group whose new workers find room goes over, with as many of them as do.

    With `at_once` there is nothing between.

    Raises:
        InputError: it cannot be done so; names a GPU with what it needs and what it has.
    """
    _check_slices(before, after)
    found: list[Plan] = []
    now = _Stage(before, after)
    while True:
        change = transition(now.plan, after)
        if change.fits:
            return (*found, after)
        full = [gpu for gpu in change.gpus if not gpu.fits]
        following = None if at_once else now.next(full)
        if following is None:
            worst = max(full, key=lambda gpu: gpu.during_gib - (gpu.memory_gib or 0.0))
            raise InputError(
                f"change of plan, node {worst.node}, GPU {worst.gpu}",
                f"old and new need {worst.during_gib:.3f} GiB together, it has"
                f" {worst.memory_gib:g}, and "
                + (
                    "it is to be made at once"
                    if at_once
                    else "no model on it has another vGPU to go on with"
                ),
            )
        now = following
        found.append(
            replace(now.plan, plan_id=f"{before.plan_id}-{after.plan_id}.{len(found) + 1}")
        )


def _check_slices(before: Plan, after: Plan) -> None:
    """MIG slices are made while their card is not used: a change leaves them as they are.

    Raises:
        InputError: a node's slices would change.
    """
    cut = [_mig_cut(plan) for plan in (before, after)]
    for node in sorted(cut[0].keys() & cut[1].keys()):
        was, then = cut[0][node], cut[1][node]
        if was != then:
            gpu, slot, share = min(set(was) ^ set(then))
            text = f"slot {slot} of GPU {gpu}, {share_text(share)}, is in one plan alone"
            reason = f"its MIG slices change ({text}); divide its cards and serve the plan again"
            raise InputError(f"change of plan, node {node}", reason)


def _mig_cut(plan: Plan) -> dict[str, list[tuple[int, int, int]]]:
    """GPU, slot and share of every vGPU on MIG slices, by node."""
    found: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    divided = {c.name for c in plan.cluster.gpu_classes if c.mig is not None}
    if divided:
        for place in places(plan):
            if place.gpu_class in divided:
                found[place.node].append((place.gpu, place.slot, place.share))
    return {node: sorted(own) for node, own in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Models of one plan with the vGPUs that are left to them."""

    plan: Plan
    models: frozenset[str]
    vgpus: frozenset[int]

    def served(self) -> bool:
        """True if every queue of its models has a pipeline with a vGPU at every stage."""
        there = self._pools_there()
        return all(
            any(_whole(pipeline, there) for pipeline in model.pipelines if _of(model, pipeline, q))
            for model in self.plan.models
            if model.name in self.models
            for q in model.queues
        )

    def _pools_there(self) -> dict[str, float]:
        """How much of its vGPUs each pool has left, of those that have any."""
        counts: dict[int, int] = defaultdict(int)
        for vgpu in self.plan.vgpus():
            counts[vgpu.pool] += vgpu.index in self.vgpus
        pools = self.plan.pools
        return {pools[k].name: n / pools[k].vgpus for k, n in counts.items() if n}

    def built(self, taken: frozenset[str]) -> tuple[list[Pool], list[ModelPlan]]:
        """Its pools and models; pools named again where their name is `taken`."""
        there = self._pools_there()
        names = {name: f"{name}.next" if name in taken else name for name in there}
        models = [
            _reduced(model, there, names) for model in self.plan.models if model.name in self.models
        ]
        used = {s.pool for model in models for p in model.pipelines for s in p.stages}
        pools: list[Pool] = []
        for number, pool in enumerate(self.plan.pools):
            if names.get(pool.name) in used:
                kept = [v for v in self.plan.vgpus() if v.pool == number and v.index in self.vgpus]
                runs = tuple(PlacementRun(**v.slot._asdict()) for v in kept)
                pools.append(replace(pool, name=names[pool.name], vgpus=len(runs), placement=runs))
        return pools, models


def _steps_of(part: _Part, models: Sequence[ModelPlan]) -> tuple[Step, ...]:
    """The Python steps of one plan's workload that are among models."""
    names = {model.name for model in models}
    return tuple(step for step in part.plan.workload.steps if step.name in names)


def _whole(pipeline: Pipeline, there: Mapping[str, float]) -> bool:
    return all(stage.pool in there for stage in pipeline.stages)


def _of(model: ModelPlan, pipeline: Pipeline, queue: Any) -> bool:
    return not model.entries or pipeline.entry == queue.name


def _reduced(model: ModelPlan, there: Mapping[str, float], names: Mapping[str, str]) -> ModelPlan:
    """A model with the pipelines that are whole, at the rates that its pools still carry."""
    pipelines = tuple(
        replace(
            pipeline,
            throughput_rps=pipeline.throughput_rps * min(there[s.pool] for s in pipeline.stages),
            stages=tuple(replace(stage, pool=names[stage.pool]) for stage in pipeline.stages),
        )
        for pipeline in model.pipelines
        if _whole(pipeline, there)
    )
    promised = sum(pipeline.throughput_rps for pipeline in model.pipelines)
    left = sum(pipeline.throughput_rps for pipeline in pipelines)
    share = left / promised if promised else 1.0
    return replace(model, pipelines=pipelines, throughput_rps=model.throughput_rps * share)


class _Stage:
    """Where a change in steps stands: which models have gone over, which vGPUs serve."""

    def __init__(self, before: Plan, after: Plan) -> None:
        self.plan = before
        self._after = after
        change = transition(before, after)
        self._ends, self._starts = frozenset(change.ends), frozenset(change.starts)
        names = frozenset(model.name for model in before.models)
        self._old = _Part(plan=before, models=names, vgpus=_all(before))
        self._new = _Part(plan=after, models=frozenset(), vgpus=frozenset())

    def vgpus_over(self) -> frozenset[int]:
        """vGPUs of the new plan that serve."""
        return self._new.vgpus

    def next(self, full: Sequence[GpuPeak]) -> "_Stage | None":
        """One step further towards room on GPUs that are too full; None where there is none."""
        found: _Stage = self
        groups = _groups(self._old.plan, self._after)
        for group in groups:
            if not group & found._old.models or not found._in_the_way(group, full):
                continue
            over = found._gone_over(group, self)
            if over is None and not group & {model.name for model in self._after.models}:
                over = found._gone_over(group | self._added(), self)
            found = over if over is not None else found._left(group, full)
        if found is not self:
            return found
        for group in groups:
            if group & self._old.models and self._in_the_way(group, full):
                for others in (self._where_it_goes(group, groups), self._added()):
                    over = self._gone_over(group | others, self)
                    if over is not None:
                        return over
        return None

    def _where_it_goes(
        self, group: frozenset[str], groups: Sequence[frozenset[str]]
    ) -> frozenset[str]:
        """Models that stand where the new workers of a group go, and where theirs go, and so on."""
        old, at = self._old, places(self._old.plan)
        together = group
        while True:
            goes_to = {
                (place.node, place.gpu)
                for vgpu, place in zip(self._after.vgpus(), places(self._after), strict=True)
                if vgpu.pool in _pools_of(self._after, together)
            }
            here = {
                v.pool for v in old.plan.vgpus() if (at[v.index].node, at[v.index].gpu) in goes_to
            }
            stand = {
                other
                for other in groups
                if other & old.models and _pools_of(old.plan, other) & here
            }
            more = together.union(*stand)
            if more == together:
                return together
            together = more

    def _added(self) -> frozenset[str]:
        """Models that only the new plan has."""
        return frozenset(m.name for m in self._after.models) - {
            m.name for m in self._old.plan.models
        }

    def _with(self, old: _Part, new: _Part) -> "_Stage | None":
        """The same with other parts, where they make a plan."""
        if not (old.served() and new.served() and old.models | new.models):
            return None
        pools, models = old.built(frozenset())
        more = new.built(frozenset(pool.name for pool in pools))
        demands = {demand.name: demand for demand in old.plan.workload.models}
        demands |= {demand.name: demand for demand in new.plan.workload.models}
        names = [model.name for model in (*models, *more[1])]
        made: _Stage = object.__new__(_Stage)
        made.__dict__.update(self.__dict__)
        try:
            plan = replace(
                old.plan,
                planner="steps",
                workload=Workload(
                    models=tuple(demands[n] for n in names if n in demands),
                    steps=(*_steps_of(old, models), *_steps_of(new, more[1])),
                ),
                pools=(*pools, *more[0]),
                models=(*models, *more[1]),
            )
        except InputError:  # two workers at one place, or more than a GPU may be cut into
            return None
        made.plan, made._old, made._new = plan.counted(), old, new
        return made

    def _in_the_way(self, group: frozenset[str], full: Sequence[GpuPeak]) -> bool:
        return any(True for _ in self._leavers(group, full))

    def _leavers(self, group: frozenset[str], full: Sequence[GpuPeak]) -> Iterable[VGpu]:
        """vGPUs of a group that end and stand on GPUs that are too full."""
        plan = self._old.plan
        where = {(gpu.node, gpu.gpu) for gpu in full}
        pools = _pools_of(plan, group)
        for vgpu, place in zip(plan.vgpus(), places(plan), strict=True):
            stays = vgpu.index not in self._ends or vgpu.index not in self._old.vgpus
            if not stays and vgpu.pool in pools and (place.node, place.gpu) in where:
                yield vgpu

    def _gone_over(self, group: frozenset[str], now: "_Stage") -> "_Stage | None":
        """A group served by its new pools: by all of them, or by those that find room now."""
        pools = _pools_of(self._after, group)
        own = [vgpu for vgpu in self._after.vgpus() if vgpu.pool in pools]
        names = frozenset(model.name for model in self._after.models) & group
        added = self._added()
        old = replace(self._old, models=self._old.models - group)
        here = frozenset(vgpu.index for vgpu in own if vgpu.index not in self._starts)
        by_gpu: dict[tuple[int, int], set[int]] = defaultdict(set)
        for vgpu in own:
            if vgpu.index in self._starts:
                by_gpu[vgpu.slot.node, vgpu.slot.gpu].add(vgpu.index)

        def made(numbers: frozenset[int]) -> "_Stage | None":
            new = replace(self._new, vgpus=self._new.vgpus | numbers)
            there = frozenset(
                n for n in names if n not in added or replace(new, models=frozenset([n])).served()
            )
            stage = self._with(old, replace(new, models=self._new.models | there))
            if stage is None:
                return None
            change = transition(now.plan, stage.plan)
            return stage if change.fits else None

        whole = made(here.union(*by_gpu.values()))
        if whole is not None:
            return whole
        for numbers in by_gpu.values():
            if self._finds_room(now, here | numbers):
                here |= numbers
        return made(here)

    def _finds_room(self, now: "_Stage", numbers: frozenset[int]) -> bool:
        """True if new workers fit beside all that there is now, and beside each other."""
        sizes, held = worker_sizes_gib(self._after), defaultdict[tuple[str, int], float](float)
        room = gpu_memories_gib(self._after)
        fresh = ((numbers | self._new.vgpus) - now.vgpus_over()) & self._starts
        for gpu in transition(now.plan, now.plan).gpus:
            held[gpu.node, gpu.gpu] = gpu.before_gib
        where = places(self._after)
        for vgpu in self._after.vgpus():
            if vgpu.index in fresh:
                held[where[vgpu.index].node, where[vgpu.index].gpu] += sizes[vgpu.pool]
        return all(
            room[node] is None or taken <= (room[node] or 0.0) * (1 + TOLERANCE)
            for (node, _), taken in held.items()
        )

    def _left(self, group: frozenset[str], full: Sequence[GpuPeak]) -> "_Stage":
        """The same where vGPUs of a group have left full GPUs, as far as it is served without."""
        found: _Stage = self
        over = {(gpu.node, gpu.gpu): gpu.during_gib - (gpu.memory_gib or 0.0) for gpu in full}
        sizes, where = worker_sizes_gib(self._old.plan), places(self._old.plan)
        wanted = self._wanted_by_others_in_force()

        def order(vgpu: VGpu) -> tuple[bool, float]:
            at = where[vgpu.index]
            return (at.node, at.gpu) not in wanted, -sizes[vgpu.pool]

        leavers = sorted(self._leavers(group, full), key=order)
        for keep_pools in (True, False):
            for vgpu in leavers:
                gpu = where[vgpu.index].node, where[vgpu.index].gpu
                old = found._old
                if over[gpu] <= 0 or vgpu.index not in old.vgpus:
                    continue
                others = {v.index for v in old.plan.vgpus() if v.pool == vgpu.pool} & old.vgpus
                if keep_pools and len(others) == 1:
                    continue
                without = found._with(replace(old, vgpus=old.vgpus - {vgpu.index}), found._new)
                if without is not None:
                    found = without
                    over[gpu] -= sizes[vgpu.pool]
        return found

    def _wanted_by_others_in_force(self) -> frozenset[tuple[str, int]]:
        """GPUs where models start that serve by their old pools: they can go over then."""
        pools = _pools_of(self._after, self._old.models)
        return frozenset(
            (place.node, place.gpu)
            for vgpu, place in zip(self._after.vgpus(), places(self._after), strict=True)
            if vgpu.pool in pools and vgpu.index in self._starts
        )


def _all(plan: Plan) -> frozenset[int]:
    return frozenset(vgpu.index for vgpu in plan.vgpus())


def _pools_of(plan: Plan, models: frozenset[str]) -> frozenset[int]:
    numbers = {pool.name: number for number, pool in enumerate(plan.pools)}
    return frozenset(
        numbers[pool.name] for model, _, _, pool in plan.placed_stages() if model.name in models
    )


def _groups(*plans: Plan) -> list[frozenset[str]]:
    """Models that share a pool in any of the plans, together.

    In the order of their names' first.
    """
    group: dict[str, set[str]] = {model.name: {model.name} for p in plans for model in p.models}
    for plan in plans:
        users: dict[str, str] = {}
        for model, _, _, pool in plan.placed_stages():
            first = users.setdefault(pool.name, model.name)
            if group[first] is not group[model.name]:
                group[first] |= group[model.name]
                for name in group[first]:
                    group[name] = group[first]
    return [frozenset(members) for members in {id(g): g for g in group.values()}.values()]
