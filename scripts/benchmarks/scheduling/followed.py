"""Rates that rise to three times within a minute and fall again, followed by `autoscale`.

Behind a real Triton with emulated GPUs, once with an application of two modules, once with a model
of two entries. Their rates are as planned at first, three times that from a minute later on, and at
the end as planned again. `autoscale` watches them and changes plan in place.

    .venv/bin/python scripts/benchmarks/scheduling/followed.py [--only application,entries]
        [--period 20] [--rise-seconds 60] [--out FILE]

Lost is every request that failed or was never answered. Attainment is that of all requests but
those due in the first half minute of the rise. The fall is planned for as soon as a plan is in
force for half of what the highest rates need; counted are the periods that began after the fall.
"""

import argparse
import csv
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flows.clock import Stopwatch
from flows.operations.replanning.autoscale import Follower, follow_live
from flows.operations.replanning.demands import requests_of
from flows.operations.replanning.planner import cheapest_planner
from flows.operations.replanning.rows import Measured, counted_rows
from flows.planning import PlanOptions, make_plan
from flows.release.rollout.change import change_plan
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.served import FAILED, SERVED, Load, Loaded, Served
from tests.flows.planning.small import cluster, profile
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import US_PER_S, us_to_s
from triton_backend.contract.workload import Workload
from triton_backend.runtimes.stage_tensors import complete_tensors
from triton_backend.scheduler.policies.demand import SMALL_HEADROOM, planned_rates

TIMES, GRACE_S, ATTAINED, PERIODS = 3.0, 30.0, 99.0, 2
DOWN = TIMES * SMALL_HEADROOM / 2  # times the first rates: half of what the highest need
WINDOW_S = 10.0
BLOCK_US, SLOWER = 20_000.0, 1.5
RATE_RPS = 8
WORKLOADS: Mapping[str, Mapping[str, Any]] = {
    "application": {
        "applications": [
            {
                "name": "traffic",
                "slo_ms": 1500,
                "rate_rps": RATE_RPS,
                "modules": [
                    {"name": "detect", "model": "net"},
                    {
                        "name": "cars",
                        "model": "sub",
                        "after": ["detect"],
                        "rows_per_request": 0.5,
                        "max_rows": 4,
                    },
                ],
            }
        ]
    },
    "entries": {
        "models": [
            {
                "name": "net",
                "slo_ms": 1500,
                "entries": [
                    {"name": "whole", "block": 0, "budget_ms": 1500, "rate_rps": RATE_RPS / 2},
                    {"name": "tails", "block": 1, "budget_ms": 1200, "rate_rps": RATE_RPS / 2},
                ],
            }
        ]
    },
}


class Rolled:
    """The served system as `autoscale` sees it: counters, seconds, changes of plan in place.

    Attributes:
        plans: those in force, and since when (µs).
        looks_us: ends of periods.
    """

    def __init__(self, served: Served) -> None:
        self._served, self._watch = served, Stopwatch()
        self.plans = [(now_us(), served.plan)]
        self.looks_us: list[int] = []

    def offered(self) -> Mapping[str, int]:
        """Requests so far, by name."""
        return requests_of(self._counters())

    def rows(self) -> Measured:
        """Rows of modules so far."""
        return counted_rows(self._counters())

    def _counters(self) -> Mapping[str, Mapping[str, int]]:
        return self._served.state.control("status")["counters"]

    def wait(self, seconds: float) -> float:
        """Wait; seconds since the last time."""
        time.sleep(seconds)
        return self._watch.restart()

    def in_force(self, known: Plan) -> Plan:
        """It does not change otherwise; asked for at the end of every period."""
        self.looks_us.append(now_us())
        return known

    def bring(self, plan: Plan) -> str:
        """Change plans with work in flight."""
        change_plan(self._served.folder, complete_tensors(plan))
        self.plans.append((now_us(), plan))
        return "in force"

    def gpus(self, began_us: int) -> list[tuple[float, int]]:
        """Of every plan, and since when, in seconds from an instant."""
        return [(us_to_s(at - began_us), sum(p.gpus_used.values())) for at, p in self.plans]

    def mean_gpus(self, seconds: float) -> float:
        """Over so many seconds."""
        gpus = self.gpus(self.plans[0][0])
        ends = [at for at, _ in gpus[1:]] + [seconds]
        spans = zip(gpus, ends, strict=True)
        return sum(n * (max(at, end) - at) for (at, n), end in spans) / seconds


def now_us() -> int:
    """The clock of the load generator's records."""
    return time.monotonic_ns() // 1000


def shape(options: argparse.Namespace) -> list[float]:
    """Times the planned rates, by the second."""
    rise = np.linspace(1.0, TIMES, round(options.rise_seconds) + 2)[1:-1].tolist()
    low, high = round(options.low_seconds), round(options.high_seconds)
    return [1.0] * low + rise + [TIMES] * high + [1.0] * round(options.fall_seconds)


def write_counts(path: Path, name: str, times: Sequence[float]) -> Path:
    """A table of counts for the load generator."""
    with path.open("w", newline="") as lines:
        csv.writer(lines).writerows([("second", name), *enumerate(times)])
    return path


def followed(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """One run."""
    workload = Workload.from_dict(WORKLOADS[kind])
    gpus = cluster(4, 4, fast_hourly_cost=2.0, slow_hourly_cost=1.5)
    blocks_us = (BLOCK_US,) * 3
    profiles = {name: profile(name, blocks_us, SLOWER) for name in ("net", "sub")}
    how = PlanOptions(planner="pool", objective="cost")
    first = make_plan(profiles, gpus, workload, how)
    planner = cheapest_planner(profiles, gpus, workload, how, in_force=first)
    asked, times = planned_rates(first), shape(options)
    (name,) = [one.name for one in first.applications] or [one.name for one in first.models]
    with Served(complete_tensors(first), options.port) as served:
        rolled = Rolled(served)
        load = Load(
            served.state.grpc_url,
            served.write_plan(served.plan, "plan"),
            f"--arrivals={write_counts(served.root / 'counts.csv', name, times)}",
            "--trace-interval=1",
            f"--rate={sum(asked.values()) * float(np.mean(times))}",
            f"--duration={len(times)}",
            "--give-up-s=2",
        )
        follow_live(
            Follower.of(planner, first),
            rolled,
            options.period,
            lambda text: print(text, file=sys.stderr, flush=True),
            follower_of=lambda plan: Follower.of(planner, plan),
            periods=math.ceil(len(times) / options.period),
        )
        return {"kind": kind, **outcome_of(load.result(), rolled, options)}


def outcome_of(loaded: Loaded, rolled: Rolled, options: argparse.Namespace) -> dict[str, Any]:
    """Requests and how they ended, and plans."""
    due_s = loaded.records["intended_us"] / US_PER_S
    fall_s = options.low_seconds + options.rise_seconds + options.high_seconds
    spared = (due_s >= options.low_seconds) & (due_s < options.low_seconds + GRACE_S)
    served = loaded.records["outcome"] == SERVED
    looks_s = [us_to_s(at - loaded.started_us) for at in rolled.looks_us]
    known = planned_rates(rolled.plans[0][1])
    planned = [
        (us_to_s(at - loaded.started_us), max(planned_rates(plan)[n] / known[n] for n in known))
        for at, plan in rolled.plans
    ]
    down_s = min((at for at, rise in planned if at > fall_s and rise < DOWN), default=None)
    return {
        "offered": len(due_s),
        "lost": int((loaded.records["outcome"] == FAILED).sum()),
        "attained": 100 * float(served[~spared].mean()),
        "attained_spared": 100 * float(served[spared].mean()),
        "changes": len(rolled.plans) - 1,
        "planned": planned,
        "periods": None if down_s is None else sum(fall_s < at < down_s for at in looks_s) - 1,
        "gpus": rolled.gpus(loaded.started_us),
        "windows": loaded.windows(WINDOW_S),
        "load_average": os.getloadavg()[0],
    }


def figures_of(row: Mapping[str, Any]) -> list[Figure]:
    """Figures of one run."""
    kind, gpus = row["kind"], [count for _, count in row["gpus"]]
    note = f"{row['changes']} changes, GPUs {', '.join(map(str, gpus))}"
    note += f", machine load {row['load_average']:.1f}"
    return [
        Figure(name=f"{kind}: requests lost", value=row["lost"], most=0, note=note),
        Figure(
            name=f"{kind}: attained outside the first {GRACE_S:g} s",
            value=row["attained"],
            unit="%",
            least=ATTAINED,
            note=f"of {row['offered']} requests; within them {row['attained_spared']:.2f} %",
        ),
        Figure(
            name=f"{kind}: highest planned rate over the first",
            value=max(rise for _, rise in row["planned"]),
            least=TIMES,
        ),
        Figure(
            name=f"{kind}: whole periods from the fall until it is planned for",
            value=row["periods"],
            most=PERIODS,
        ),
    ]


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="application,entries")
    parser.add_argument("--period", type=float, default=20.0)
    parser.add_argument("--low-seconds", type=float, default=60.0)
    parser.add_argument("--rise-seconds", type=float, default=60.0)
    parser.add_argument("--high-seconds", type=float, default=60.0)
    parser.add_argument("--fall-seconds", type=float, default=100.0)
    parser.add_argument("--port", type=int, default=21_600)
    add_destinations(parser)
    options = parser.parse_args()
    rows = [followed(kind, options) for kind in options.only.split(",")]
    figures = [figure for row in rows for figure in figures_of(row)]
    return conclude(options, "followed", figures, {"rows": rows})


if __name__ == "__main__":
    sys.exit(main())
