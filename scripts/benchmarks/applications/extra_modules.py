"""The cost of one more module: chains of 1, 2 and 4 beside one model of the same compute.

All are served at once by a real Triton, asked at random instants at a low rate, one request to a
batch, so that what differs is the way alone: front, scheduler, retained outputs and workers of
every module.

    .venv/bin/python scripts/benchmarks/applications/extra_modules.py [--seconds 60] [--out FILE]
"""

import argparse
import os
import sys
from typing import Any

from scripts.benchmarks.applications.plans import Shape, application, plan_of
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.served import Load, Served
from tests.fakes.applications import hand_module
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.settings import ServeOptions

COMPUTE_US = 24_000
MODULES = (1, 2, 4)
RATE_RPS = 4.0
TARGET_MS = 1.0  # for every module more
ALONE = "alone"


def chains_plan() -> Plan:
    """Chains of modules that take as long together as the model that stands alone."""
    latency_us = {ALONE: (COMPUTE_US,)}
    applications = []
    for count in MODULES:
        names = [f"m{count}_{number}" for number in range(count)]
        modules = tuple(
            hand_module(name, name, *names[number - 1 : number] if number else ())
            for number, name in enumerate(names)
        )
        latency_us |= dict.fromkeys(names, (COMPUTE_US // count,))
        shape = Shape(modules, {"output": f"{names[-1]}.output"})
        applications.append(application(f"chain{count}", shape, rate_rps=RATE_RPS))
    return plan_of(*applications, alone_rps={ALONE: RATE_RPS}, latency_us=latency_us)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Latencies (ms) of every chain and of the model alone, from one load."""
    plan = chains_plan()
    with Served(plan, options.port, ServeOptions(emulate_links=False)) as served:
        loaded = Load(
            served.state.grpc_url,
            served.write_plan(plan, "plan"),
            f"--duration={options.seconds}",
            f"--seed={options.seed}",
        ).result()
    models = loaded.summary["models"]
    return {
        "p50_ms": {name: row["latency_ms"]["p50"] for name, row in models.items()},
        "p99_ms": {name: row["latency_ms"]["p99"] for name, row in models.items()},
        "offered": {name: row["offered"] for name, row in models.items()},
        "not_served": sum(row["offered"] - row["served"] for row in models.values()),
        "load_average": os.getloadavg()[0],
    }


def figures_of(row: dict[str, Any]) -> list[Figure]:
    """Milliseconds for every module that a chain has more than one model."""
    alone_ms, note = row["p50_ms"][ALONE], f"machine load {row['load_average']:.1f}"
    found = [Figure(name="p50 of one model", value=alone_ms, unit="ms", note=note)]
    for count in MODULES:
        p50_ms = row["p50_ms"][f"chain{count}"]
        more = max(count - 1, 1)
        found.append(
            Figure(
                name=f"p50 of a chain of {count} less that, for each module more",
                value=(p50_ms - alone_ms) / more,
                unit="ms",
                most=TARGET_MS,
                note=f"p50 {p50_ms:.2f} ms",
            )
        )
    found.append(Figure(name="requests not served in time", value=row["not_served"]))
    return found


def main() -> int:
    """Run, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=18_740)
    add_destinations(parser)
    options = parser.parse_args()
    row = measured(options)
    figures = figures_of(row)
    return conclude(options, "extra modules", figures, row)


if __name__ == "__main__":
    sys.exit(main())
