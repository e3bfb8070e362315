"""From what a planner decided to a `Plan`: stages, placement, certificate, identity."""

import hashlib
import json
import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Any

from flows.clock import Stopwatch
from flows.planning.inputs import whole_memory
from flows.planning.placement import PoolToPlace, moved, place, uses_of
from flows.planning.registry import (
    Inputs,
    Outcome,
    PlannedPipeline,
    PlannedStage,
    planner_named,
)
from flows.planning.solver.record import SolverRecord
from flows.planning.solver.solve import HIGHS
from flows.planning.verify.bound import DUALITY, NOTHING, RELAXATION, SOLVER
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InvariantError
from triton_backend.contract.plan import (
    ModelPlan,
    Objective,
    Pipeline,
    PlacementRun,
    Plan,
    Pool,
    Stage,
    next_pool_name,
    with_module_transfers,
)
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.shares import share_of_divisor
from triton_backend.contract.tensors import TensorSpec, total_bytes_per_sample
from triton_backend.contract.transition.memory import transition
from triton_backend.contract.units import transfer_us
from triton_backend.contract.workload import ModelDemand, Workload

_ID_DIGITS = 12
_UNPROVEN = ("by rule", "heuristic")  # their bound is their own value


def objective_of(name: str, score: float, bound: float) -> Objective:
    """The certificate's objective from a score and its bound (cost and power: negated)."""
    value, limit = (score, bound) if name == "throughput" else (-score, -bound)
    gap = abs(limit - value) / value if value > 0 else 0.0
    return Objective(name=name, value=value, upper_bound=limit, gap=gap)


def decode(inputs: Inputs, outcome: Outcome, rates_from: str, solvers: SolverRecord) -> Plan:
    """The plan of an outcome; `rates_from` says where batch-building rates come from."""
    watch, asked, options = Stopwatch(), inputs.workload, inputs.options
    if outcome.lines is not None:
        inputs = replace(inputs, workload=Workload(models=outcome.lines))
    seconds = sum(outcome.trace.seconds.values())
    pipelines = sorted(outcome.pipelines, key=lambda p: _order(inputs.cluster, p))
    stages = [(pipeline, stage) for pipeline in pipelines for stage in pipeline.stages]
    # stages by their pool, in the order in which they name it first
    keys: list[Hashable] = [
        ("own", number) if stage.shared is None else ("shared", stage.shared)
        for number, (_, stage) in enumerate(stages)
    ]
    members: dict[Hashable, list[tuple[PlannedPipeline, PlannedStage]]] = {}
    for key, member in zip(keys, stages, strict=True):
        members.setdefault(key, []).append(member)
    to_place = [_pool(inputs, sharers) for sharers in members.values() if sharers[0][1].cut is None]
    runs = iter(place(inputs.cluster, to_place, options.previous))
    counts: dict[str, int] = {}
    placed = [
        _placed(sharers[0][1], next_pool_name(sharers[0][1].gpu_class, counts), runs)
        for sharers in members.values()
    ]
    by_key = dict(zip(members, placed, strict=True))
    names = (by_key[key].name for key in keys)
    models = tuple(
        _model(
            inputs,
            demand,
            None if outcome.promised_rps is None else outcome.promised_rps[number],
            [_pipeline(inputs, outcome, p, names) for p in pipelines if p.model == number],
            outcome.policies.get(number, outcome.policy),
        )
        for number, demand in enumerate(inputs.workload.models)
    )
    trace = outcome.trace
    trace.seconds["place"] = watch.seconds()
    trace.notes += _solver_notes(options.solver, solvers)
    plan = Plan(
        plan_id="unnamed",  # until it is known what it says
        planner=options.planner,
        options={**options.to_dict(), **outcome.settled, "batch_building_rates": rates_from},
        objective=replace(
            outcome.objective, space=outcome.space or planner_named(options.planner).space
        ),
        solver=solvers.named(),
        solve_seconds=seconds,
        cluster=inputs.cluster,
        workload=asked,
        gpus_used={},
        pools=tuple(placed),
        models=models,
        applications=outcome.applications,
        waits=outcome.waits,
        gathering_rule=outcome.gathering_rule,
        certificate={
            "status": trace.status,
            "seconds": trace.seconds,
            "configurations": trace.configurations,
            "notes": trace.notes,
            "proof": _proof(outcome),
            **trace.details,
        },
    )
    if inputs.module_transfers:
        plan = with_module_transfers(plan)
    plan = plan.counted()
    if options.previous is not None:
        trace.notes.append(_moves(options.previous, plan))
        change = change_of(options.previous, plan)
        plan = replace(plan, certificate={**plan.certificate, "change": change})
    return replace(plan, plan_id=plan_identity(plan))


def _proof(outcome: Outcome) -> list[dict[str, Any]]:
    """The parts of the proof.

    Prices that `verify` recomputes, and what is a solver's or a search's word.
    """
    bound = outcome.objective.upper_bound
    parts: list[dict[str, Any]] = []
    if outcome.prices is not None:
        limit, prices = outcome.prices
        parts.append(
            {"kind": RELAXATION, "proven_by": DUALITY, "bound": limit, "prices": dict(prices)}
        )
        if math.isclose(limit, bound, rel_tol=1e-9):
            return parts
    by = NOTHING if outcome.trace.status in _UNPROVEN else SOLVER
    return [*parts, {"kind": "search", "proven_by": by, "bound": bound}]


def _solver_notes(asked: str, solvers: SolverRecord) -> list[str]:
    """Why another solver than the one asked for answered; each reason once."""
    others = sorted((solvers.integer or solvers.linear) - {asked})
    if others == [HIGHS] and not solvers.notes:
        return ["programs that begin at a known plan, or are small, are solved with HiGHS"]
    return solvers.notes


def _moves(previous: Plan, plan: Plan) -> str:
    after = uses_of(plan, plan.cluster)
    changed = moved(uses_of(previous, plan.cluster), after)
    return f"{changed} of {len(after)} GPUs in use change hands against plan {previous.plan_id}"


def change_of(previous: Plan, plan: Plan) -> dict[str, Any]:
    """Workers that go on, start and end when a plan follows another, and what is loaded.

    Plans are compared as planned: their artifacts are made and named later.
    """
    # As rollouts do it: a living worker loads no stage.
    change = transition(_as_planned(previous), _as_planned(plan))
    known = all(stage.memory is not None for _, _, stage, _ in plan.placed_stages())
    return {
        "previous": previous.plan_id,
        "stay": len(change.inherited),
        "start": len(change.starts),
        "end": len(change.ends),
        "bytes_loaded": sum(change.bytes_loaded.values()) if known else None,
        "at_once": change.fits,
    }


def _as_planned(plan: Plan) -> Plan:
    return with_stages(plan, lambda stage: replace(stage, artifact=None))


def with_stages(
    plan: Plan, changed: Callable[[Stage], Stage], pools: tuple[Pool, ...] | None = None
) -> Plan:
    """The plan with all stages changed, and with other pools where they are given."""
    models = tuple(
        replace(
            model,
            pipelines=tuple(
                replace(p, stages=tuple(map(changed, p.stages))) for p in model.pipelines
            ),
        )
        for model in plan.models
    )
    return replace(plan, models=models, pools=plan.pools if pools is None else pools)


_NO_DECISIONS = (
    "plan_id",
    "solve_seconds",
    "solver",
    "certificate",
    "waits",
    "gathering_rule",
    "price_paid",
    "attained",
)


def plan_identity(plan: Plan) -> str:
    """First digits of a hash over what was decided.

    Not the times it took, prices, attainment, artifacts and splits. Which accounting it was planned
    by follows from planner and options, which count. Artifacts say with which files a decision is
    carried out, so a plan keeps its id when they are attached: the plan that was verified is the
    plan that is served.
    """
    data: dict[str, Any] = plan.to_dict()
    for key in _NO_DECISIONS:
        data.pop(key, None)
    for stage in (s for m in data["models"] for p in m["pipelines"] for s in p["stages"]):
        stage.pop("artifact", None)
    for model in data["models"]:
        model.pop("split", None)
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]


def _order(cluster: Cluster, pipeline: PlannedPipeline) -> tuple[Any, ...]:
    """By model, then rate (highest first), then form, so that every order is settled."""
    names = [gpu_class.name for gpu_class in cluster.gpu_classes]
    stages = pipeline.stages
    return (
        pipeline.model,
        -pipeline.rate_rps,
        len(stages),
        pipeline.batch,
        [(names.index(s.gpu_class), s.divisor) for s in stages],
        [s.blocks for s in stages],
    )


def _pool(inputs: Inputs, sharers: list[tuple[PlannedPipeline, PlannedStage]]) -> PoolToPlace:
    """The group to place for the stages of one pool; shared ones have their own group."""
    pipeline, stage = sharers[0]
    name = inputs.workload.models[pipeline.model].name
    traffic = 0.0
    for sharer, part in sharers:
        sizes = (0, *inputs.profiles[inputs.workload.models[sharer.model].name].boundary_bytes, 0)
        first, last = part.blocks
        traffic += sharer.rate_rps / part.vgpus * (sizes[first] + sizes[last])
    return PoolToPlace(
        model=pipeline.model if stage.shared is None else -1 - stage.shared,
        name=name if stage.shared is None else "",
        blocks=stage.blocks,
        gpu_class=stage.gpu_class,
        divisor=stage.divisor,
        vgpus=stage.vgpus,
        traffic=traffic,
        continues=stage.continues,
    )


def _placed(stage: PlannedStage, name: str, runs: Iterator[tuple[PlacementRun, ...]]) -> Pool:
    """The pool of a stage: as its planner placed it, or by the next of the runs."""
    cut = stage.cut
    return Pool(
        name=name,
        gpu_class=stage.gpu_class,
        share=share_of_divisor(stage.divisor) if cut is None else cut.share,
        vgpus=stage.vgpus,
        placement=next(runs) if cut is None else cut.placement,
        starts_anywhere=cut is not None and cut.starts_anywhere,
        interference=None if cut is None else cut.interference,
    )


def _model(
    inputs: Inputs,
    demand: ModelDemand,
    promised_rps: float | None,
    pipelines: list[Pipeline],
    policy: str,
) -> ModelPlan:
    profile = inputs.profiles[demand.name]
    planned: dict[str | None, float] = {}
    for pipeline in pipelines:
        planned[pipeline.entry] = planned.get(pipeline.entry, 0.0) + pipeline.throughput_rps
    return ModelPlan(
        name=demand.name,
        slo_us=demand.slo_us,
        throughput_rps=math.fsum(p.throughput_rps for p in pipelines)
        if promised_rps is None
        else float(promised_rps),
        pipelines=tuple(pipelines),
        policy=policy,
        entries=tuple(
            replace(
                entry,
                rate_rps=planned.get(entry.name, entry.rate_rps),
                inputs=profile.inputs if entry.block == 0 else _crossing(profile, entry.block),
            )
            for entry in demand.entries
        ),
        inputs=profile.inputs,
        outputs=profile.outputs,
        split=profile.split,
    )


def _crossing(profile: ModelProfile, block: int) -> tuple[TensorSpec, ...]:
    """The tensors before a block, where they are known."""
    return profile.boundaries[block - 1] if profile.boundaries else ()


def _pipeline(
    inputs: Inputs, outcome: Outcome, planned: PlannedPipeline, names: Iterator[str]
) -> Pipeline:
    following = (*planned.stages[1:], None)
    stages = tuple(
        _stage(inputs, planned, stage, after, next(names), whole_table=outcome.whole_tables)
        for stage, after in zip(planned.stages, following, strict=True)
    )
    return Pipeline(
        batch=planned.batch,
        throughput_rps=planned.rate_rps,
        latency_us=sum(s.latency_us + s.transfer_us for s in stages),
        stages=stages,
        entry=planned.entry,
        occupied_vgpus=planned.occupied_vgpus,
    )


def _stage(
    inputs: Inputs,
    planned: PlannedPipeline,
    stage: PlannedStage,
    following: PlannedStage | None,
    pool: str,
    *,
    whole_table: bool,
) -> Stage:
    profile, batch = inputs.profiles[inputs.workload.models[planned.model].name], planned.batch
    batch = stage.batch or batch
    latency = stage.latency_us_by_batch
    if latency is None:
        share = share_of_divisor(stage.divisor) if stage.cut is None else stage.cut.share
        basis = inputs.cluster.gpu_class(stage.gpu_class).basis
        table = profile.table(stage.gpu_class, share, basis)
        if table is None:
            raise InvariantError(f"{profile.name} was planned where it was not measured: {stage}")
        profiled = table.stage_latency_us(stage.blocks)
        latency = tuple(int(v) for v in (profiled if whole_table else profiled[:batch]))
    if stage.load_us is not None:
        latency = tuple(v + stage.load_us for v in latency)
    leaving, boundary = total_bytes_per_sample(profile.outputs), profile.outputs or None
    transfer, last = 0, stage.blocks[1]
    if following is not None:
        leaving = profile.boundary_bytes[last - 1]
        boundary = profile.boundaries[last - 1] if profile.boundaries else None
        sides = (stage.gpu_class, following.gpu_class)
        rate = min(inputs.cluster.nic_gbps(side) for side in sides)
        transfer = int(transfer_us(leaving * batch, rate)) if rate > 0 else 0
    return Stage(
        blocks=stage.blocks,
        pool=pool,
        latency_us=latency[batch - 1],
        transfer_us=transfer,
        latency_us_by_batch=latency,
        boundary_bytes_per_sample=leaving,
        boundary=boundary,
        batch=stage.batch,
        memory=stage.memory or (whole_memory(profile) if stage.shared is not None else None),
        duty_cycle_us=stage.duty_cycle_us,
        boards=stage.boards,
        load_us=stage.load_us,
    )
