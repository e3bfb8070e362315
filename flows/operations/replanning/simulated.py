"""Arrivals, outcomes and capacities of plans by the names of all that clients ask for (`demands`).

Plans that replanning compares need not list the entries that a workload lists. Here: what stands
for what, and what a plan carries. Not here: the simulation.
"""

from collections.abc import Mapping

import numpy as np

from flows.operations.replanning.demands import entry_of_block
from triton_backend.contract.entries import demand_name
from triton_backend.contract.plan import ModelPlan, Plan
from triton_backend.contract.workload import Workload
from triton_backend.scheduler.admission import capacity_rps
from triton_backend.scheduler.policies.demand import names_of, planned_rates
from triton_backend.simulator.offered import Instant, Instants
from triton_backend.simulator.results import Outcome, SimResult


def capacities(plan: Plan) -> dict[str, float]:
    """Requests/s that the plan's vGPUs carry of clients, by name; at least what it has for them.

    Where models serve modules too, all their users grow together.
    """
    planned = planned_rates(plan)
    spare = {
        model.name: capacity_rps(plan, model) / model.throughput_rps
        for model in plan.models
        if model.throughput_rps > 0
    }
    found: dict[str, float] = {}
    for model in plan.models:
        if model.name in planned:
            found[model.name] = planned[model.name] * spare.get(model.name, 1.0)
        for entry in model.entries:
            own = [path for path in model.pipelines if path.entry == entry.name]
            found[demand_name(model.name, entry.name)] = capacity_rps(plan, model, own)
    for one in plan.applications:
        factors = [spare.get(module.model, 1.0) for module in one.application.modules]
        found[one.name] = planned[one.name] * min(factors)
    return {name: found[name] for name in planned}


def arrivals_for(plan: Plan, asked: Workload, instants: Mapping[str, Instants]) -> Instant:
    """Instants (µs) by name of a workload as a plan takes them; what it has no door for is left.

    Entries of a plan may have other names than the workload's (`entry_of_block`).
    """
    doors = _doors(plan, asked)
    found: dict[str, list[Instants]] = {}
    for name, times in instants.items():
        if name in doors:
            found.setdefault(doors[name], []).append(times)
    return Instant(by_model={name: np.sort(np.concatenate(t)) for name, t in found.items()})


def outcomes(plan: Plan, asked: Workload, result: SimResult) -> dict[str, Outcome]:
    """Outcomes of requests by name of a workload, of those that the plan has a door for."""
    known: dict[str, Outcome] = {model.name: model.outcome for model in result.models}
    known |= {name: one.outcome for name, one in result.applications.items()}
    for model, entries in result.entries.items():
        known |= {demand_name(model, name): one.outcome for name, one in entries.items()}
    return {name: known[door] for name, door in _doors(plan, asked).items() if door in known}


def _doors(plan: Plan, asked: Workload) -> dict[str, str]:
    """By name of a workload, where its requests come in under a plan."""
    models: dict[str, ModelPlan] = {model.name: model for model in plan.models}
    served = {one.name for one in plan.applications}
    doors = {one.name: one.name for one in asked.applications if one.name in served}
    for model in asked.models:
        mine = models.get(model.name)
        if mine is None:
            continue
        if not model.entries or not mine.entries:
            doors |= dict.fromkeys(names_of(model), model.name)
        for entry in model.entries if mine.entries else ():
            door = entry_of_block(mine.entries, entry.name, entry.block, entry.budget_us)
            if door is not None:
                doors[demand_name(model.name, entry.name)] = demand_name(model.name, door.name)
    return doors
