"""Plans made for latencies a fifth above the profile: golden problems, simulated when that is so.

    .venv/bin/python -m scripts.golden.slower [--only mig,gpulets] [--most 4] [--out FILE]

Every planner of the product plans a problem twice with its own defaults: as it is, and robust, with
`--profile-factor 1.2`. The simulator then runs every stage at 1.2 times its profile, of which the
scheduler of the first plan does not know. Requests come at equal gaps. Kept is the greatest part of
a plan's own promised rates, in steps of 0.05 up to 1, at which every model answers 99 % of its
requests in time. The price is that of the plan's objective: promised rates of the first plan over
those of the robust one, or cost of the robust one over the cost of the first.

A problem that a planner refuses counts for none; one that has no robust plan (its SLOs are too
tight, or the GPUs too few for its rates) is counted apart.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import nan
from statistics import fmean, geometric_mean, median
from typing import Any

from flows.planning.registry import product_planners
from scripts.benchmarks.figures import Figure, add_destinations, exit_code, show, store
from scripts.golden.problems import chosen, named
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.simulator.goodput import find_goodput
from triton_backend.simulator.offered import Deterministic
from triton_backend.simulator.scenario import SimOptions

LIMIT_S = 10.0  # of a plan
FACTOR = 1.2
KEPT = 0.95  # of the promised rates
_EVEN = SimOptions(arrivals=Deterministic(), duration_s=10.0, seed=0, keep_uses=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One problem by one planner: parts kept by the usual and the robust plan, and the price."""

    problem: str
    usual: float
    robust: float
    price: float


def measure(asked: tuple[str, str]) -> Pair | str | None:
    """Plan twice and simulate; why there is no robust plan; None where there is no plan at all."""
    problem, planner = asked
    made = named(problem).make()
    if not made.suits(planner):
        return None
    own: dict[str, Any] = {"planner": planner, "own": {}, "slo_margin": nan, "previous": None}

    def planned(factor: float) -> Plan:
        options = replace(made.options, time_limit_s=LIMIT_S, profile_factor=factor, **own)
        return replace(made, options=options).plan()

    try:
        usual = planned(1.0)
    except (InfeasibleError, InputError):
        return None
    try:
        robust = planned(FACTOR)
    except (InfeasibleError, InputError) as error:
        return str(error)
    before, after = usual.objective.value, robust.objective.value
    return Pair(
        problem=problem,
        usual=find_goodput(usual, replace(_EVEN, latency_factor=FACTOR)).load_factor,
        robust=find_goodput(robust, _EVEN).load_factor,  # expects latencies times the factor
        price=before / after if usual.objective.name == "throughput" else after / before,
    )


def figures_of(planner: str, pairs: Sequence[Pair], refused: int) -> list[Figure]:
    """The figures of one planner."""
    robust, usual = [pair.robust for pair in pairs], [pair.usual for pair in pairs]
    prices = [pair.price for pair in pairs]
    return [
        Figure(
            name=f"{planner}: robust plans", value=len(pairs), note=f"{refused} problems have none"
        ),
        Figure(
            name=f"{planner}: part of the promised rates kept at latencies x {FACTOR}, worst",
            value=min(robust),
            least=KEPT,
            note=f"median {median(robust):.2f}; usual plans {median(usual):.2f}, "
            f"worst {min(usual):.2f}",
        ),
        Figure(
            name=f"{planner}: robust plans that keep {KEPT:.0%}",
            value=fmean(each >= KEPT for each in robust),
            least=1.0,
            note=f"usual plans {fmean(each >= KEPT for each in usual):.0%}",
        ),
        Figure(
            name=f"{planner}: price of a robust plan, geometric mean",
            value=geometric_mean(prices),
            note=f"worst {max(prices):.2f}",
        ),
    ]


def main() -> int:
    """Plan and simulate; 1 where a robust plan falls short."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="families or problems, with commas")
    parser.add_argument("--planners", default="", help="names, with commas")
    parser.add_argument("--processes", type=int, default=2, help="problems at once")
    parser.add_argument("--most", type=int, default=4, help="problems of a family at most")
    add_destinations(parser)
    asked = parser.parse_args()
    try:
        names = [problem.name for problem in chosen(asked.only, asked.most)]
    except InputError as error:
        parser.error(str(error))
    products = [
        name
        for name, each in product_planners().items()
        if each.plan is not None and (not asked.planners or name in asked.planners.split(","))
    ]
    figures: list[Figure] = []
    rows: dict[str, Any] = {}
    with ProcessPoolExecutor(asked.processes) as pool:
        for planner in products:
            found = list(pool.map(measure, [(name, planner) for name in names]))
            pairs = [each for each in found if isinstance(each, Pair)]
            for each in pairs:
                if each.robust < KEPT:
                    print(f"{planner:<16} {each}", file=sys.stderr)
            if pairs:
                own = figures_of(planner, pairs, sum(isinstance(each, str) for each in found))
                show(own)
                figures += own
                rows[planner] = [
                    [pair.problem, pair.usual, pair.robust, pair.price] for pair in pairs
                ]
    store(asked, "slower", figures, {"rows": rows})
    return exit_code(figures)


if __name__ == "__main__":
    sys.exit(main())
