"""Applications of six shapes behind a real Triton server, measured beside the simulator.

A chain, a diamond, a fan-out whose rows are drawn from 0 to the most, three sources that join, a
fan-out with an optional branch, and a chain over two nodes with links of 1 Gbit/s (emulated). Each
is served alone with emulated models at shares of the rate that its vGPUs serve in planned batches.
The simulator runs the same arrivals, with rows drawn again a few times. Every answer is compared
with the models run one after the other, those without rows too; what passed the front is counted.

    .venv/bin/python scripts/benchmarks/applications/attainment.py [--shapes chain …] [--seconds 20]
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.benchmarks.applications.plans import (
    REQUESTS,
    SHAPES,
    Requests,
    guarded,
    requests_of,
    shape_plan,
)
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.served import LATE, SERVED, Load, Loaded, Served
from triton_backend.contract.arrivals import poisson_us
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import s_to_us
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.simulator.offered import Instant
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

LOADS = (0.5, 0.8, 0.95)
TARGET_POINTS = 2.0
DRAWS = 8  # of rows, in the simulator


def points(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every shape at every load."""
    for name in options.shapes:
        plan = shape_plan(name, options.stretch)
        with Served(plan, options.port) as served:
            requests = requests_of(served.folder, name)
            settings = ServeSettings.read(served.folder / "settings.json")
            for number, load_factor in enumerate(options.loads):
                at_us = arrivals(plan, load_factor, options.seconds, options.seed + number)
                row = {"shape": name, "load_factor": load_factor}
                row |= measured(served, name, requests, at_us, options.seconds)
                row |= simulated(guarded(plan, settings), name, at_us, options.seconds)
                row["load_average"] = os.getloadavg()[0]
                print(row, file=sys.stderr, flush=True)
                yield row


def arrivals(plan: Plan, load_factor: float, seconds: float, seed: int) -> NDArray[np.int64]:
    """Poisson instants (µs) of jobs."""
    rate_rps = (plan.applications[0].application.rate_rps or 0.0) * load_factor
    return poisson_us(rate_rps, s_to_us(seconds), np.random.default_rng(seed))


def trace(folder: Path, at_us: NDArray[np.int64]) -> Path:
    """The same as a file for the load generator."""
    path = folder / "arrivals.csv"
    path.write_text("arrival_s\n" + "".join(f"{at / 1e6:.6f}\n" for at in at_us.tolist()))
    return path


def measured(
    served: Served, name: str, requests: Requests, at_us: NDArray[np.int64], seconds: float
) -> dict[str, Any]:
    """The running system's answers, and those that passed the front."""
    before = front_bytes(served)
    loaded = Load(
        served.state.grpc_url,
        served.write_plan(served.plan, "plan"),
        f"--arrivals={trace(served.root, at_us)}",
        f"--duration={seconds}",
        f"--check={name}={requests.path}",
        "--give-up-s=1",
    ).result()
    row = loaded.summary["models"][name]
    passed = front_bytes(served) - before
    return {
        "attainment": loaded.attainment,
        "p50_ms": row["latency_ms"]["p50"],
        **{key: row[key] for key in ("offered", "late", "dropped", "failed")},
        **row["checked"],
        **rows_of(loaded, requests),
        "bytes_in": passed["in"] - len(loaded.records) * requests.request_bytes,
        "bytes_out": passed["out"] - int(requests.answer_bytes[answered(loaded)].sum()),
        "in_hand": jobs_and_slots(served),
        "messages": loaded.summary["messages"],
    }


def answered(loaded: Loaded) -> NDArray[np.int64]:
    """Which of the file's requests those were that had an answer: they are sent in turn."""
    had = np.isin(loaded.records["outcome"], [SERVED, LATE])
    return np.flatnonzero(had) % REQUESTS


def rows_of(loaded: Loaded, requests: Requests) -> dict[str, int]:
    """Jobs with a module that had no rows: asked, and answered."""
    none = np.zeros(len(requests.answer_bytes), dtype=bool)
    for rows in requests.rows.values():
        none |= rows == 0
    asked = np.arange(len(loaded.records)) % len(none)
    return {
        "no_rows": int(none[asked].sum()),
        "no_rows_answered": int(none[answered(loaded)].sum()),
    }


def front_bytes(served: Served) -> Counter[str]:
    """Bytes of tensors that fronts of applications wrote and read, by direction."""
    found: Counter[str] = Counter()
    for labels, value in served.metric("poolpipe_front_bytes_total").items():
        found["in" if 'direction="in"' in labels else "out"] += int(value)
    return found


def jobs_and_slots(served: Served) -> int:
    """Jobs in hand and slots for retained outputs taken, some time after the load."""
    names = ("poolpipe_jobs", "poolpipe_retained_output_slots")
    return int(sum(sum(served.metric(name).values()) for name in names))


def simulated(plan: Plan, name: str, at_us: NDArray[np.int64], seconds: float) -> dict[str, float]:
    """Simulated results of the same arrivals, averaged over draws of rows."""
    results = [
        simulate(
            plan,
            SimOptions(
                arrivals=Instant(by_model={name: at_us}),
                duration_s=seconds,
                admission=True,
                keep_uses=False,
                seed=seed,
            ),
        ).applications[name]
        for seed in range(DRAWS)
    ]
    shares = [one.outcome.attainment for one in results]
    return {
        "simulated": float(np.mean(shares)),
        "simulated_least": min(shares),
        "simulated_p50_ms": float(np.mean([one.latency_ms.p50 or 0.0 for one in results])),
    }


def figures_of(rows: list[dict[str, Any]]) -> list[Figure]:
    """How far each point lies from the simulator's, and what must be nothing."""
    found: list[Figure] = []
    for row in rows:
        where = f"{row['shape']} at load {row['load_factor']}"
        note = (
            f"measured {row['attainment']:.2%}, p50 {row['p50_ms']:.0f} ms, simulated"
            f" {row['simulated_p50_ms']:.0f} ms, machine load {row['load_average']:.1f}"
        )
        found.append(
            Figure(
                name=f"{where}: attainment less simulated",
                value=100 * (row["attainment"] - row["simulated"]),
                unit="points",
                least=-TARGET_POINTS,
                most=TARGET_POINTS,
                note=note,
            )
        )
    total: Counter[str] = Counter()
    for row in rows:
        total.update({key: value for key, value in row.items() if isinstance(value, int)})
    compared = f"of {total['responses']:,} compared, {total['without_optional']} without a branch"
    return [
        *found,
        Figure(name="wrong answers", value=total["wrong"], most=0, note=compared),
        Figure(name="failed requests", value=total["failed"], most=0),
        Figure(
            name="jobs without rows of a module that were answered",
            value=total["no_rows_answered"],
            least=total["no_rows"] - total["dropped"],
            note=f"of {total['no_rows']} asked",
        ),
        Figure(
            name="bytes through fronts beside requests",
            value=max((row["bytes_in"] for row in rows), default=0),
            unit="B",
            most=0,
        ),
        Figure(
            name="bytes through fronts beside answers",
            value=max((row["bytes_out"] for row in rows), default=0),
            unit="B",
            most=0,
            note="below 0: answers without an optional branch",
        ),
        Figure(name="jobs and slots of retained held after a load", value=total["in_hand"], most=0),
    ]


def main() -> int:
    """Run, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--shapes", nargs="+", choices=tuple(SHAPES), default=list(SHAPES))
    add("--loads", nargs="+", type=float, default=list(LOADS))
    add("--seconds", type=float, default=20.0)
    add(
        "--stretch", type=float, default=1.0, help="slow motion, so that a busy machine counts less"
    )
    add("--seed", type=int, default=1)
    add("--port", type=int, default=18_720)
    add_destinations(parser)
    options = parser.parse_args()
    rows = list(points(options))
    figures = figures_of(rows)
    return conclude(options, "applications", figures, {"rows": rows})


if __name__ == "__main__":
    sys.exit(main())
