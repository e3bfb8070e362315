"""How a stated number and the one derived from it differ; options that many checks read."""

import math
from typing import TYPE_CHECKING

from flows.planning.verify.phases import RELATIVE
from triton_backend.contract.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Mapping


def compare(what: str, stated: float, derived: float) -> list[str]:
    """The difference, in a list of its own; an empty list where rounding explains it."""
    if math.isclose(stated, derived, rel_tol=RELATIVE, abs_tol=1e-12):
        return []
    return [f"{what} is {stated!r}, derived {derived!r}"]


def headroom(plan: Plan) -> float:
    """Times what the plan promises that its pools carry."""
    return float(plan.options.get("headroom_factor", 1.0))


def margin_of(plan: Plan, model: str) -> float:
    """Part of the SLO that a model keeps back; 0 in a plan that states none."""
    by_model: Mapping[str, float] = plan.options.get("slo_margins", {})
    return float(by_model.get(model, plan.options.get("slo_margin", 0.0)))
