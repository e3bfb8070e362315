"""From vGPU counts to a `Plan`: pools, rates, placement, certificate, identity."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.clock import Stopwatch
from flows.planning.options import PlanOptions
from flows.planning.placement import Pool, place
from flows.planning.pool.best_effort import Overflow
from flows.planning.pool.columns import Columns, stacked
from flows.planning.pool.headroom import planned_rps
from flows.planning.pool.incumbent_placement import moved, uses_of
from flows.planning.pool.integer import delivered_rps
from flows.planning.pool.search import Trace
from flows.planning.problem import Problem
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.plan import ModelPlan, Objective, Pipeline, PlacementRun, Plan, Stage
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.tensors import total_bytes_per_sample
from triton_backend.contract.workload import ModelDemand, Workload

_ID_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a plan is made from; `workload` with the batch-building rates in use, and their source."""

    profiles: Mapping[str, ModelProfile]
    cluster: Cluster
    workload: Workload
    options: PlanOptions
    problem: Problem
    rates_from: str = "given"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a planner decided: configurations, vGPUs [n, S] of each, objective, trace.

    `promised_rps` [models] is what each model is promised; None where that is all it delivers.
    `overflow` is what runs beside and promises nothing.
    """

    columns: Columns
    vgpus: NDArray[np.int64]
    objective: Objective
    trace: Trace
    promised_rps: NDArray[np.float64] | None = None
    overflow: Overflow | None = None

    def pools(self) -> "_Pools":
        """Every configuration in use with its planned rate, overflow last."""
        columns, vgpus = self.columns, self.vgpus
        if self.promised_rps is None:
            rates = delivered_rps(columns, vgpus)
        else:
            rates = planned_rps(columns, vgpus, self.promised_rps)
        used = np.flatnonzero(rates > 0)
        columns, vgpus, rates = columns.take(used), vgpus[used], rates[used]
        if self.overflow is not None:
            parts = [(columns, vgpus), (self.overflow.columns, self.overflow.vgpus)]
            columns, vgpus = stacked(parts)
            rates = np.pad(rates, (0, len(columns) - len(rates)))
        return _Pools(columns=columns, vgpus=vgpus, rates_rps=rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pools:
    """Configurations with vGPUs [n, S] and planned rates [n]."""

    columns: Columns
    vgpus: NDArray[np.int64]
    rates_rps: NDArray[np.float64]


def decode(inputs: Inputs, outcome: Outcome) -> Plan:
    """The plan of an outcome."""
    watch = Stopwatch()
    seconds = sum(outcome.trace.seconds.values())
    used = outcome.pools()
    order = _pipeline_order(used)
    pools = [
        _pool(inputs, used, row, s) for row in order for s in range(int(used.columns.stages[row]))
    ]
    placements = iter(place(inputs.cluster, pools, inputs.options.previous))
    models = tuple(
        _model(
            inputs,
            (demand, None if outcome.promised_rps is None else outcome.promised_rps[number]),
            [
                _pipeline(inputs, used, row, placements)
                for row in order
                if used.columns.model[row] == number
            ],
        )
        for number, demand in enumerate(inputs.workload.models)
    )
    trace = outcome.trace
    trace.seconds["place"] = watch.seconds()
    plan = Plan(
        plan_id="",
        planner=inputs.options.planner,
        options={**inputs.options.to_dict(), "batch_building_rates": inputs.rates_from},
        objective=outcome.objective,
        solver=trace.solver,
        solve_seconds=seconds,
        cluster=inputs.cluster,
        workload=inputs.workload,
        gpus_used=count_gpus(inputs.cluster, models),
        models=models,
        certificate={
            "status": trace.status,
            "seconds": trace.seconds,
            "configurations": trace.configurations,
            "ties": trace.ties,
            "notes": trace.notes,
        },
    )
    if inputs.options.previous is not None:
        trace.notes.append(_moves(inputs.options.previous, plan))
    return replace(plan, plan_id=plan_identity(plan))


def _moves(previous: Plan, plan: Plan) -> str:
    after = uses_of(plan, plan.cluster)
    changed = moved(uses_of(previous, plan.cluster), after)
    return f"{changed} of {len(after)} GPUs in use change hands against plan {previous.plan_id}"


def plan_identity(plan: Plan) -> str:
    """First digits of a hash over everything in a plan but its times and its own id."""
    data: dict[str, Any] = plan.to_dict()
    for key in ("plan_id", "solve_seconds"):
        del data[key]
    data["certificate"] = {k: v for k, v in data["certificate"].items() if k != "seconds"}
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]


def count_gpus(cluster: Cluster, models: tuple[ModelPlan, ...]) -> dict[str, int]:
    """Whole GPUs in use per class; vGPUs of one model and divisor share GPUs."""
    vgpus: dict[tuple[str, int, int], int] = {}
    for number, model in enumerate(models):
        for pipeline in model.pipelines:
            for stage in pipeline.stages:
                key = (stage.gpu_class, number, stage.vgpu_divisor)
                vgpus[key] = vgpus.get(key, 0) + stage.vgpus
    used = {gpu_class.name: 0 for gpu_class in cluster.gpu_classes}
    for (gpu_class, _, divisor), count in vgpus.items():
        used[gpu_class] += -(-count // divisor)
    return used


def _pipeline_order(used: _Pools) -> list[int]:
    """Rows by model, then rate (highest first), then form, so that ties are settled."""
    columns = used.columns
    return sorted(
        range(len(columns)),
        key=lambda r: (
            int(columns.model[r]),
            -float(used.rates_rps[r]),
            int(columns.stages[r]),
            int(columns.batch[r]),
            columns.types[r].tolist(),
            columns.cuts[r].tolist(),
        ),
    )


def _pool(inputs: Inputs, used: _Pools, row: int, stage: int) -> Pool:
    columns = used.columns
    model = int(columns.model[row])
    number, divisor = inputs.problem.types[columns.types[row, stage]]
    sizes = (0, *inputs.profiles[inputs.problem.models[model].name].boundary_bytes, 0)
    first, last = columns.cuts[row, stage], columns.cuts[row, stage + 1]
    vgpus = int(used.vgpus[row, stage])
    rate = float(used.rates_rps[row])
    return Pool(
        model=model,
        name=inputs.problem.models[model].name,
        blocks=(int(first), int(last)),
        gpu_class=inputs.problem.classes[number],
        divisor=divisor,
        vgpus=vgpus,
        traffic=rate / vgpus * (sizes[first] + sizes[last]),
    )


def _model(
    inputs: Inputs, asked: tuple[ModelDemand, float | None], pipelines: list[Pipeline]
) -> ModelPlan:
    demand, promised_rps = asked
    profile = inputs.profiles[demand.name]
    return ModelPlan(
        name=demand.name,
        slo_us=demand.slo_us,
        throughput_rps=math.fsum(p.throughput_rps for p in pipelines)
        if promised_rps is None
        else float(promised_rps),
        pipelines=tuple(pipelines),
        inputs=profile.inputs,
        outputs=profile.outputs,
    )


def _pipeline(
    inputs: Inputs, used: _Pools, row: int, placements: Iterator[tuple[PlacementRun, ...]]
) -> Pipeline:
    columns = used.columns
    stages = tuple(
        _stage(inputs, used, (row, s), next(placements)) for s in range(int(columns.stages[row]))
    )
    return Pipeline(
        batch=int(columns.batch[row]),
        throughput_rps=float(used.rates_rps[row]),
        latency_us=sum(s.latency_us + s.transfer_us for s in stages),
        stages=stages,
    )


def _stage(
    inputs: Inputs,
    used: _Pools,
    place_of: tuple[int, int],
    placement: tuple[PlacementRun, ...],
) -> Stage:
    row, s = place_of
    columns, problem = used.columns, inputs.problem
    arrays = problem.models[int(columns.model[row])]
    profile = inputs.profiles[arrays.name]
    batch = int(columns.batch[row])
    number, divisor = problem.types[columns.types[row, s]]
    first, last = int(columns.cuts[row, s]), int(columns.cuts[row, s + 1])
    latency = profile.stage_latency_us(problem.classes[number], divisor, (first, last))
    transfer = 0
    if last < profile.blocks:
        receiver, _ = problem.types[columns.types[row, s + 1]]
        transfer = int(arrays.transfer_us[number, receiver, last, batch - 1])
    leaving, boundary = total_bytes_per_sample(profile.outputs), profile.outputs or None
    if last < profile.blocks:
        leaving = profile.boundary_bytes[last - 1]
        boundary = profile.boundaries[last - 1] if profile.boundaries else None
    return Stage(
        blocks=(first, last),
        gpu_class=problem.classes[number],
        vgpu_divisor=divisor,
        vgpus=int(used.vgpus[row, s]),
        latency_us=int(latency[batch - 1]),
        transfer_us=transfer,
        latency_us_by_batch=tuple(int(v) for v in latency[:batch]),
        boundary_bytes_per_sample=leaving,
        placement=placement,
        boundary=boundary,
    )
