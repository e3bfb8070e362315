"""Effects of a plan change on workers: those that stay, start or end, and loads.

A worker is the process of one vGPU and holds every stage of its pool. It goes on under the next
plan where both plans have a vGPU of the same class and share at the same place, it holds a stage
that the next plan wants there, and batches of the others find room in its slots; those are loaded
into it before the change. What it no longer needs is dropped after it:

    before   GPU 0: [ a ]   [ b ]          GPU 1: [ c ]
    after    GPU 0: [ a d ] [ e ]          GPU 1: [ c ]
             goes on, d is loaded          goes on, nothing happens
                      b ends, e starts beside it

New workers start beside those that end: for a while a GPU holds both. Where its memory does not
allow that, the change is made in steps, each a plan of its own (`steps`).

Scheduler, simulator, gateway and `rollout` ask here, so that they agree. Nothing is done here.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from triton_backend.contract.applications.steps import Step
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import (
    BYTES_PER_GIB,
    TOLERANCE,
    ModelPlan,
    Pipeline,
    PlacementRun,
    Plan,
    Pool,
    Stage,
    StageMemory,
    StageRow,
    VGpu,
    pinned_memory,
    worker_memory_gib,
)
from triton_backend.contract.shares import percent_of, share_text
from triton_backend.contract.tensors import TensorSpec, aligned_bytes
from triton_backend.contract.workload import Workload

MIN_SLOTS = 4
MAX_SLOTS = 64
MAX_BOARDING_SLOTS = 256


class StageKey(NamedTuple):
    """The purpose of a loaded runtime.

    A stage by model and blocks, its file, what enters and leaves it.
    """

    model: str
    blocks: tuple[int, int]
    artifact: str | None
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


Content = Mapping[StageKey, Stage]
"""The stages of a worker.

Of stages that several pipelines have there, the one of the largest batch.
"""


class Place(NamedTuple):
    """Where a worker is, and the part of the GPU that it was started with."""

    node: str
    gpu: int
    slot: int
    gpu_class: str
    share: int


class Inherited(NamedTuple):
    """A worker that goes on: the number of its vGPU in the plan before and in the next."""

    before: int
    after: int


def stage_key(plan: Plan, row: StageRow) -> StageKey:
    """Of a stage of a plan."""
    model = plan.models[row.model]
    stage = model.pipelines[row.pipeline].stages[row.stage]
    return StageKey(
        model.name,
        stage.blocks,
        stage.artifact,
        model.stage_inputs(row.pipeline, row.stage),
        model.stage_outputs(row.pipeline, row.stage),
    )


def contents(plan: Plan) -> tuple[Content, ...]:
    """The stages of every worker of a pool, by number of the pool."""
    found: list[dict[StageKey, Stage]] = [{} for _ in plan.pools]
    for row in plan.stage_rows():
        content, key = found[row.pool], stage_key(plan, row)
        stage = plan.models[row.model].pipelines[row.pipeline].stages[row.stage]
        if key not in content or content[key].largest < stage.largest:
            content[key] = stage
    return tuple(found)


def missing(held: Content, wanted: Content) -> tuple[StageKey, ...]:
    """Stages wanted that a worker cannot run with what it holds.

    It cannot run larger batches than it was started for. A stage without a file is emulated: its
    latencies are its content.
    """
    return tuple(
        key for key, stage in wanted.items() if key not in held or not runs(held[key], stage)
    )


def runs(held: Stage, wanted: Stage) -> bool:
    """True if what was loaded for a stage can run another one of the same key."""
    if held.largest < wanted.largest or (held.load_us is None) != (wanted.load_us is None):
        return False
    latencies = held.latency_us_by_batch[: wanted.largest]
    return wanted.artifact is not None or latencies == wanted.latency_us_by_batch


def places(plan: Plan) -> tuple[Place, ...]:
    """Where every vGPU of a plan sits, by its number."""
    names = [plan.cluster.node_name(node) for node in range(plan.cluster.node_count)]
    return tuple(
        Place(names[slot.node], slot.gpu, slot.slot, pool.gpu_class, pool.share)
        for pool in plan.pools
        for slot in pool.slots()
    )


class SlotNeeds(NamedTuple):
    """Of a worker's slots for batches: how many, and of how many bytes each.

    Bytes are those of the largest batch, under policies that exceed the planned one and under
    others.
    """

    slots: int
    largest_bytes: int
    planned_bytes: int

    def fit(self, others: "SlotNeeds", *, same_policy: bool) -> bool:
        """True if a worker whose slots were made for others has room for these."""
        least = others.largest_bytes if same_policy else others.planned_bytes
        planned = same_policy and self.planned_bytes > others.planned_bytes
        return self.slots <= others.slots and self.largest_bytes <= least and not planned


def slot_needs(plan: Plan) -> tuple[SlotNeeds, ...]:
    """Of the workers of every pool.

    As many slots as batches of one can be reserved in its longest SLO. In a stage that boards many
    of them run together.
    """
    rows: list[list[StageRow]] = [[] for _ in plan.pools]
    for row in plan.stage_rows():
        rows[row.pool].append(row)
    return tuple(_slot_needs(plan, own) for own in rows)


def _slot_needs(plan: Plan, rows: Sequence[StageRow]) -> SlotNeeds:
    slo_us, least_us, largest_bytes, planned_bytes, most = 0, math.inf, 0, 0, MAX_SLOTS
    for row in rows:
        model = plan.models[row.model]
        pipeline = model.pipelines[row.pipeline]
        slo_us = max(slo_us, model.slo_us)
        stage = pipeline.stages[row.stage]
        together = (stage.batch or pipeline.batch) if stage.boards else 1
        most = max(most, MAX_BOARDING_SLOTS if stage.boards else 0)
        latencies_us = stage.latency_us_by_batch[:together]
        least_us = min(least_us, *(us / n for n, us in enumerate(latencies_us, 1)))
        inputs = model.stage_inputs(row.pipeline, row.stage)
        largest_bytes = max(largest_bytes, aligned_bytes(inputs, pipeline.largest))
        planned_bytes = max(planned_bytes, aligned_bytes(inputs, pipeline.batch))
    slots = min(math.ceil(slo_us / least_us) + MIN_SLOTS, most)
    return SlotNeeds(slots, largest_bytes, planned_bytes)


def inherited_vgpus(before: Plan, after: Plan) -> tuple[Inherited, ...]:
    """vGPUs whose worker goes on, by their number in the next plan."""
    goes_on = _goes_on(before, after)
    old = dict(zip(places(before), before.vgpus(), strict=True))
    found: list[Inherited] = []
    for place, vgpu in zip(places(after), after.vgpus(), strict=True):
        was = old.get(place)
        if was is not None and goes_on(was.pool, vgpu.pool):
            found.append(Inherited(was.index, vgpu.index))
    return tuple(found)


def _goes_on(before: Plan, after: Plan) -> Callable[[int, int], bool]:
    """A test: do workers of a pool of the plan before go on in one of the plan after?"""
    held, wanted = contents(before), contents(after)
    had, needed = slot_needs(before), slot_needs(after)

    @cache
    def goes_on(was: int, then: int) -> bool:
        if _on_demand(held[was]) or _on_demand(wanted[then]):
            if not _same_pinned(held[was], wanted[then]):
                return False
        else:
            lacks = len(missing(held[was], wanted[then]))
            if not 0 < lacks < len(wanted[then]):
                return lacks == 0
        same_policy = _policies(before, was) == _policies(after, then)
        return needed[then].fit(had[was], same_policy=same_policy)

    return goes_on


def _on_demand(content: Content) -> bool:
    """True if some of the stages are loaded on demand."""
    return any(stage.load_us is not None for stage in content.values())


def _same_pinned(held: Content, wanted: Content) -> bool:
    """True if both load stages on demand, and the same ones are there at all times.

    What is loaded on demand may change: nothing is loaded before the change.
    """
    one, other = (
        {key: stage for key, stage in content.items() if stage.load_us is None}
        for content in (held, wanted)
    )
    both = _on_demand(held) and _on_demand(wanted)
    return both and one.keys() == other.keys() and not missing(one, other)


def _policies(plan: Plan, pool: int) -> set[str]:
    return {plan.models[row.model].policy for row in plan.stage_rows() if row.pool == pool}


# Memory of a change


class GpuPeak(NamedTuple):
    """Memory of one GPU before, during and after a change (GiB), and its size if known.

    `share` is what its workers may take of it at once, in 300ths of the GPU. It may exceed the
    whole: a new worker runs nothing before the change, one that ends only what it was sent before.
    """

    node: str
    gpu: int
    before_gib: float
    during_gib: float
    after_gib: float
    memory_gib: float | None
    share: int

    @property
    def fits(self) -> bool:
        """True if old and new are there together."""
        return self.memory_gib is None or self.during_gib <= self.memory_gib * (1 + TOLERANCE)

    def to_dict(self) -> dict[str, Any]:
        """Plain form; the share in percents."""
        return {**self._asdict(), "share": percent_of(self.share)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A change from one plan to another, made at once.

    Attributes:
        inherited: workers that go on, by vGPU number before and after.
        starts: vGPUs of the new plan whose worker starts, the largest memory first.
        ends: vGPUs of the old plan whose worker ends when what it was sent has ended.
        loads: stages that a worker that goes on must load before the change, by new vGPU number.
        drops: stages that it no longer needs afterwards, by new vGPU number.
        bytes_loaded: weights that new workers and living ones load, by node; stages of unknown
            memory count nothing.
        gpus: every GPU that either plan uses, by node and number.
    """

    inherited: tuple[Inherited, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    loads: Mapping[int, tuple[StageKey, ...]]
    drops: Mapping[int, tuple[StageKey, ...]]
    bytes_loaded: Mapping[str, int]
    gpus: tuple[GpuPeak, ...]

    @property
    def fits(self) -> bool:
        """True if every GPU holds old and new together."""
        return all(gpu.fits for gpu in self.gpus)

    @property
    def nothing(self) -> bool:
        """True if no worker starts, ends or loads: at most numbers change."""
        return not (self.starts or self.ends or self.loads)

    def to_dict(self) -> dict[str, Any]:
        """Plain form, with counts in place of the workers that go on unchanged."""
        return {
            "stay": len(self.inherited),
            "start": list(self.starts),
            "end": list(self.ends),
            "load": {vgpu: [_key_text(key) for key in keys] for vgpu, keys in self.loads.items()},
            "drop": {vgpu: [_key_text(key) for key in keys] for vgpu, keys in self.drops.items()},
            "bytes_loaded": dict(self.bytes_loaded),
            "gpus": [gpu.to_dict() for gpu in self.gpus],
        }


def _key_text(key: StageKey) -> str:
    return f"{key.model} [{key.blocks[0]}, {key.blocks[1]})"


def transition(before: Plan, after: Plan) -> Transition:
    """Effects of a change on every worker, and memory of GPUs meanwhile."""
    inherited = inherited_vgpus(before, after)
    stay_before = {pair.before for pair in inherited}
    stay_after = {pair.after for pair in inherited}
    had, has = contents(before), contents(after)
    old, new = before.vgpus(), after.vgpus()
    old_places, new_places = places(before), places(after)
    sizes_before, sizes_after = _sizes(before), _sizes(after)
    starts = [vgpu for vgpu in new if vgpu.index not in stay_after]
    starts.sort(key=lambda vgpu: -sizes_after[vgpu.pool])
    ends = [vgpu for vgpu in old if vgpu.index not in stay_before]
    loads: dict[int, tuple[StageKey, ...]] = {}
    drops: dict[int, tuple[StageKey, ...]] = {}
    bytes_loaded: dict[str, int] = defaultdict(int)
    peaks: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])

    def holds(place: Place, sizes: tuple[float, float, float], *, shares: int = 1) -> None:
        peak = peaks[place.node, place.gpu]
        for k, size in enumerate((*sizes, float(shares * place.share))):
            peak[k] += size

    for one, other in inherited:
        held, wanted = had[old[one].pool], has[new[other].pool]
        size = sizes_before[old[one].pool]
        lacks = missing(held, wanted)
        if lacks and _on_demand(wanted):  # its room is the less of both until the change is made
            size = max(size, sizes_after[new[other].pool])
        elif lacks:
            loads[other] = lacks
            memories = [wanted[key].memory for key in lacks]
            bytes_loaded[new_places[other].node] += _static(memories)
            size += _grown(before, old[one].pool, memories)
        left = tuple(key for key in held if key not in wanted or key in lacks)
        if left:
            drops[other] = left
        sizes = sizes_before[old[one].pool], size, sizes_after[new[other].pool]
        holds(new_places[other], sizes)
    for vgpu in starts:
        size = sizes_after[vgpu.pool]
        holds(new_places[vgpu.index], (0.0, size, size))
        memories = [pinned_memory(stage) for stage in after.stages_of(vgpu.pool)]
        bytes_loaded[new_places[vgpu.index].node] += _static(memories)
    for vgpu in ends:
        size = sizes_before[vgpu.pool]
        holds(old_places[vgpu.index], (size, size, 0.0))
    memory = _memories(before) | _memories(after)
    return Transition(
        inherited=inherited,
        starts=tuple(vgpu.index for vgpu in starts),
        ends=tuple(vgpu.index for vgpu in ends),
        loads=loads,
        drops=drops,
        bytes_loaded=dict(bytes_loaded),
        gpus=tuple(
            GpuPeak(node, gpu, was, meanwhile, then, memory[node], round(share))
            for (node, gpu), (was, meanwhile, then, share) in sorted(peaks.items())
        ),
    )


def _sizes(plan: Plan) -> list[float]:
    """Memory (GiB) of a worker by its pool's number."""
    return [
        worker_memory_gib(
            plan.cluster.gpu_class(pool.gpu_class),
            [pinned_memory(stage) for stage in plan.stages_of(number)],
        )
        + plan.room_bytes(number) / BYTES_PER_GIB
        for number, pool in enumerate(plan.pools)
    ]


def _grown(plan: Plan, pool: int, more: Sequence[StageMemory | None]) -> float:
    """Additional memory (GiB) of a worker with stages loaded beside its own."""
    gpu_class = plan.cluster.gpu_class(plan.pools[pool].gpu_class)
    held = [stage.memory for stage in plan.stages_of(pool)]
    return worker_memory_gib(gpu_class, [*held, *more]) - worker_memory_gib(gpu_class, held)


def _static(memories: Iterable[StageMemory | None]) -> int:
    return sum(memory.static for memory in memories if memory is not None)


def _memories(plan: Plan) -> dict[str, float | None]:
    """Memory (GiB) of a node's GPUs, by the node's name."""
    cluster = plan.cluster
    return {
        cluster.node_name(node): cluster.gpu_class(cluster.node_group_of(node).gpu_class).usable_gib
        for node in range(cluster.node_count)
    }


# A change in steps


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
        sizes, held = _sizes(self._after), defaultdict[tuple[str, int], float](float)
        room = _memories(self._after)
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
        sizes, where = _sizes(self._old.plan), places(self._old.plan)
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
