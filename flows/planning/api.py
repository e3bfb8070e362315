"""The planner's door: profiles, cluster and workload in, a certified plan out."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flows.clock import Stopwatch
from flows.planning.baselines.baselines import dart_r, no_partitioning
from flows.planning.certificate import Inputs, Outcome, decode
from flows.planning.options import PlanOptions
from flows.planning.pool.best_effort import Overflow, describe, limits_of, overflow
from flows.planning.pool.bound import goal_of
from flows.planning.pool.columns import Columns
from flows.planning.pool.headroom import BEFORE_OVERFLOW, planned_rps, promised_rps, widen
from flows.planning.pool.incumbent_placement import running, uses_of
from flows.planning.pool.integer import gpus_in_use, lowest_share
from flows.planning.pool.pinned import pinned
from flows.planning.pool.search import search
from flows.planning.pool.tie_break import Use, settle
from flows.planning.problem import Problem, build_problem
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Objective, Plan
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.workload import Workload

_PRICES = {"cost": "hourly_cost", "power": "power_w"}


def make_plan(
    profiles: Mapping[str, ModelProfile],
    cluster: Cluster,
    workload: Workload,
    options: PlanOptions | None = None,
) -> Plan:
    """Plan a workload on a cluster.

    Where a model has no batch-building rate, it is derived (`with_rates`); the plan's workload
    carries it, and its option `batch_building_rates` says from what.

    Raises:
        InputError: the inputs do not fit together or a price or rate is missing.
        InfeasibleError: a model cannot meet its SLO (with its best latency), or the rates asked
            for cannot be reached.
    """
    options = options or PlanOptions()
    workload, rates_from = with_rates(profiles, cluster, workload, options)
    whole = options.planner != "pool"
    problem = build_problem(profiles, cluster, workload, options, whole_gpus=whole)
    inputs = Inputs(
        profiles=profiles,
        cluster=cluster,
        workload=workload,
        options=options,
        problem=problem,
        rates_from=rates_from,
    )
    if options.planner != "pool" and options.objective != "throughput":
        raise InputError("option objective", f"{options.planner} is defined for throughput alone")
    if options.overflow and (options.planner != "pool" or options.objective != "throughput"):
        raise InputError("option overflow", "is defined for planner pool and throughput alone")
    if options.planner != "pool" and options.pinned_models:
        raise InputError("option pinned_models", f"{options.planner} plans every model anew")
    if options.planner == "no-partitioning":
        return decode(inputs, no_partitioning(inputs))
    if options.planner == "dart-r":
        return decode(inputs, dart_r(inputs))
    return decode(inputs, _pool(inputs))


def _pool(inputs: Inputs) -> Outcome:
    options = inputs.options
    price = _prices(inputs.cluster, options)
    if options.objective != "throughput":
        _require_rates(inputs.workload, options)
    goal = goal_of(inputs.problem, options.objective, options.minimum_rps, price)
    kept = pinned(inputs.problem, goal, options)
    problem, rest = (inputs.problem, goal) if kept is None else kept.rest()
    found = search(problem, rest, options)
    running = _running(inputs, problem)
    found = settle(found, rest, options, running, _margins_us(inputs, problem))
    columns, vgpus, score, bound = found.columns, found.vgpus, found.score, found.bound
    watch, beside = Stopwatch(), None
    if not goal.fixed:
        promised = promised_rps(columns, vgpus, rest, score)
        vgpus, beside = _with_free(inputs, problem, (columns, vgpus), promised)
        if beside is not None:
            found.trace.notes.append(describe(problem, beside))
        score = max(score, lowest_share(columns, vgpus, rest))
    found.trace.seconds["widen"] = watch.seconds()
    if kept is not None:
        columns, vgpus = kept.joined(columns, vgpus)
        score, bound = kept.score(score), kept.score(bound)
        beside = kept.with_overflow(beside)
    return Outcome(
        columns=columns,
        vgpus=vgpus,
        promised_rps=promised_rps(columns, vgpus, goal, 1.0 if goal.fixed else score),
        objective=objective_of(options.objective, score, bound),
        trace=found.trace,
        overflow=beside,
    )


def _with_free(
    inputs: Inputs,
    problem: Problem,
    used: tuple[Columns, NDArray[np.int64]],
    promised: NDArray[np.float64],
) -> tuple[NDArray[np.int64], Overflow | None]:
    """Pools widened by free GPUs, and overflow, where wanted, on others that are free."""
    columns, vgpus = used
    planned = planned_rps(columns, vgpus, promised)
    if not inputs.options.overflow:
        return widen(problem, columns, vgpus, planned), None
    vgpus = widen(problem, columns, vgpus, planned, BEFORE_OVERFLOW)
    limits_us = limits_of(problem, inputs.workload, inputs.options)
    beside = overflow(problem, limits_us, (columns, vgpus), promised)
    if beside is not None:
        taken = gpus_in_use(problem, beside.columns, beside.vgpus)
        problem = replace(problem, gpus=problem.gpus - taken)
    return widen(problem, columns, vgpus, planned), beside


def _margins_us(inputs: Inputs, problem: Problem) -> NDArray[np.float64]:
    """[models] µs of their SLOs that margins leave free."""
    slo_us = {demand.name: demand.slo_us for demand in inputs.workload.models}
    return np.array([inputs.options.margin(m.name) * slo_us[m.name] for m in problem.models])


def _running(inputs: Inputs, problem: Problem) -> dict[Use, int]:
    """GPUs that run one stage alone under the plan in force, in the problem's numbers."""
    previous = inputs.options.previous
    if previous is None:
        return {}
    models = {model.name: number for number, model in enumerate(problem.models)}
    types = {(problem.classes[c], v): number for number, (c, v) in enumerate(problem.types)}
    counts = running(uses_of(previous, inputs.cluster), inputs.cluster)
    return {
        (models[model], types[gpu_class, divisor], *blocks): count
        for (model, gpu_class, divisor, blocks), count in counts.items()
        if model in models and (gpu_class, divisor) in types
    }


def objective_of(name: str, score: float, bound: float) -> Objective:
    """The certificate's objective from a score and its bound (cost and power: negated)."""
    value, limit = (score, bound) if name == "throughput" else (-score, -bound)
    gap = abs(limit - value) / value if value > 0 else 0.0
    return Objective(name=name, value=value, upper_bound=limit, gap=gap)


def _prices(cluster: Cluster, options: PlanOptions) -> NDArray[np.float64]:
    """[C] what one GPU of each class costs in the objective; 0 for throughput."""
    field = _PRICES.get(options.objective)
    if field is None:
        return np.zeros(len(cluster.gpu_classes))
    for gpu_class in cluster.gpu_classes:
        if getattr(gpu_class, field) is None:
            raise InputError(
                f"gpu_classes.{gpu_class.name}.{field}",
                f"needed for the objective {options.objective!r}",
            )
    return np.array([getattr(c, field) for c in cluster.gpu_classes], dtype=np.float64)


def _require_rates(workload: Workload, options: PlanOptions) -> None:
    for model in workload.models:
        if model.rate_rps is None:
            raise InputError(
                f"workload model {model.name!r}, rate_rps",
                f"needed for the objective {options.objective!r}",
            )


def with_rates(
    profiles: Mapping[str, ModelProfile],
    cluster: Cluster,
    workload: Workload,
    options: PlanOptions,
) -> tuple[Workload, str]:
    """The workload with a batch-building rate for every model, and where the rates come from.

    They are the throughputs of `no-partitioning` without gathering time. Where a model has no plan
    as a whole, that is no plan at all; then all that are missing are the throughputs of the pool
    plan without gathering time.

    Raises:
        InfeasibleError: a model has no pipeline even then; the message says its best latency.
    """
    if all(m.batch_building_rate_rps is not None for m in workload.models):
        return workload, "given"
    first = replace(
        options, planner="no-partitioning", objective="throughput", previous=None, pinned_models=()
    )
    bare = Workload(models=tuple(replace(m, batch_building_rate_rps=None) for m in workload.models))
    try:
        rates, source = _throughputs(profiles, cluster, bare, first), "no-partitioning"
    except InfeasibleError:
        if options.planner != "pool":
            raise
        first = replace(first, planner="pool")
        rates, source = _throughputs(profiles, cluster, bare, first), "pool without gathering"
    return Workload(
        models=tuple(
            m
            if m.batch_building_rate_rps is not None
            else replace(m, batch_building_rate_rps=rates[m.name])
            for m in workload.models
        )
    ), source


def _throughputs(
    profiles: Mapping[str, ModelProfile], cluster: Cluster, bare: Workload, options: PlanOptions
) -> dict[str, float]:
    """What every model reaches without gathering time (requests/s)."""
    whole = options.planner != "pool"
    problem = build_problem(profiles, cluster, bare, options, whole_gpus=whole)
    inputs = Inputs(
        profiles=profiles, cluster=cluster, workload=bare, options=options, problem=problem
    )
    plan = decode(inputs, no_partitioning(inputs) if whole else _pool(inputs))
    return {model.name: model.throughput_rps for model in plan.models}
