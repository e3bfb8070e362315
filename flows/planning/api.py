"""Plans: profiles, cluster and workload in, a certified plan out, whichever planner makes it."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import fsum

from flows.planning.apart import plan_apart
from flows.planning.auto.plan import best_plan
from flows.planning.certificate import decode
from flows.planning.entries import MARGIN
from flows.planning.inputs import check_alike
from flows.planning.pool.applications.exact import application_rates
from flows.planning.promises.headroom import plan_with_headroom
from flows.planning.registry import Inputs, Outcome, PlanOptions, planner_named, refusal
from flows.planning.solver.record import recorded
from flows.planning.subclusters.variants import plan_with_variants
from flows.planning.watch import BEFORE, Watch
from triton_backend.contract.applications import received_bytes
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError, InvariantError
from triton_backend.contract.plan import Plan, modules_spread
from triton_backend.contract.profiles import InterferenceModel, ModelProfile
from triton_backend.contract.workload import Workload


def make_plan(
    profiles: Mapping[str, ModelProfile],
    cluster: Cluster,
    workload: Workload,
    options: PlanOptions | None = None,
    watch: Watch | None = None,
    *,
    interference: Mapping[str, InterferenceModel] | None = None,
) -> Plan:
    """Plan a workload on a cluster.

    Args:
        profiles: of the workload's models, by name.
        cluster: GPUs and nodes.
        workload: models with their SLOs and weights or rates.
        options: how to plan.
        watch: the clock of the run, where a caller wants to follow its progress or to end it; else
            one with the options' time limit.
        interference: how parts of a GPU slow each other down, by class, where that is known.

    Where a model has no batch-building rate, it is derived (`with_rates`); the plan's workload
    carries it, and its option `batch_building_rates` says from what.

    Raises:
        InputError: the inputs do not fit together or a price or rate is missing.
        InfeasibleError: a model cannot meet its SLO (with its best latency), or the rates asked
            for cannot be reached.
    """
    options = options or PlanOptions()
    inputs = Inputs(
        profiles=profiles,
        cluster=cluster,
        workload=workload,
        options=options,
        watch=watch or Watch(limit_s=options.time_limit_s),
        interference=interference or {},
    )
    return _made(inputs)


def _made(inputs: Inputs) -> Plan:
    """The plan of any planner, for any workload."""
    if not inputs.cluster.node_count:
        raise InfeasibleError("cluster", "has no GPUs")
    if inputs.workload.is_mixed:
        return plan_apart(_made, inputs)
    options = inputs.options
    for versions in inputs.workload.versions.values():
        check_alike("version", versions.values(), inputs.profiles)
    planner = planner_named(options.planner)
    if planner.plan is None:
        return best_plan(_made, inputs)
    inputs = replace(inputs, profiles=options.expected(inputs.profiles))
    if planner.most_stages is not None and options.max_partitions > planner.most_stages:
        inputs = inputs.asking(max_partitions=planner.most_stages)
    refused = refusal(planner, inputs)
    if refused is not None:
        raise refused
    if inputs.workload.has_entries and not options.margin_given:
        inputs = inputs.asking(slo_margin=MARGIN)
    shares = inputs.workload.variants and "variants" in planner.demands
    made = partial(plan_with_variants, _planned) if shares else _planned
    return plan_with_headroom(made, inputs)


def _planned(inputs: Inputs) -> Plan:
    """The plan of the planner named, of given shares; headroom is left to planners of entries.

    Where modules that read each other's tensors come to lie on several nodes, all is planned again
    with the transfers between modules counted.

    Raises:
        InfeasibleError: no plan, or none once transfers between modules count.
    """
    asked, first = inputs.workload.applications, inputs
    reads = (received_bytes(asked, name, p.inputs) for name, p in inputs.profiles.items())
    if inputs.cluster.node_count > 1 and any(reads):
        first = replace(inputs, watch=inputs.watch.part(BEFORE))
    plan = _planned_once(first)
    if not modules_spread(plan):
        return plan
    try:
        plan = _planned_once(replace(inputs, module_transfers=True))
    except InfeasibleError as error:
        reason = "with transfers between modules, which do not fit on one node"
        raise InfeasibleError(error.where, f"{error.reason}; {reason}") from error
    plan.certificate["notes"].append("transfers between modules count: they lie on several nodes")
    return plan


def _planned_once(inputs: Inputs) -> Plan:
    workload, rates_from = with_rates(inputs)
    inputs = replace(inputs, workload=workload)
    with recorded() as solvers:
        outcome = _decided(inputs)
    return decode(inputs, outcome, rates_from, solvers)


def _decided(inputs: Inputs) -> Outcome:
    plan = planner_named(inputs.options.planner).plan
    if plan is None:
        raise InvariantError("a planner that asks others makes no plan")  # pragma: no cover
    return plan(inputs)


def with_rates(inputs: Inputs) -> tuple[Workload, str]:
    """The workload with a batch-building rate for every model, and where the rates come from.

    They are the throughputs of a plan without gathering time, by the first planner of the planner's
    `rates_from` that has one: whole models on whole GPUs, and where a model has no plan as a whole,
    the planner itself. Rates that are given stay.

    Raises:
        InfeasibleError: a model has no pipeline even then; the message says its best latency.
    """
    workload = inputs.workload
    inputs = replace(inputs, watch=inputs.watch.part(BEFORE), prove=False)
    if workload.applications:
        return application_rates(inputs)
    sources = planner_named(inputs.options.planner).rates_from
    if workload.has_entries:  # no time for gathering is counted
        return workload, "given"
    if all(m.batch_building_rate_rps is not None for m in workload.models) or not sources:
        return workload, "given"
    free = replace(inputs.options, objective="throughput", previous=None, pinned_models=())
    bare = Workload(models=tuple(replace(m, batch_building_rate_rps=None) for m in workload.models))
    for name in sources:
        try:
            rates = _throughputs(replace(inputs, workload=bare, options=free.for_planner(name)))
        except InfeasibleError:
            if name == sources[-1]:
                raise
            continue
        source = name if name == sources[0] else f"{name} without gathering"
        given = {m.name: m.batch_building_rate_rps or rates[m.name] for m in workload.models}
        rated = (replace(m, batch_building_rate_rps=given[m.name]) for m in workload.models)
        return replace(workload, models=tuple(rated)), source
    raise InvariantError(
        "no source of batch-building rates"
    )  # pragma: no cover - the last one raises


def _throughputs(inputs: Inputs) -> dict[str, float]:
    """The rate of every model without gathering time (requests/s)."""
    outcome, models = _decided(inputs), inputs.workload.models
    served = outcome.promised_rps or [
        fsum(p.rate_rps for p in outcome.pipelines if p.model == number)
        for number in range(len(models))
    ]
    return {model.name: rate for model, rate in zip(models, served, strict=True)}
