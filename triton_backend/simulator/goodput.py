"""Goodput: the highest rate on a grid at which attainment still holds.

And the goodput that a plan keeps when its profiles or rates are wrong (`tolerance`): every stage
takes a factor longer than its table says; or one model offers a fifth more than planned. As in a
running gateway, what is measured is made up for (`measures`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import floor
from typing import Any

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.simulator.results import Goodput, SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions, loaded, rates_of

ATTAINMENT = 0.99
STEP = 0.05
LATENCY_FACTORS = (1.0, 1.1, 1.2, 1.5)
RATE_FACTOR = 1.2


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

    Raises:
        InputError: the run is too short for a request of each at a load factor that is tried.
    """
    asked = replace(options, rate_rps=None, keep_uses=False, give_up_below=attainment)
    for load_factor in grid_of(step):
        at = replace(asked, load_factor=load_factor)
        result = simulate(plan, at)
        if result.least_attainment >= attainment:
            rates = rates_of(plan, at)
            _check_asked(result, rates, at)
            return Goodput(load_factor=load_factor, rps=sum(rates.values()))
    return Goodput(load_factor=0.0, rps=0.0)


def _check_asked(result: SimResult, rates: Mapping[str, float], options: SimOptions) -> None:
    """Refuse to judge by no request: of none, all are in time."""
    asked = {model.name: model.outcome.offered for model in result.models}
    asked |= {name: variants.outcome.offered for name, variants in result.variants.items()}
    asked |= {name: one.outcome.offered for name, one in result.applications.items()}
    for name, rate_rps in rates.items():
        if rate_rps > 0 and not asked[name]:
            place = f"{name} at load factor {options.load_factor:g}"
            reason = f"{options.duration_s:g} s has no request of {place}; take more"
            raise InputError("option duration", reason)


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


@dataclass(frozen=True, slots=True)
class Kept:
    """A case, and the share of the planned rate at which every model still attains."""

    case: str
    load_factor: float

    def to_dict(self) -> dict[str, Any]:
        """Plain form, as `tolerance --json` prints it."""
        return {"case": self.case, "load_factor": self.load_factor}


def tolerance(
    plan: Plan,
    options: SimOptions,
    *,
    attainment: float = ATTAINMENT,
    step: float = STEP,
    report: Callable[[str], None] = lambda _: None,
) -> tuple[Kept, ...]:
    """Goodput for every factor of latencies, then with each model a fifth above its rate.

    Factors are of the profiled latencies, which a plan may expect to be longer (`profile_factor`).
    """
    expected = float(plan.options.get("profile_factor", 1.0))
    cases: list[tuple[str, SimOptions]] = [
        (f"latencies x {factor:g}", replace(options, latency_factor=factor / expected))
        for factor in LATENCY_FACTORS
    ]
    models, applications = loaded(plan, options)
    for name in (*models, *applications):
        more = replace(options, rate_factors={name: RATE_FACTOR}, latency_factor=1 / expected)
        cases.append((f"{name}: rate x {RATE_FACTOR:g}", more))
    kept: list[Kept] = []
    for case, changed in cases:
        report(case)
        kept.append(Kept(case, find_goodput(plan, changed, attainment, step).load_factor))
    return tuple(kept)
