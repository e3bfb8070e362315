"""Goodput: the highest rate on a grid at which attainment still holds."""

from dataclasses import replace
from typing import Any

from triton_backend.contract.plan import Plan
from triton_backend.simulator.results import Goodput
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions, loaded, rates_of

GRID = tuple(step / 20 for step in range(20, 0, -1))  # 1.00, 0.95 .. 0.05
ATTAINMENT = 0.99


def find_goodput(plan: Plan, options: SimOptions, attainment: float = ATTAINMENT) -> Goodput:
    """Highest load factor 0.05 .. 1.00 at which every loaded model and application attains; else 0.

    Searched from above and capped at 1; load factors are shares of the reference plan's rate.
    """
    for load_factor in GRID:
        at = replace(options, load_factor=load_factor, rate_rps=None, keep_uses=False)
        result = simulate(plan, at)
        if result.least_attainment >= attainment:
            return Goodput(load_factor=load_factor, rps=sum(rates_of(plan, at).values()))
    return Goodput(load_factor=0.0, rps=0.0)


def goodput_report(
    plan: Plan, options: SimOptions, attainment: float = ATTAINMENT
) -> dict[str, Any]:
    """The object `goodput` of `simulate --json`: jointly, and each loaded model and application alone."""
    models, applications = loaded(plan, options)
    alone = {
        name: find_goodput(plan, replace(options, models=(name,), applications=None), attainment)
        for name in models
    } | {
        name: find_goodput(plan, replace(options, models=None, applications=(name,)), attainment)
        for name in applications
    }
    return {
        "joint": find_goodput(plan, options, attainment).to_dict(),
        "models": {name: found.to_dict() for name, found in alone.items()},
    }
