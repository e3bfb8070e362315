"""Failures: a vGPU, a GPU or a whole node that is gone for a while."""

from dataclasses import dataclass

import numpy as np

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import s_to_us
from triton_backend.scheduler.compiled import FAR, NONE, Integers
from triton_backend.simulator.heap import WORKER_BACK, WORKER_LOST
from triton_backend.simulator.world import World, push


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failure and its period (seconds of simulated time).

    Attributes:
        vgpu: a single vGPU, numbered as in `Plan.vgpus`; else
        node: name of a node, all of it or
        gpu: one GPU of it.
        end_s: when it is back, healthy and idle; None = never.
    """

    start_s: float
    end_s: float | None = None
    vgpu: int | None = None
    node: str | None = None
    gpu: int | None = None

    def __post_init__(self) -> None:
        if (self.vgpu is None) == (self.node is None):
            raise InputError("failure", "names either a vGPU or a node")
        if self.start_s < 0 or (self.end_s is not None and self.end_s <= self.start_s):
            raise InputError("failure", f"lasts from {self.start_s} s to {self.end_s} s")

    def vgpus(self, plan: Plan) -> tuple[int, ...]:
        """Numbers of the vGPUs it takes away; none where nothing of the plan runs there.

        Raises:
            InputError: there is no such vGPU or node.
        """
        every = plan.vgpus()
        if self.node is None:
            if not 0 <= (self.vgpu or 0) < len(every):
                raise InputError("failure", f"no vGPU {self.vgpu}, the plan has {len(every)}")
            return (self.vgpu or 0,)
        node = plan.cluster.node_index(self.node)
        return tuple(
            vgpu.index
            for vgpu in every
            if vgpu.slot.node == node and self.gpu in (None, vgpu.slot.gpu)
        )


def schedule_failures(world: World, plan: Plan, failures: tuple[Failure, ...]) -> None:
    """Put losses and returns into the heap, which must have room for them."""
    for failure in failures:
        for vgpu in failure.vgpus(plan):
            _schedule(world, failure, vgpu)


def _schedule(world: World, failure: Failure, vgpu: int, after_us: int = NONE) -> None:
    if s_to_us(failure.start_s) > after_us:
        push(world, s_to_us(failure.start_s), WORKER_LOST, vgpu, 0)
    if failure.end_s is not None and s_to_us(failure.end_s) > after_us:
        push(world, s_to_us(failure.end_s), WORKER_BACK, vgpu, 0)


def reschedule_failures(
    world: World, plan: Plan, failures: tuple[Failure, ...], resources: Integers, now_us: int
) -> list[int]:
    """Put failures under the numbers of a plan that has just taken over.

    Workers that are lost from its start. What is still to come for a worker goes with it to its new
    number, or ends with it. A failure of a node or a GPU meets new workers there too.

    Args:
        world: of the new plan; its heap has the numbers of the old one.
        plan: the new plan.
        failures: of the whole run.
        resources: [old resource] its new number, NONE where nothing uses it.
        now_us: the instant of the change.
    """
    cursor = world.cursor[0]
    events = world.heap[: int(cursor["events"])].copy()
    of_workers = np.isin(events["kind"], [WORKER_LOST, WORKER_BACK])
    events["subject"][of_workers] = resources[events["subject"][of_workers]]
    events = np.sort(events[events["subject"] != NONE], order=["at_us", "kind", "sequence"])
    world.heap[: len(events)] = events
    cursor["events"] = len(events)
    goes_on = set(resources.tolist())
    lost: set[int] = set()
    for failure in failures:
        if failure.node not in _nodes(plan):
            continue
        for vgpu in set(failure.vgpus(plan)) - goes_on:
            _schedule(world, failure, vgpu, now_us - 1)
            ends_us = FAR if failure.end_s is None else s_to_us(failure.end_s)
            if s_to_us(failure.start_s) < now_us < ends_us:
                lost.add(vgpu)
    return sorted(lost)


def _nodes(plan: Plan) -> set[str]:
    return {plan.cluster.node_name(node) for node in range(plan.cluster.node_count)}
