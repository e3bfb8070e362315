"""Entries beside applications: each kind planned on GPUs of its own, joined to one plan.

Models that list entries are one part of the workload; applications and all other models are the
other. A part is planned by the planner asked for on the whole cluster, the other one on the GPUs
that it leaves; where the second does not fit, they change places. No GPU is shared between parts,
and no model belongs to both. What is minimised is the sum, within the plans that leave the first
part as it is; the certificate keeps what was decided of each part by itself, by which `verify`
checks it again. Of a time limit applications take half at most.

Here: dividing, and joining. Not here: how a part is planned.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from flows.planning.certificate import plan_identity, with_stages
from flows.planning.registry import Inputs, PlanOptions
from triton_backend.contract.cluster import Cluster, NodeGroup
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import (
    Objective,
    PlacementRun,
    Plan,
    Pool,
    next_pool_name,
)
from triton_backend.contract.workload import Workload, lines_of

SPACE = "apart"
MINIMISED = ("cost", "power")
_SHARE = 0.5  # of the time that is left: what applications may take, which use all that they have

MakePart = Callable[[Cluster, Workload], Plan]
Gpus = Mapping[int, tuple[int, ...]]
"""By node, numbers of its GPUs."""


def plan_apart(make: Callable[[Inputs], Plan], inputs: Inputs) -> Plan:
    """The plan of a workload that holds entries and applications.

    Args:
        make: the plan of one part.
        inputs: of both parts, on one cluster; the objective is one that is minimised.

    Raises:
        InputError: the objective has no sum over parts, or models are pinned.
        InfeasibleError: the parts do not fit beside each other.
    """
    options = inputs.options
    if options.pinned_models:
        reason = "entries beside applications are planned again every time"
        raise InputError("option pinned_models", reason)
    if options.objective not in MINIMISED:
        known = " and ".join(MINIMISED)
        reason = f"entries beside applications are planned for given rates, by {known}"
        raise InputError("option objective", f"{options.objective!r}: {reason}")

    def part(cluster: Cluster, asked: Workload) -> Plan:
        names = [*(line.name for line in lines_of(asked)), *(a.name for a in asked.applications)]
        watch = inputs.watch
        if not asked.has_entries:
            watch = replace(watch.part(_SHARE), tell=watch.tell)
        own = options.for_names(names)
        return make(replace(inputs, cluster=cluster, workload=asked, watch=watch, options=own))

    parts, cluster = divided(inputs.workload), inputs.cluster
    try:
        plans = _one_after_another(part, cluster, parts)
    except InfeasibleError as refused:
        try:
            plans = _one_after_another(part, cluster, parts[::-1])[::-1]
        except InfeasibleError:
            raise refused from None
    return _joined(plans, cluster, inputs.workload, options)


def divided(workload: Workload) -> tuple[Workload, Workload]:
    """Applications and models without entries; models with entries."""
    with_entries = tuple(model for model in workload.models if model.entries)
    others = tuple(model for model in workload.models if not model.entries)
    used = {module.model for one in workload.applications for module in one.modules}
    used |= {model.name for model in others}
    steps = tuple(step for step in workload.steps if step.name in used)
    first = replace(workload, models=others, steps=steps)
    return first, Workload(models=with_entries)


def _one_after_another(
    make: MakePart, cluster: Cluster, parts: tuple[Workload, ...]
) -> tuple[Plan, ...]:
    first, second = parts
    one = make(cluster, first)
    rest, gpus = without(cluster, one)
    return one, moved(make(rest, second), cluster, gpus)


def without(cluster: Cluster, plan: Plan) -> tuple[Cluster, Gpus]:
    """The cluster without the GPUs that a plan holds: a group per node, and the GPUs it is left.

    Nodes of which none is left are not there: the keys of what is returned are numbers of nodes of
    `cluster`, in the order of the rest's.

    Raises:
        InfeasibleError: nothing is left.
    """
    held = {(slot.node, slot.gpu) for pool in plan.pools for slot in pool.slots()}
    groups: list[NodeGroup] = []
    left: dict[int, tuple[int, ...]] = {}
    for node in range(cluster.node_count):
        group = cluster.node_group_of(node)
        gpus = tuple(gpu for gpu in range(group.gpus) if (node, gpu) not in held)
        if gpus:
            devices = None if group.devices is None else tuple(map(group.device, gpus))
            left[node] = gpus
            groups.append(
                replace(
                    group,
                    count=1,
                    gpus=len(gpus),
                    devices=devices,
                    name=cluster.node_name(node),
                )
            )
    if not groups:
        raise InfeasibleError("cluster", "one part of the workload takes every GPU")
    return replace(cluster, nodes=tuple(groups)), left


def moved(plan: Plan, cluster: Cluster, gpus: Gpus) -> Plan:
    """A plan for the rest of a cluster (`without`), as one for the whole."""
    nodes = list(gpus)

    def placed(pool: Pool) -> Pool:
        slots = pool.slots()
        runs = tuple(
            PlacementRun(node=nodes[s.node], gpu=gpus[nodes[s.node]][s.gpu], slot=s.slot)
            for s in slots
        )
        return replace(pool, placement=runs)

    return replace(plan, cluster=cluster, pools=tuple(map(placed, plan.pools)))


def _joined(
    plans: tuple[Plan, ...], cluster: Cluster, workload: Workload, options: PlanOptions
) -> Plan:
    counts: dict[str, int] = {}
    renamed = tuple(_renamed(plan, counts) for plan in plans)
    first, second = renamed
    demands = {model.name: model for plan in renamed for model in plan.workload.models}
    asked = replace(
        workload,
        models=tuple(demands[model.name] for model in workload.models),
        applications=first.workload.applications,
    )
    models = {model.name: model for plan in renamed for model in plan.models}
    notes = [note for plan in renamed for note in plan.certificate.get("notes", ())]
    rates_from = first.options.get("batch_building_rates", "given")
    plan = Plan(
        plan_id="unnamed",
        planner=options.planner,
        options={**options.to_dict(), "batch_building_rates": rates_from},
        objective=_sum([plan.objective for plan in renamed]),
        solver=", ".join(dict.fromkeys(plan.solver for plan in renamed)),
        solve_seconds=math.fsum(plan.solve_seconds for plan in renamed),
        cluster=cluster,
        workload=asked,
        gpus_used={},
        pools=(*first.pools, *second.pools),
        models=tuple(models[line.name] for line in lines_of(asked)),
        applications=first.applications,
        certificate={
            "status": " and ".join(
                dict.fromkeys(str(plan.certificate["status"]) for plan in renamed)
            ),
            "notes": [*notes, "entries and applications are planned on GPUs of their own"],
            "parts": [_part(plan) for plan in renamed],
        },
    ).counted()
    return replace(plan, plan_id=plan_identity(plan))


def _sum(objectives: list[Objective]) -> Objective:
    value = math.fsum(one.value for one in objectives)
    bound = math.fsum(one.upper_bound for one in objectives)
    gap = max(0.0, value - bound) / value if value > 0 else 0.0
    return Objective(name=objectives[0].name, value=value, upper_bound=bound, gap=gap, space=SPACE)


def _part(plan: Plan) -> dict[str, Any]:
    """A part as it was decided, in the form that `verify.parts` reads."""
    accounting = {"waits": plan.waits, "gathering_rule": plan.gathering_rule}
    return {
        "models": [model.name for model in plan.models],
        "options": dict(plan.options),
        "objective": plan.objective.to_dict(),
        "certificate": dict(plan.certificate),
    } | {name: value for name, value in accounting.items() if value is not None}


def _renamed(plan: Plan, counts: dict[str, int]) -> Plan:
    """The plan with names of pools that no part before has; `counts` are its names by class."""
    names = {pool.name: next_pool_name(pool.gpu_class, counts) for pool in plan.pools}
    pools = tuple(replace(pool, name=names[pool.name]) for pool in plan.pools)
    return with_stages(plan, lambda stage: replace(stage, pool=names[stage.pool]), pools)
