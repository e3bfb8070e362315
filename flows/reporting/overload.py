"""Names with variants against their load: mean accuracy of answers, share of requests in time.

Simulated under the plan's policies: Poisson arrivals of `LOADS` times the planned rate of these
names, and everything else at its own. Here: the points. Not here: their chart (`charts`).
"""

import math
from dataclasses import dataclass

from triton_backend.contract.plan import Plan
from triton_backend.simulator.offered import POISSON
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

LOADS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
SECONDS, LEAST_SECONDS, SEED = 20.0, 1.0, 0
MOST_REQUESTS = 60_000  # of a plan at its rates, in one run: all runs together take seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """One load, as a factor of the planned rate.

    Attributes:
        accuracy: mean stated accuracy of answers in time; None where there is none.
        in_time: share of the requests.
    """

    load: float
    accuracy: float | None
    in_time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantCurve:
    """A name that several variants answer, at every load.

    Attributes:
        accuracies: as stated, by variant, the model of the name first.
        duration_s: of each simulation.
    """

    name: str
    rate_rps: float
    accuracies: dict[str, float]
    points: tuple[LoadPoint, ...]
    duration_s: float


def variant_curves(plan: Plan) -> tuple[VariantCurve, ...]:
    """A curve of every name with variants in the plan; none of plans too large to simulate."""
    served = {model.name for model in plan.models}
    stated = {
        name: {one.name: one.accuracy or 0.0 for one in own if one.name in served}
        for name, own in plan.workload.variants.items()
        if name in served and plan.own_rate_rps(name) > 0
    }
    stated = {name: own for name, own in stated.items() if len(own) > 1}
    seconds = _seconds(plan)
    if not stated or not seconds:
        return ()
    runs = [
        simulate(
            plan,
            SimOptions(
                arrivals=POISSON,
                rate_factors=dict.fromkeys(stated, load),
                duration_s=seconds,
                seed=SEED,
                keep_uses=False,
            ),
        ).variants
        for load in LOADS
    ]
    return tuple(
        VariantCurve(
            name=name,
            rate_rps=plan.own_rate_rps(name),
            accuracies=accuracies,
            points=tuple(
                LoadPoint(
                    load=load,
                    accuracy=run[name].accuracy,
                    in_time=run[name].outcome.attainment,
                )
                for load, run in zip(LOADS, runs, strict=True)
            ),
            duration_s=seconds,
        )
        for name, accuracies in stated.items()
    )


def _seconds(plan: Plan) -> float:
    """How long each load is simulated (s, whole ms); 0 where that would take too long."""
    rate_rps = math.fsum(model.throughput_rps for model in plan.models)
    seconds = min(SECONDS, MOST_REQUESTS / rate_rps) if rate_rps > 0 else 0.0
    return math.floor(seconds * 1e3) / 1e3 if seconds >= LEAST_SECONDS else 0.0
