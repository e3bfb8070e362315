"""Attainment of a finished plan, simulated: what the plan states of itself as `attained`.

Two loads: requests at equal gaps at the planned rates, and Poisson arrivals at `LOAD` of them, of
which no plan without headroom holds all. A run has `MOST_REQUESTS`, or lasts `MOST_SECONDS`: it
takes about half a second at most, and other arrivals attain the same but for a few tenths of a
percent. Where not even a second can be simulated, the plan says so. `poolpipe simulate` gives the
same numbers for the same load, duration and seed.
"""

import math
from dataclasses import replace
from statistics import NormalDist

from triton_backend.contract.plan import Attained, Plan
from triton_backend.simulator.goodput import ATTAINMENT
from triton_backend.simulator.offered import POISSON, Deterministic
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

LOAD = 0.9  # of the planned rates, which no plan of random arrivals holds to the last request
MOST_SECONDS, LEAST_SECONDS, SEED = 3600.0, 1.0, 0
MOST_REQUESTS = 100_000  # of models, in one run
CHANCE = 0.005  # of other arrivals that attain less; 2.6 standard errors for one model
_AT_EQUAL_GAPS = SimOptions(arrivals=Deterministic())
_UNDER_POISSON = SimOptions(arrivals=POISSON, load_factor=LOAD)


def seconds_of(plan: Plan) -> float:
    """How long a plan is simulated (s, whole ms); 0 where that would take too long."""
    rate_rps = math.fsum(model.throughput_rps for model in plan.models)
    seconds = min(MOST_SECONDS, MOST_REQUESTS / rate_rps) if rate_rps > 0 else 0.0
    return math.floor(seconds * 1e3) / 1e3 if seconds >= LEAST_SECONDS else 0.0


def under_poisson(plan: Plan) -> float | None:
    """The least attainment of a model or application under Poisson arrivals at `LOAD`.

    None where the plan is too large to be simulated.
    """
    return _attained(plan, _UNDER_POISSON)


def surely_attained(plan: Plan) -> dict[str, float] | None:
    """The less of both loads by model and application, of Poisson less some standard errors.

    These are as many as leave `CHANCE` that other arrivals of these rates attain less for any of
    them. None as `under_poisson`. Equal gaps are left out where none attains the other load.
    """
    poisson = _simulated(plan, _UNDER_POISSON)
    if poisson is None:
        return None
    errors = -NormalDist().inv_cdf(CHANCE / len(poisson.attained()))
    least = poisson.attained(errors)
    if max(least.values()) < ATTAINMENT or (even := _simulated(plan, _AT_EQUAL_GAPS)) is None:
        return least
    return {name: min(part, least[name]) for name, part in even.attained().items()}


def with_attainment(plan: Plan) -> Plan:
    """The plan with what it attains; its id stays, because nothing else was decided."""
    attained = Attained(
        even=_attained(plan, _AT_EQUAL_GAPS),
        poisson=under_poisson(plan),
        poisson_load=LOAD,
        duration_s=seconds_of(plan),
        seed=SEED,
    )
    return replace(plan, attained=attained)


def _attained(plan: Plan, how: SimOptions) -> float | None:
    result = _simulated(plan, how)
    return None if result is None else result.least_attainment


def _simulated(plan: Plan, how: SimOptions) -> SimResult | None:
    seconds = seconds_of(plan)
    if not seconds:
        return None
    return simulate(plan, replace(how, duration_s=seconds, seed=SEED, keep_uses=False))


def shortfall(plan: Plan) -> str | None:
    """Attainment that is too little, as a sentence; None where it is enough."""
    if (found := plan.attained) is None:
        return None
    parts: list[str] = []
    if found.even is not None and found.even < ATTAINMENT:
        parts.append(f"of requests at equal gaps at the planned rates {found.even:.1%}")
    if found.poisson is not None and found.poisson < ATTAINMENT:
        load = f"{found.poisson_load:g} of the planned rates"
        parts.append(f"of Poisson arrivals at {load} {found.poisson:.1%}")
    return f"{' and '.join(parts)} are in time" if parts else None
