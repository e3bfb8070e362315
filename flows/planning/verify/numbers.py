"""Re-derive every number of a plan without any solver code.

Here: coverage of blocks, latencies, transfers, rates, throughput, objective, GPU counts and
placement, each from the plan's own inputs; latencies and bytes also from the profiles where given.
Not here, on purpose: anything imported from the planner's steps, so that a mistake there shows.
"""

import math
from collections.abc import Iterator, Mapping
from typing import cast

from flows.planning.verify.applications import (
    application_differences,
    application_rate_differences,
    by_rank,
    lines_match,
)
from flows.planning.verify.bound import bound_differences
from flows.planning.verify.differences import compare
from flows.planning.verify.gpus import (
    gpu_differences,
    interference_differences,
    nic_differences,
    placement_differences,
)
from flows.planning.verify.objective import PRICES, objective_differences
from flows.planning.verify.parts import parts_of, whole_differences
from flows.planning.verify.phases import phase_differences
from flows.planning.verify.pipelines import pipeline_differences
from flows.planning.verify.profiled import expected
from flows.planning.verify.rates import (
    by_entry,
    entry_differences,
    on_demand_differences,
    rate_differences,
    shadow_differences,
    shared_pool_differences,
    turn_differences,
)
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile

SHARES = ("slo_margin", "pipeline_margin", "utilisation")
BY_MODEL = {"slo_margins": 1.0, "minimum_rps": math.inf}


def verify_plan(plan: Plan, profiles: Mapping[str, ModelProfile] | None = None) -> list[str]:
    """Differences between a plan and what follows from its inputs; empty when it holds.

    Without profiles, the plan's own latency tables and boundary bytes are taken as given.
    """
    found = [*_options_known(plan)] or [*_models_match(plan)]
    if found:
        return found
    if plan.workload.is_mixed:
        return [*_apart(plan, profiles)]
    profiles = None if profiles is None else expected(plan, profiles)
    for model in plan.models:
        profile = None if profiles is None else profiles.get(model.name)
        if profiles is not None and profile is None:
            found.append(f"{model.name}: no profile")
        for number, pipeline in enumerate(model.pipelines):
            where = f"{model.name}, pipeline {number}"
            found += [
                f"{where}: {text}" for text in pipeline_differences(plan, model, pipeline, profile)
            ]
        total = math.fsum(p.throughput_rps for p in model.pipelines)
        found += compare(f"{model.name}: throughput_rps", model.throughput_rps, total)
    if by_entry(plan):
        found += entry_differences(plan)
    else:
        found += application_rate_differences(plan) if by_rank(plan) else rate_differences(plan)
    found += application_differences(plan)
    found += shared_pool_differences(plan)
    found += on_demand_differences(plan)
    found += shadow_differences(plan)
    found += turn_differences(plan)
    found += interference_differences(plan)
    found += objective_differences(plan)
    found += gpu_differences(plan)
    found += placement_differences(plan)
    found += nic_differences(plan)
    found += bound_differences(plan, profiles)
    found += phase_differences(plan)
    return found


def _apart(plan: Plan, profiles: Mapping[str, ModelProfile] | None) -> Iterator[str]:
    """Every part by itself, and what all of them hold together."""
    try:
        parts = parts_of(plan)
    except InputError as error:
        yield str(error)
        return
    yield from whole_differences(plan, parts)
    for part in parts:
        yield from verify_plan(part, profiles)
    yield from gpu_differences(plan)
    yield from placement_differences(plan)
    yield from nic_differences(plan)


def _models_match(plan: Plan) -> Iterator[str]:
    if plan.applications or plan.workload.applications:
        yield from lines_match(plan)
        return
    planned = [(m.name, m.slo_us) for m in plan.models]
    asked = [(m.name, m.slo_us) for m in plan.workload.models]
    if planned != asked:
        yield f"models and SLOs {planned} are not those of the workload {asked}"


def _options_known(plan: Plan) -> Iterator[str]:
    """Options that the checks reckon with are what a planner takes: no other number excuses any."""
    for name in SHARES:
        if not _is_number(value := plan.options.get(name, 0), 1):
            yield f"options: {name} is {value!r}, no number within 0 and 1"
    if not _is_number(most := plan.options.get("max_partitions", 0)):
        yield f"options: max_partitions is {most!r}, not a number"
    for name, most in BY_MODEL.items():
        given: object = plan.options.get(name, {})
        if not isinstance(given, Mapping) or not all(
            _is_number(value, most) for value in cast("Mapping[str, object]", given).values()
        ):
            yield f"options: {name} is {given!r}, no numbers within 0 and {most:g} by model"
    own: object = plan.options.get("headroom_factors", {})
    factors = cast("Mapping[str, object]", own) if isinstance(own, Mapping) else {"": own}
    if not all(_is_number(each) and cast("float", each) >= 1 for each in factors.values()):
        yield f"options: headroom_factors is {own!r}, no numbers of 1 or more by name"
    for name in ("headroom_factor", "profile_factor"):
        factor = plan.options.get(name, 1.0)
        if not isinstance(factor, int | float) or not 1 <= factor < math.inf:
            yield f"options: {name} is {factor!r}, no number of 1 or more"
    if plan.objective.name not in PRICES:
        yield f"objective: {plan.objective.name!r} is none of {', '.join(PRICES)}"


def _is_number(value: object, most: float = math.inf) -> bool:
    return isinstance(value, int | float) and 0 <= value <= most
