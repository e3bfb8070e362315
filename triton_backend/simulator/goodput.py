"""Goodput: the highest rate on a grid at which attainment still holds."""

from dataclasses import replace
from math import floor
from typing import Any

from triton_backend.contract.plan import Plan
from triton_backend.simulator.results import Goodput
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions, loaded, rates_of

ATTAINMENT = 0.99
STEP = 0.05


def grid_of(step: float = STEP) -> tuple[float, ...]:
    """Load factors from 1 down, so far apart; the last is at least `step`."""
    return tuple(round(1 - k * step, 9) for k in range(floor(1 / step + 1e-9)))


GRID = grid_of()  # 1.00, 0.95 .. 0.05


def find_goodput(
    plan: Plan, options: SimOptions, attainment: float = ATTAINMENT, step: float = STEP
) -> Goodput:
    """Highest load factor of `grid_of(step)` at which every loaded model and application attains.

    Else 0. Searched from above and capped at 1; load factors are shares of the reference plan's
    rate.
    """
    for load_factor in grid_of(step):
        at = replace(options, load_factor=load_factor, rate_rps=None, keep_uses=False)
        result = simulate(plan, at)
        if result.least_attainment >= attainment:
            return Goodput(load_factor=load_factor, rps=sum(rates_of(plan, at).values()))
    return Goodput(load_factor=0.0, rps=0.0)


def goodput_report(
    plan: Plan, options: SimOptions, attainment: float = ATTAINMENT, step: float = STEP
) -> dict[str, Any]:
    """The object `goodput` of `simulate --json`.

    Jointly, and each loaded model and application alone.
    """
    models, applications = loaded(plan, options)
    alone = {name: replace(options, models=(name,), applications=None) for name in models} | {
        name: replace(options, models=None, applications=(name,)) for name in applications
    }
    return {
        "joint": find_goodput(plan, options, attainment, step).to_dict(),
        "models": {
            name: find_goodput(plan, only, attainment, step).to_dict()
            for name, only in alone.items()
        },
    }
