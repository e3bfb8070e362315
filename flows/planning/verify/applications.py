"""Check applications: their models, their budgets, and rows served in the order of ranks.

Ranks and filling times: piccolo, section III-B.
"""

import math
from collections.abc import Iterator, Mapping

from flows.planning.verify.capacity import stage_rate
from flows.planning.verify.differences import compare, headroom, margin_of
from flows.planning.verify.phases import RELATIVE
from triton_backend.contract.applications import Application, Module
from triton_backend.contract.plan import ModelPlan, Pipeline, Plan
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.contract.units import US_PER_S, us_to_ms


def lines_match(plan: Plan) -> Iterator[str]:
    """Applications are those asked for; every used model is planned, and no other."""
    asked = {a.name: a for a in plan.workload.applications}
    planned = {a.name: a.application for a in plan.applications}
    if list(asked) != list(planned):
        yield f"applications {list(planned)} are not those of the workload {list(asked)}"
        return
    for name, application in planned.items():
        mine = (application.slo_us, application.outputs, *map(_shape, application.modules))
        theirs = (asked[name].slo_us, asked[name].outputs, *map(_shape, asked[name].modules))
        if mine != theirs:
            yield f"application {name}: SLO, outputs or modules are not those of the workload"
    alone = {model.name: model.slo_us for model in plan.workload.models}
    used = {*alone, *(m.model for a in planned.values() for m in a.modules)}
    if used != {model.name for model in plan.models}:
        yield f"models {[m.name for m in plan.models]} are not those used, {sorted(used)}"
        return
    for model in plan.models:
        most = [alone[model.name]] if model.name in alone else []
        for planned_app in plan.applications:
            kept = 1 - margin_of(plan, planned_app.name)
            most += [
                math.floor(planned_app.budgets_us[module.name] / kept + RELATIVE)
                for module in planned_app.application.modules
                if module.model == model.name
            ]
        if model.slo_us != min(most):
            yield f"{model.name}: slo_us is {model.slo_us}, its users allow {min(most)}"


def _shape(module: Module) -> tuple[object, ...]:
    rows = (module.rows_per_request, module.max_rows, module.max_rows_given, module.optional)
    size = (module.size_of, module.size_by)
    return (module.name, module.model, module.parents, rows, dict(module.inputs), size)


def application_differences(plan: Plan) -> Iterator[str]:
    """Budgets on every path keep the SLO less margin; applications are promised what is planned."""
    for planned in plan.applications:
        application = planned.application
        limit = (1 - margin_of(plan, planned.name)) * application.slo_us
        way = _longest_way(application, planned.budgets_us)
        if way > limit * (1 + RELATIVE):
            text = f"budgets sum up to {us_to_ms(way):.3f} ms, SLO less margin is"
            yield f"application {planned.name}: {text} {us_to_ms(limit):.3f} ms"
        wanted = next(a for a in plan.workload.applications if a.name == planned.name)
        level = plan.objective.value if plan.objective.name == "throughput" else 1.0
        yield from compare(
            f"application {planned.name}: rate_rps",
            application.rate_rps or 0.0,
            wanted.normaliser(plan.objective.name) * level,
        )


def _longest_way(application: Application, budgets_us: Mapping[str, int]) -> int:
    """The greatest sum of budgets over all paths, each walked for itself."""
    modules = {module.name: module for module in application.modules}

    def up_to(name: str) -> int:
        parents = modules[name].parents
        return budgets_us[name] + max((up_to(parent) for parent in parents), default=0)

    return max(map(up_to, modules))


def by_rank(plan: Plan) -> bool:
    """True if batches are gathered at rates that follow from what is planned, not stated ones."""
    return plan.accounting.rule is not None


def application_rate_differences(plan: Plan) -> Iterator[str]:
    """Clients' rows are served by what is paid, in the order of ranks, and gather in time."""
    for model in plan.models:
        served = math.fsum(pipeline.throughput_rps for pipeline in model.pipelines)
        paid = 0.0
        for number, pipeline in enumerate(model.pipelines):
            where = f"{model.name}, pipeline {number}"
            if len(pipeline.stages) != 1 or pipeline.occupied_vgpus is None:
                yield f"{where}: one stage and its occupied_vgpus are needed"
                return
            held = plan.pool_of(pipeline.stages[0]).vgpus
            if pipeline.occupied_vgpus > held * (1 + 1e-6):
                yield f"{where}: occupies {pipeline.occupied_vgpus} vGPUs, its pool has {held}"
            rate = pipeline.occupied_vgpus * stage_rate(plan, pipeline, 0)
            if pipeline.throughput_rps > rate * (1 + 1e-6):
                yield f"{where}: throughput_rps is {pipeline.throughput_rps}, paid are {rate}"
            paid += rate
        served *= headroom(plan, model.name)
        if paid < served * (1 - 1e-6):
            yield f"{model.name}: {served} rows/s promised, {paid} paid"


def filling_us(plan: Plan, model: ModelPlan, pipeline: Pipeline) -> float:
    """Time in which a batch fills, by the accounting of the plan (piccolo, section III-B).

    tc: at the rate of all that is ranked no better; ranks go by price per row/s, then latency, then
    batch, full machines before partial ones. dt and 2d: at the machine's own rate.
    """
    gathering = plan.accounting.rule
    stage = pipeline.stages[0]
    share = plan.pool_of(stage).share / WHOLE_GPU

    def rank(other: Pipeline) -> tuple[float, ...]:
        pool = plan.pool_of(other.stages[0])
        price = plan.cluster.gpu_class(pool.gpu_class).hourly_cost or 0.0
        rate = stage_rate(plan, other, 0)
        unit = price * pool.share / WHOLE_GPU / rate
        return (float(f"{unit:.9g}"), other.latency_us, other.batch, -(other.occupied_vgpus or 0))

    def paid(other: Pipeline) -> float:
        return (other.occupied_vgpus or 0.0) * stage_rate(plan, other, 0)

    if gathering == "tc-even":
        rate = math.fsum(map(paid, model.pipelines))
    elif gathering in ("tc-tail", "tc-padded"):
        rate = math.fsum(paid(p) for p in model.pipelines if rank(p) >= rank(pipeline))
    else:
        rate = min(paid(pipeline), stage_rate(plan, pipeline, 0) / share)
    filling = pipeline.batch * US_PER_S / rate if rate else math.inf
    return max(stage.latency_us, filling) if gathering == "2d" else filling
