"""Benchmark of low requests: what they get of what others leave, and what these lose by them.

    .venv/bin/python scripts/benchmarks/scheduling/low_requests.py [--seconds 60] [--seeds 3]
        [--out FILE.json] [--warehouse FILE]

Every plan is offered even and Poisson arrivals at 0.4, 0.6 and 0.8 of its planned rates, and low
requests on top at 1.5 times what is left: the highest load factor of which 99 % of every model are
in time, in steps of 0.02, less the load of the others. A case counts where the others attain
99.5 % alone. Cases with noise (a stage's time varies by 10 %) stand apart.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from scripts.benchmarks.figures import Figure, add_destinations, conclude
from tests.fakes.plans import Own, make_plan
from triton_backend.contract.plan import Plan
from triton_backend.simulator.offered import Deterministic, Gamma
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

LOADS = (0.4, 0.6, 0.8)
STEP, MOST_LOAD = 0.02, 1.2
OVER = 1.5  # of what is left
ALONE, GOODPUT = 0.995, 0.99
QUICKSTART = Path(__file__).parents[2] / "figures/quickstart_plan.json"
ARRIVALS = {"even": Deterministic(), "poisson": Gamma()}


def _batches(beta_us: int, alpha_us: int, batch: int) -> tuple[int, ...]:
    return tuple(beta_us + alpha_us * n for n in range(1, batch + 1))


def plans() -> dict[str, Plan]:
    """By name."""
    first = Own(latency_us=(20_000,), gpus=3, bytes_out=100_000)
    wide = Own(latency_us=_batches(10_000, 2_000, 8), gpus=40)
    return {
        "one vGPU": make_plan([[Own(latency_us=(10_000,))]]),
        "8 vGPUs": make_plan([[Own(latency_us=(30_000,), gpus=8)]]),
        "batches of 4": make_plan([[Own(latency_us=_batches(10_000, 5_000, 4), gpus=4)]]),
        "two stages": make_plan([[first, Own(latency_us=(25_000,), gpus=4)]]),
        "two models, 60 vGPUs": make_plan(
            [[wide]], [[Own(latency_us=(15_000,), gpus=20)]], slo_us=80_000
        ),
        "quickstart": Plan.from_dict(json.loads(QUICKSTART.read_text())),
    }


class Case(NamedTuple):
    """One plan, process, load, seed and noise, and what came of it."""

    plan: str
    arrivals: str
    noise: float
    load: float
    seed: int
    left: float
    alone: float
    high: float
    low_of_left: float


def carried(plan: Plan, options: SimOptions) -> float:
    """The highest load factor below the first two in a row of which less than 99 % are in time."""
    best = load = LOADS[0] - STEP
    while load - best < 2 * STEP and load < MOST_LOAD:
        load = round(load + STEP, 2)
        if simulate(plan, replace(options, load_factor=load)).least_attainment >= GOODPUT:
            best = load
    return best


def measure(name: str, plan: Plan, arrivals: str, noise: float, options: SimOptions) -> list[Case]:
    """Every load of a plan that leaves something."""
    found: list[Case] = []
    most = carried(plan, options)
    for load in LOADS:
        left = most - load
        if left <= 0:
            continue
        high = replace(options, load_factor=load)
        alone = simulate(plan, high)
        both = simulate(plan, replace(high, low_load_factor=OVER * left))
        planned = sum(model.throughput_rps for model in plan.models) * options.duration_s
        served = sum(model.low.served for model in both.models if model.low)
        shares = alone.attainment, both.attainment, served / planned / left
        found.append(Case(name, arrivals, noise, load, options.seed, left, *shares))
    return found


def figures(cases: list[Case]) -> list[Figure]:
    """The worst of all cases, with and without noise."""
    out: list[Figure] = []
    for noise in sorted({case.noise for case in cases}):
        mine = [c for c in cases if c.noise == noise and c.alone >= ALONE]
        after = ", noise" if noise else ""
        bounds = (None, None, None) if noise else (99.5, 0.2, 0.9)
        worst = min(mine, key=lambda c: c.high)
        lost = max(mine, key=lambda c: c.alone - c.high)
        least = min(mine, key=lambda c: c.low_of_left)
        for what, case, value, unit, (low, most) in (
            ("others attain, least", worst, 100 * worst.high, "%", (bounds[0], None)),
            (
                "others lose, most",
                lost,
                100 * (lost.alone - lost.high),
                "points",
                (None, bounds[1]),
            ),
            ("low served of what is left, least", least, least.low_of_left, "", (bounds[2], None)),
        ):
            note = f"{case.plan}, {case.arrivals}, load {case.load}; of {len(mine)} cases"
            out.append(
                Figure(name=what + after, value=value, unit=unit, least=low, most=most, note=note)
            )
    return out


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, default=3)
    add_destinations(parser)
    asked = parser.parse_args()
    cases: list[Case] = []
    for name, plan in plans().items():
        for arrivals, process in ARRIVALS.items():
            for noise in (0.0, 0.1):
                for seed in range(asked.seeds if arrivals == "poisson" or noise else 1):
                    options = SimOptions(
                        arrivals=process,
                        duration_s=asked.seconds,
                        seed=seed,
                        latency_noise_cv=noise,
                        keep_uses=False,
                    )
                    cases += measure(name, plan, arrivals, noise, options)
    return conclude(asked, "low_requests", figures(cases), {"cases": [list(c) for c in cases]})


if __name__ == "__main__":
    sys.exit(main())
