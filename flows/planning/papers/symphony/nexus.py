"""The planner `nexus`: squishy bin packing, GPUs in duty cycles, no look at other GPUs.

In plan form a GPU of the packing is a pool whose stages state their batch and duty cycle; models
take turns there (policy `turns`). GPUs that a model fills alone are one pool. Dispatch as Nexus has
it, with a queue per GPU, is no part of the plan.

Defined for one GPU class. It follows a rule: its bound is its own value.
"""

from collections.abc import Sequence

import numpy as np

from flows.planning.certificate import objective_of
from flows.planning.engine.level import halved
from flows.planning.papers.symphony.squishy import PackedGpu, Session, pack
from flows.planning.registry import (
    Inputs,
    Outcome,
    PlannedPipeline,
    PlannedStage,
    Trace,
)
from flows.planning.subclusters.demands import Demands, read_demands
from flows.planning.subclusters.reach import beyond_reach
from triton_backend.contract.errors import InputError
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.contract.workload import MARGIN

POLICY = "turns"


def plan(inputs: Inputs) -> Outcome:
    """Plan a workload by squishy bin packing.

    Raises:
        InputError: the inputs do not fit together, or the cluster has several GPU classes.
        InfeasibleError: a model cannot meet its SLO, or the rates asked for cannot be reached.
    """
    asked = read_demands(inputs)
    used = np.flatnonzero(asked.problem.gpus > 0)
    if len(used) != 1:
        reason = f"nexus is defined for one GPU class, not {len(used)}"
        raise InputError("option planner", reason)
    kind = int(used[0])
    gpus = int(asked.problem.gpus[kind])
    trace = Trace(status="by rule")
    trace.notes.append("nexus follows a rule; its upper bound is its own value")
    if inputs.options.objective == "throughput":
        scale = _largest_scale(asked, kind)
        packed = _packed(asked, kind, scale)
        objective = objective_of("throughput", scale, scale)
    else:
        scale = 1.0
        packed = _packed(asked, kind, scale)
        if _count(packed) > gpus:
            reason = f"needs {_count(packed)} GPUs of class {asked.problem.classes[kind]}"
            raise beyond_reach(inputs, asked.rates(1.0), f"{reason}, {gpus} exist")
        price = float(asked.price[kind]) * _count(packed)
        objective = objective_of(inputs.options.objective, -price, -price)
    trace.seconds["solve"] = inputs.watch.seconds()
    trace.details["occupancy"] = [gpu.occupancy for gpu in packed for _ in range(gpu.count)]
    return Outcome(
        pipelines=_pipelines(asked, kind, packed),
        objective=objective,
        trace=trace,
        promised_rps=tuple(asked.rates(scale).tolist()),
        policy=POLICY,
        waits=MARGIN,
    )


def _packed(asked: Demands, kind: int, scale: float) -> list[PackedGpu]:
    inputs, rates = asked.inputs, asked.rates(scale)
    gpu_class = asked.problem.classes[kind]

    def latency_us(profile: ModelProfile) -> tuple[int, ...]:
        table = profile.table(gpu_class, WHOLE_GPU)
        return () if table is None else tuple(table.stage_latency_us((0, profile.blocks)).tolist())

    sessions = [
        Session(
            name=demand.name,
            rate_rps=float(rate),
            latency_us=latency_us(inputs.profiles[demand.name]),
            limit_us=(1 - inputs.options.margin(demand.name)) * demand.slo_us,
        )
        for demand, rate in zip(inputs.workload.models, rates.tolist(), strict=True)
    ]

    def together(numbers: Sequence[int]) -> bool:
        chosen = list(numbers)
        held = float(asked.static_bytes[chosen].sum() + asked.dynamic_bytes[chosen].max())
        return held <= float(asked.room_bytes[kind])

    return pack(sessions, together)


def _largest_scale(asked: Demands, kind: int) -> float:
    """The largest scale of the weights that bisection finds to fit the GPUs."""
    work = asked.curves[kind].work_s[:, -1]
    gpus = asked.problem.gpus[kind]

    def fits(scale: float) -> bool:
        return _count(_packed(asked, kind, scale)) <= gpus

    low, _ = halved(fits, 0.0, float(gpus / (asked.weight * work).sum()))
    if low <= 0:
        reason = f"{gpus} GPUs carry no scale of the weights"
        raise beyond_reach(asked.inputs, asked.weight, reason)
    return low


def _count(packed: list[PackedGpu]) -> int:
    return sum(gpu.count for gpu in packed)


def _pipelines(asked: Demands, kind: int, packed: list[PackedGpu]) -> tuple[PlannedPipeline, ...]:
    return tuple(
        PlannedPipeline(
            model=turn.session,
            batch=turn.batch,
            rate_rps=turn.rate_rps,
            stages=(
                PlannedStage(
                    blocks=(0, asked.problem.models[turn.session].blocks),
                    gpu_class=asked.problem.classes[kind],
                    divisor=1,
                    vgpus=gpu.count,
                    shared=number,
                    duty_cycle_us=gpu.duty_cycle_us,
                ),
            ),
        )
        for number, gpu in enumerate(packed)
        for turn in gpu.turns
    )
