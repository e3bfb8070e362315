"""How a stated number and the one derived from it differ; options that many checks read."""

import math
from typing import TYPE_CHECKING

from flows.planning.verify.phases import RELATIVE
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import line_factors

if TYPE_CHECKING:
    from collections.abc import Mapping


def compare(what: str, stated: float, derived: float) -> list[str]:
    """The difference, in a list of its own; an empty list where rounding explains it."""
    if math.isclose(stated, derived, rel_tol=RELATIVE, abs_tol=1e-12):
        return []
    return [f"{what} is {stated!r}, derived {derived!r}"]


def headroom(plan: Plan, line: str) -> float:
    """Times what the plan promises of a model that its pools carry."""
    least = float(plan.options.get("headroom_factor", 1.0))
    own: Mapping[str, float] = plan.options.get("headroom_factors", {})
    if not own:
        return least
    part = {name: factor / least for name, factor in own.items()}
    return least * line_factors(plan.workload, part, plan.objective.name)[line]


def margin_of(plan: Plan, model: str) -> float:
    """Part of the SLO that a model keeps back; 0 in a plan that states none."""
    by_model: Mapping[str, float] = plan.options.get("slo_margins", {})
    return float(by_model.get(model, plan.options.get("slo_margin", 0.0)))
