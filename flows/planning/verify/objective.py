"""Check the objective: its value, bound and gap, and rates that are asked for."""

import math
from collections.abc import Iterator, Mapping

from flows.planning.verify.differences import compare
from flows.planning.verify.phases import RELATIVE
from triton_backend.contract.plan import Plan
from triton_backend.contract.shares import WHOLE_GPU

PRICES = {"throughput": "", "cost": "hourly_cost", "power": "power_w", "gpus": "", "share": ""}


def worth_rps(plan: Plan, delivered: Mapping[str, float]) -> dict[str, float]:
    """Requests/s that the objective is worth to every model, at least the rate it keeps."""
    normaliser = _needed(plan)
    level = 1.0
    if plan.objective.name == "throughput":
        level = min(delivered[name] / normaliser[name] for name in delivered if normaliser[name])
    least: Mapping[str, float] = plan.options.get("minimum_rps", {})
    return {name: max(normaliser[name] * level, least.get(name, 0.0)) for name in delivered}


def objective_differences(plan: Plan) -> Iterator[str]:
    """Value, bound and gap follow from the plan, and rates that are asked for are promised."""
    objective = plan.objective
    if objective.name == "throughput":
        needed = _needed(plan)
        value = min(m.throughput_rps / needed[m.name] for m in plan.models if needed[m.name])
        above = objective.upper_bound - objective.value
    else:
        yield from _rates_met(plan)
        value = _paid(plan, objective.name)
        above = objective.value - objective.upper_bound
    yield from compare("objective value", objective.value, value)
    if above < -RELATIVE * abs(objective.value):
        yield f"bound {objective.upper_bound!r} contradicts the value {objective.value!r}"
    if objective.value > 0:
        yield from compare("gap", objective.gap, max(0.0, above) / objective.value)
    known = {m.name for m in plan.models}
    for name, rate in plan.options.get("minimum_rps", {}).items():
        if name not in known:
            yield f"minimum_rps names {name!r}, which is not planned"
            continue
        if plan.model(name).throughput_rps < rate * (1 - RELATIVE):
            yield f"{name}: {plan.model(name).throughput_rps} requests/s, at least {rate} asked"


def gpu_price(plan: Plan, gpu_class: str, objective: str) -> float:
    """The cost of one GPU of a class in a minimised objective."""
    if objective in ("gpus", "share"):
        return 1.0 if objective == "gpus" else 100.0  # percents
    return getattr(plan.cluster.gpu_class(gpu_class), PRICES[objective]) or 0.0


def _needed(plan: Plan) -> dict[str, float]:
    """Requests/s (rows/s) per unit of the objective that all users ask of each model."""
    needed = dict.fromkeys((model.name for model in plan.models), 0.0)
    for demand in plan.workload.models:
        needed[demand.name] += demand.normaliser(plan.objective.name)
    for application in plan.workload.applications:
        for module in application.modules:
            rate = application.normaliser(plan.objective.name)
            needed[module.model] += rate * module.rows_per_request
    return needed


def _paid(plan: Plan, objective: str) -> float:
    """Price of the GPUs in use, of the shares held, or of the occupied part of vGPUs.

    Percents held.
    """
    billed = objective != "gpus" and plan.options.get("billing") == "share"
    if objective == "share" or billed:
        return math.fsum(
            gpu_price(plan, pool.gpu_class, objective) * pool.share / WHOLE_GPU * pool.vgpus
            for pool in plan.pools
        )
    if plan.options.get("billing", "gpu") == "occupancy":
        return math.fsum(
            (pipeline.occupied_vgpus or 0.0)
            * gpu_price(plan, pool.gpu_class, objective)
            * pool.share
            / WHOLE_GPU
            for _, pipeline, _, pool in plan.placed_stages()
        )
    return math.fsum(
        count * gpu_price(plan, name, objective) for name, count in plan.gpus_used.items()
    )


def _rates_met(plan: Plan) -> Iterator[str]:
    for name, asked in _needed(plan).items():
        served = plan.model(name).throughput_rps
        if served < asked * (1 - RELATIVE):
            yield f"{name}: {served} requests/s, {asked} asked"
