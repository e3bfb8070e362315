"""Workers that go on over a change of plan: what they hold, what they run, and their slots."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from triton_backend.contract.plan import (
    Plan,
    Stage,
    StageRow,
)
from triton_backend.contract.tensors import TensorSpec, aligned_bytes

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

    A slot has room for the largest batch whose latency is known. So batches of a later plan find
    room in it, whatever size that plan or its policy sends.
    """

    slots: int
    slot_bytes: int


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
    slo_us, least_us, slot_bytes, most = 0, math.inf, 0, MAX_SLOTS
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
        slot_bytes = max(slot_bytes, aligned_bytes(inputs, pipeline.largest))
    slots = min(math.ceil(slo_us / least_us) + MIN_SLOTS, most)
    return SlotNeeds(slots, slot_bytes)


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
        lacks = len(missing(held[was], wanted[then]))
        if on_demand(held[was]) or on_demand(wanted[then]):
            if not _same_pinned(held[was], wanted[then]):
                return False
        elif 0 < lacks == len(wanted[then]):
            return False
        # Where no stage is new, too few slots only have batches wait for one now and then.
        enough = lacks == 0 or needed[then].slots <= had[was].slots
        return enough and needed[then].slot_bytes <= had[was].slot_bytes

    return goes_on


def on_demand(content: Content) -> bool:
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
    both = on_demand(held) and on_demand(wanted)
    return both and one.keys() == other.keys() and not missing(one, other)
