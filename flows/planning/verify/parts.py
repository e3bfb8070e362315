"""Parts of a plan that were planned by themselves, read from its certificate.

Entries beside applications stand on GPUs of their own, by options and with an accounting of waits
of their own. Here: the parts as plans, and what the whole is of them. Not here: numbers of a part
(`numbers`); anything imported from planners.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from flows.planning.verify.phases import RELATIVE
from triton_backend.contract.fields import Fields
from triton_backend.contract.plan import Objective, Plan

PARTS = "parts"


def parts_of(plan: Plan) -> list[Plan]:
    """The parts as plans on the whole cluster.

    Raises:
        InputError: the certificate states none, or they are not of this plan.
    """
    fields = Fields(plan.certificate, "certificate")
    return [_part(plan, one) for one in fields.items(PARTS)]


def _part(plan: Plan, fields: Fields) -> Plan:
    names = set(fields.texts("models"))
    models = tuple(model for model in plan.models if model.name in names)
    pools = {stage.pool for model in models for p in model.pipelines for stage in p.stages}
    applications = tuple(
        one
        for one in plan.applications
        if {module.model for module in one.application.modules} & names
    )
    known = {one.name for one in applications}
    workload = replace(
        plan.workload,
        models=tuple(model for model in plan.workload.models if model.name in names),
        applications=tuple(one for one in plan.workload.applications if one.name in known),
        steps=tuple(step for step in plan.workload.steps if step.name in names),
    )
    return replace(
        plan,
        options=dict(fields.table("options")),
        objective=Objective.read(fields.inner("objective")),
        workload=workload,
        pools=tuple(pool for pool in plan.pools if pool.name in pools),
        models=models,
        applications=applications,
        waits=fields.text("waits") if fields.has("waits") else None,
        gathering_rule=fields.text("gathering_rule") if fields.has("gathering_rule") else None,
        certificate=dict(fields.table("certificate")),
        attained=None,
    ).counted()


def whole_differences(plan: Plan, parts: list[Plan]) -> Iterator[str]:
    """Differences between a plan and its parts together: what they serve, hold and cost."""
    planned = sorted(model.name for part in parts for model in part.models)
    if planned != sorted(model.name for model in plan.models):
        yield f"parts: models {planned} are not each of the plan's once"
    served = sorted(one.name for part in parts for one in part.applications)
    if served != sorted(one.name for one in plan.applications):
        yield f"parts: applications {served} are not each of the plan's once"
    held: dict[tuple[int, int], int] = {}
    for number, part in enumerate(parts):
        for gpu in {(s.node, s.gpu) for pool in part.pools for s in pool.slots()}:
            if held.setdefault(gpu, number) != number:
                yield f"parts: GPU {gpu} is held by two"
    yield from _objective(plan, parts)


def _objective(plan: Plan, parts: list[Plan]) -> Iterator[str]:
    for part in parts:
        if part.objective.name != plan.objective.name:
            yield f"parts: one is for {part.objective.name}, the plan for {plan.objective.name}"
    value, bound = (
        math.fsum(getattr(part.objective, what) for part in parts)
        for what in ("value", "upper_bound")
    )
    gap = max(0.0, value - bound) / value if value > 0 else 0.0
    for what, derived in (("value", value), ("upper_bound", bound), ("gap", gap)):
        stated = getattr(plan.objective, what)
        if not math.isclose(stated, derived, rel_tol=RELATIVE, abs_tol=RELATIVE):
            yield f"objective {what} is {stated!r}, its parts come to {derived!r}"
