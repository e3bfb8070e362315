"""Benchmark of variants: what a name serves beyond its planned rate, with a cheaper one or not.

    .venv/bin/python scripts/benchmarks/scheduling/variants.py [--seconds 30] [--seeds 3]
        [--out FILE.json] [--warehouse FILE]

One model on 4, 8 and 16 GPUs (latency 2 ms and 1 ms per request of a batch, SLO 100 ms), planned by
`subclusters`, is offered Poisson arrivals at 0.5 to 4 times its planned rate: alone, and with a
variant of half its latencies. Accuracies are stated as 0.8 and 0.7.
"""

import argparse
import sys

from scripts.benchmarks.figures import Figure, add_destinations, conclude
from tests.fakes.variants import NAME, plain_plan, variant_plan
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

GPUS = (4, 8, 16)
LOADS = (0.5, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
OVERLOAD, TARGET = 3.0, 1.8


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seeds", type=int, default=3)
    add_destinations(parser)
    asked = parser.parse_args()
    rows: list[tuple[int, int, float, float, float, float]] = []
    for gpus in GPUS:
        alone, both = plain_plan(gpus), variant_plan(gpus)
        for seed in range(asked.seeds):
            for load in LOADS:
                options = SimOptions(
                    load_factor=load, duration_s=asked.seconds, seed=seed, keep_uses=False
                )
                without = simulate(alone, options).models[0]
                name = simulate(both, options).variants[NAME]
                times = name.outcome.served / without.served
                rows.append((gpus, seed, load, times, name.outcome.attainment, name.accuracy or 0))
    figures: list[Figure] = []
    worst = min((row for row in rows if row[2] == OVERLOAD), key=lambda row: row[3])
    figures.append(
        Figure(
            name="served at 3 times the load, times of without, least",
            value=worst[3],
            unit="",
            least=TARGET,
            most=None,
            note=f"{worst[0]} GPUs, seed {worst[1]}; of {len(GPUS) * asked.seeds} cases",
        )
    )
    for load in LOADS:
        mine = [row for row in rows if row[2] == load]
        note = f"in time, least {min(row[4] for row in mine):.4f}"
        figures.append(
            Figure(
                name=f"mean accuracy at load {load:g}, least",
                value=min(row[5] for row in mine),
                unit="",
                least=None,
                most=None,
                note=note,
            )
        )
    return conclude(asked, "variants", figures, {"cases": [list(row) for row in rows]})


if __name__ == "__main__":
    sys.exit(main())
