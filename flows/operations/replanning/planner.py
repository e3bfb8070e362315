"""Plans for rates: of the planner and options of a plan in force, the least that carries them.

One way for `autoscale`, `replan` and the backtest, whatever clients ask for: models, entries or
applications. Here: rates to a plan. Not here: where rates come from, and when a plan is made.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from flows.operations.replanning.demands import with_rates
from flows.operations.replanning.rows import Measured, rows_of, with_rows
from flows.planning import PlanOptions, make_plan
from flows.planning.entries import AS_LISTED
from flows.planning.promises.headroom import at_part
from flows.planning.registry import planner_named
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import InterferenceModel, ModelProfile
from triton_backend.contract.workload import Workload

# A replan should be quick rather than perfect: half a GPU of a hundred, and a few seconds.
RELATIVE_GAP = 0.005
TIME_LIMIT_S = 8.0
TRIALS = 5  # of parts of the rates, where a planner knows no most

MakePlan = Callable[[Cluster, Workload, PlanOptions], Plan]


class Planner(Protocol):
    """A plan for rates by name (`demands`), and for rows of modules as they were measured."""

    def __call__(self, rates_rps: Mapping[str, float], rows: Measured | None = None) -> Plan:
        """A plan.

        Raises:
            InfeasibleError: no plan serves every model in time.
        """
        ...


def options_of(in_force: Plan | None) -> PlanOptions:
    """How the plan in force was planned; how plans are made by default where there is none.

    Plans of entries state phases and headroom; one that states none was made by rates alone.

    Raises:
        InputError: its planner is not known any more.
    """
    if in_force is None:
        return PlanOptions()
    usual = AS_LISTED if in_force.workload.has_entries else {}
    return PlanOptions.from_dict(in_force.planner, {**usual, **in_force.options})


def least_objective(options: PlanOptions, workload: Workload, cluster: Cluster) -> str:
    """The objective that takes least for given rates: that of the options, or as few GPUs as go.

    Without entries, least cost goes before fewest GPUs where every class states a price. Planners
    that know neither GPUs nor cost plan for most throughput.
    """
    if options.objective != "throughput":
        return options.objective
    known = planner_named(options.planner).objectives
    prices = all(c.hourly_cost is not None for c in cluster.gpu_classes)
    by_cost = prices and not workload.has_entries
    order = ("cost", "gpus") if by_cost else ("gpus", "cost")
    return next(name for name in (*order, "throughput") if name in known)


def priced(cluster: Cluster) -> Cluster:
    """A cluster with prices; where one is missing, every GPU counts the same.

    For plans that are counted and not kept: a plan that is kept states only prices it was given.
    """
    if all(c.hourly_cost is not None for c in cluster.gpu_classes):
        return cluster
    classes = tuple(replace(c, hourly_cost=1.0) for c in cluster.gpu_classes)
    return replace(cluster, gpu_classes=classes)


def least_or_most(
    make: MakePlan, cluster: Cluster, workload: Workload, options: PlanOptions
) -> Plan:
    """Least of the objective that carries the rates; where none does, the most of them.

    Where the planner knows no most, the same part of every rate, as large as a few trials find.

    Raises:
        InfeasibleError: a model cannot meet its SLO.
        InputError: under cost or power, a class states none.
    """
    try:
        return make(cluster, workload, options)
    except InfeasibleError as error:
        if options.objective == "throughput":
            raise
        refused = error
    try:
        return make(cluster, workload, replace(options, objective="throughput"))
    except InfeasibleError:
        raise
    except InputError:  # not defined for this planner, or for these options
        pass
    found: Plan | None = None
    low, high = 0.0, 1.0
    for _ in range(TRIALS):
        part = (low + high) / 2
        try:
            found, low = make(cluster, at_part(workload, part), options), part
        except InfeasibleError:
            high = part
    if found is None:
        raise refused
    return found


def cheapest_planner(
    profiles: Mapping[str, ModelProfile],
    cluster: Cluster,
    workload: Workload,
    options: PlanOptions,
    report: Callable[[str], None] = lambda _: None,
    *,
    interference: Mapping[str, InterferenceModel] | None = None,
    objective: str = "cost",
    in_force: Plan | None = None,
) -> Planner:
    """Least of an objective at the rates asked for, or the most (`least_or_most`).

    Each plan keeps what it can of the one before in its place, the first one of that in force.
    """
    former, number = in_force, int(in_force is not None)

    def made(within: Cluster, asked: Workload, chosen: PlanOptions) -> Plan:
        return make_plan(profiles, within, asked, chosen, interference=interference)

    def plan(rates_rps: Mapping[str, float], rows: Measured | None = None) -> Plan:
        nonlocal former, number
        number += 1
        report(f"plan {number}")
        quick = replace(
            options,
            objective=objective,
            gap=max(options.gap, RELATIVE_GAP),
            time_limit_s=options.time_limit_s or TIME_LIMIT_S,
            previous=former,
        )
        known = workload if former is None else rows_of(workload, former.workload)
        measured = replace(known, applications=with_rows(known.applications, rows or {}))
        asked = with_rates(measured, rates_rps)
        former = least_or_most(made, cluster, asked, quick)
        return former

    return plan
