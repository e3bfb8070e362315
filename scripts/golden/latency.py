"""Answer times over load: plans of golden problems, simulated under Poisson arrivals by policy.

    .venv/bin/python -m scripts.golden.latency [--most 3] [--seconds 10] [--out FILE]

`pool` plans problems of `FAMILIES`. Each plan is offered shares of its rates, by `POLICIES` that
differ in when a batch that is not full is sent. Reported by policy and load: the median answer time
of a model over its SLO, in the mean over models and plans; the attainment of the model that attains
least, in the mean over plans; the share of time in which vGPUs are busy, in the mean over pools.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from statistics import fmean

from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.golden.problems import chosen, named
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.simulator.offered import POISSON
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

FAMILIES = "one-model,two-stages,more-models,classes,percents,scarce,cost,power,in-force"
LOADS = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9)
LIMIT_S = 10.0  # of a plan
BENCHMARK = "latency over load"
POLICIES = {
    "reservation-ahead": "sent where its path is free",
    "reservation": "sent at its last moment",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A plan by a policy at a load; `median` is of the SLO, None where no request was answered."""

    policy: str
    load: float
    median: float | None
    attainment: float
    busy: float


def planned(problem: str) -> Plan | None:
    """The plan of a problem; None where there is none within `LIMIT_S`."""
    made = named(problem).make()
    try:
        return replace(made, options=replace(made.options, time_limit_s=LIMIT_S)).plan()
    except (InfeasibleError, InputError):
        return None


def measured(asked: tuple[Plan, str, float, float]) -> Point:
    """Simulate a plan by a policy at a load for some seconds."""
    plan, policy, load, seconds = asked
    options = SimOptions(
        policy=policy, arrivals=POISSON, load_factor=load, duration_s=seconds, seed=1
    )
    result = simulate(plan, options)
    slo_us = {model.name: model.slo_us for model in plan.models}
    medians = [
        1e3 * model.latency_ms.p50 / slo_us[model.name]
        for model in result.models
        if model.latency_ms.p50 is not None
    ]
    return Point(
        policy=policy,
        load=load,
        median=fmean(medians) if medians else None,
        attainment=result.least_attainment,
        busy=fmean(1 - pool.idle_fraction for pool in result.pools.values()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Means over the plans by a policy at a load, and the worst plan's attainment."""

    policy: str
    load: float
    plans: int
    median: float | None
    attainment: float
    worst: float
    busy: float

    @classmethod
    def of(cls, policy: str, load: float, points: Sequence[Point]) -> "Level":
        """Those of all points of that policy and load."""
        mine = [point for point in points if (point.policy, point.load) == (policy, load)]
        medians = [point.median for point in mine if point.median is not None]
        return cls(
            policy=policy,
            load=load,
            plans=len(mine),
            median=fmean(medians) if medians else None,
            attainment=fmean(point.attainment for point in mine),
            worst=min(point.attainment for point in mine),
            busy=fmean(point.busy for point in mine),
        )

    def figures(self) -> list[Figure]:
        """As the table shows them."""
        where = f"{self.policy} at {self.load:g}"
        return [
            Figure(
                name=f"{where}: median answer time over SLO",
                value=self.median,
                note=f"a batch is {POLICIES[self.policy]}; {self.plans} plans",
            ),
            Figure(
                name=f"{where}: least attainment of a model, mean",
                value=self.attainment,
                note=f"worst plan {self.worst:.4f}",
            ),
            Figure(name=f"{where}: vGPUs busy", value=self.busy),
        ]


def main() -> int:
    """Plan, simulate and tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default=FAMILIES, help="families or problems, with commas")
    parser.add_argument("--most", type=int, default=3, help="problems of a family at most")
    parser.add_argument("--seconds", type=float, default=10.0, help="simulated, of a run")
    parser.add_argument("--processes", type=int, default=2)
    add_destinations(parser)
    asked = parser.parse_args()
    try:
        names = [problem.name for problem in chosen(asked.only, asked.most)]
    except InputError as error:
        parser.error(str(error))
    with ProcessPoolExecutor(asked.processes) as pool:
        plans = [plan for plan in pool.map(planned, names) if plan is not None]
        runs = [
            (plan, policy, load, asked.seconds)
            for plan, policy, load in product(plans, POLICIES, LOADS)
        ]
        points = list(pool.map(measured, runs))
    levels = [Level.of(policy, load, points) for policy, load in product(POLICIES, LOADS)]
    figures = [figure for level in levels for figure in level.figures()]
    return conclude(asked, BENCHMARK, figures, {"levels": [asdict(level) for level in levels]})


if __name__ == "__main__":
    sys.exit(main())
