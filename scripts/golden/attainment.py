"""Plans keep their promises: golden problems by every planner that takes them, simulated.

    .venv/bin/python -m scripts.golden.attainment                # the planners of the product
    .venv/bin/python -m scripts.golden.attainment --comparison   # those of papers beside them
    .venv/bin/python -m scripts.golden.attainment --headroom poisson99   # with that option
    .venv/bin/python -m scripts.golden.attainment --only mig,gpulets [--out FILE]

Every planner plans a problem with its own defaults, not with the options of the golden rows. The
simulator then offers requests at equal gaps at the planned rates, and Poisson arrivals at 0.9 of
them, as long as for the attainment that a plan states, but others: the planner, whose search for
headroom simulates too, has not seen them. Reported by planner: plans; how many answer `EVEN` of
every model's requests in time at equal gaps, and `POISSON_99` of Poisson arrivals; the least and
the mean; requests that were accepted and late; with headroom, the plans that hold less and whose
notes do not say so. A problem that a planner refuses counts for none.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import nan
from statistics import fmean
from typing import Any

from flows.planning.promises.attainment import SEED, seconds_of
from flows.planning.promises.headroom import HEADROOM, NO_HEADROOM, factor_of
from flows.planning.registry import planners, product_planners
from scripts.benchmarks.figures import Figure, add_destinations, exit_code, show, store
from scripts.golden.problems import chosen, named
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.simulator.offered import POISSON, Deterministic
from triton_backend.simulator.results import Outcome, SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

LIMIT_S = 10.0  # of a plan
EVEN, POISSON_99, LOAD = 0.995, 0.99, 0.9
NEAR = 0.005  # other arrivals of the same rates attain so much more or less
_EVEN = SimOptions(arrivals=Deterministic(), seed=SEED + 1, keep_uses=False)
_POISSON = replace(_EVEN, arrivals=POISSON, load_factor=LOAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A plan of a problem: the least attainment of a model under both loads, late answers."""

    problem: str
    planner: str
    even: float
    poisson: float
    late: int
    says_so: bool  # its notes say that no headroom was enough

    @property
    def short(self) -> bool:
        """It holds the promise under one of the loads not."""
        return self.even < EVEN or self.poisson < POISSON_99


def measure(asked: tuple[str, str, str]) -> Kept | None:
    """Plan a problem by a planner and simulate it; None where it takes the problem not.

    Args:
        asked: the problem, the planner, and the headroom to ask for, if any.
    """
    problem, planner, headroom = asked
    made = named(problem).make()
    if not made.suits(planner):
        return None
    own = {HEADROOM.name: headroom} if headroom else {}
    given: dict[str, Any] = {"planner": planner, "own": own, "slo_margin": nan, "previous": None}
    try:
        options = replace(made.options, time_limit_s=LIMIT_S, **given)
        plan = replace(made, options=options).plan()
    except (InfeasibleError, InputError):
        return None
    even, poisson = (
        simulate(plan, replace(how, duration_s=seconds_of(plan))) for how in (_EVEN, _POISSON)
    )
    return Kept(
        problem=problem,
        planner=planner,
        even=even.least_attainment,
        poisson=poisson.least_attainment,
        late=_late(even) + _late(poisson),
        says_so=any(note.startswith("headroom:") for note in plan.certificate.get("notes", ())),
    )


def _late(result: SimResult) -> int:
    return Outcome.of(result.requests).late


def figures_of(planner: str, kept: Sequence[Kept], headroom: str, *, judged: bool) -> list[Figure]:
    """The figures of one planner; those of the product are held to what its plans promise."""
    planner = f"{planner}, headroom {headroom}" if headroom else planner
    even, poisson = [k.even for k in kept], [k.poisson for k in kept]
    least = 1.0 if judged else None
    unsaid = Figure(
        name=f"{planner}: plans that hold less and do not say so",
        value=sum(k.short and not k.says_so for k in kept),
        most=0,
    )
    return [
        Figure(name=f"{planner}: plans", value=len(kept)),
        Figure(
            name=f"{planner}: plans that hold {EVEN:.1%} at equal gaps",
            value=fmean(each >= EVEN for each in even),
            least=least,
            note=f"least {min(even):.2%}",
        ),
        Figure(
            name=f"{planner}: plans that hold {POISSON_99:.0%} of Poisson at {LOAD}",
            value=fmean(each >= POISSON_99 for each in poisson),
            least=least,
            note=f"least {min(poisson):.2%}, mean {fmean(poisson):.2%}",
        ),
        Figure(
            name=f"{planner}: plans that hold {POISSON_99 - NEAR:.1%} of Poisson at {LOAD}",
            value=fmean(each >= POISSON_99 - NEAR for each in poisson),
        ),
        Figure(
            name=f"{planner}: accepted and late",
            value=sum(k.late for k in kept),
            most=0 if judged else None,
        ),
        *([unsaid] if headroom else ()),
    ]


def main() -> int:
    """Plan and simulate; 1 where a planner of the product falls short."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="families or problems, with commas")
    parser.add_argument("--comparison", action="store_true", help="planners of papers, too")
    parser.add_argument("--headroom", default="", help="of planners of the product: that option")
    parser.add_argument("--processes", type=int, default=2, help="plans made at once")
    parser.add_argument("--most", type=int, default=20, help="problems of a family at most")
    add_destinations(parser)
    asked = parser.parse_args()
    try:
        names = [problem.name for problem in chosen(asked.only, asked.most)]
        factor_of(asked.headroom or NO_HEADROOM)
    except InputError as error:
        parser.error(str(error))
    products = [name for name, each in product_planners().items() if each.plan is not None]
    others = [name for name in planners() if name not in product_planners()]
    figures: list[Figure] = []
    with ProcessPoolExecutor(asked.processes) as pool:
        for planner in [*products, *(others if asked.comparison else ())]:
            headroom = asked.headroom if planner in products else ""
            found = pool.map(measure, [(name, planner, headroom) for name in names])
            kept = [each for each in found if each is not None]
            for each in kept:
                if each.short or each.late:
                    print(
                        f"{each.problem:<28} {planner:<16} {each.even:.2%} at equal gaps, "
                        f"{each.poisson:.2%} of Poisson, {each.late} late"
                        f"{', which the plan says' if each.says_so else ''}",
                        file=sys.stderr,
                    )
            if kept:
                own = figures_of(planner, kept, headroom, judged=planner in products)
                show(own)
                figures += own
    store(asked, "attainment", figures, {})
    return exit_code(figures)


if __name__ == "__main__":
    sys.exit(main())
