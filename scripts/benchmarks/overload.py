"""Overload of a running system: does goodput stay flat, does memory, and does it come back.

    .venv/bin/python scripts/benchmarks/overload.py [--seconds 60] [--out FILE]

A small emulated plan is offered 1, 1.5, 2 and then 3 times its planned rate (the last for
`--seconds`), followed by 0.7 without a pause. Goodput at 3 x must be at least 95 % of the highest
seen, the memory of all processes bounded, and requests that arrive one SLO after the overload's end
must be served as if nothing had been.

Then, at 3 x again, all processes of the system are stopped for 2 s, as a machine that stalls would.
From 3 s after that, goodput must be as high as before: a backlog must not keep itself alive by the
small batches that it leads to.
"""

import argparse
import csv
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from flows.clock import Stopwatch
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.resource_usage import Sampler, resources
from scripts.benchmarks.served import SERVED, Load, Loaded, Served, small_plan
from triton_backend.contract.plan import Plan
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

STEPS = (1.0, 1.5, 2.0)
STEP_SECONDS = 6.0
OVERLOAD = 3.0
AFTER = 0.7
AFTER_SECONDS = 6.0
FLAT = 0.95
RECOVERED = 0.99
OVERLOAD_STAGE_US = 160_000  # 3 x the planned rate is then 270 requests/s, which two cores carry
STALLED_SECONDS = 30.0  # of load around a stall
STALL_SECONDS = 2.0
BACK_AFTER_SECONDS = 3.0


def overload(options: argparse.Namespace) -> dict[str, Any]:
    """Goodput by offered rate, memory, recovery; then the same rate with a stall."""
    plan = small_plan("overload", ("alpha",), stage_us=OVERLOAD_STAGE_US, quick=())
    (model,) = plan.models
    with Served(plan, options.port) as served:
        path = served.write_plan(plan, "plan")
        url = served.state.grpc_url
        goodput = {
            step: mean_goodput(
                Load(url, path, f"--load-factor={step}", f"--duration={STEP_SECONDS}").result(),
                1.0,
                STEP_SECONDS,
            )
            for step in STEPS
        }
        before, sampler = resources(served), Sampler(served)
        sampler.start()
        loaded = surge(served, path, model.throughput_rps, options.seconds).result()
        samples, after = sampler.end(), resources(served)
        back_rps = goodput_after_stall(served, path, model.throughput_rps)
    (row,) = loaded.summary["models"].values()
    goodput[OVERLOAD] = mean_goodput(loaded, 1.0, options.seconds)
    late_part = loaded.records[loaded.records["intended_us"] > options.seconds * 1e6 + model.slo_us]
    return {
        "planned_rps": model.throughput_rps,
        "slo_ms": model.slo_us / 1000,
        "goodput_rps": goodput,
        "simulated_goodput_rps": {
            step: simulated_goodput(plan, step) for step in (*STEPS, OVERLOAD)
        },
        "windows_rps": goodput_by_second(loaded, options.seconds),
        "of_peak": goodput[OVERLOAD] / max(goodput.values()),
        "recovered_attainment": float((late_part["outcome"] == SERVED).mean()),
        "after_stall_of_peak": back_rps / max(goodput.values()),
        "waited_longest_ms": float(loaded.waited_past_deadline_us().max()) / 1000,
        "rss_mb": {
            "before": before["rss_mb"],
            "most": max(s["rss_mb"] for s in samples),
            "after": after["rss_mb"],
        },
        "segments_mb": {"before": before["segments_mb"], "after": after["segments_mb"]},
        "send_lag_ms": loaded.summary["send_lag_ms"],
        **{name: row[name] for name in ("offered", "served", "late", "dropped", "failed")},
        "messages": loaded.summary["messages"],
    }


def goodput_after_stall(served: Served, plan: Path, planned_rps: float) -> float:
    """Goodput of an overload in which all processes stood still, from a while after they go on."""
    load = surge(served, plan, planned_rps, STALLED_SECONDS)
    time.sleep(STALLED_SECONDS / 3)
    processes = served.processes()
    try:
        signal_all(processes, signal.SIGSTOP)
        time.sleep(STALL_SECONDS)
    finally:
        signal_all(processes, signal.SIGCONT)
    over_us = time.monotonic_ns() // 1000
    loaded = load.result()
    back_s = (over_us - loaded.started_us) / 1e6 + BACK_AFTER_SECONDS
    return mean_goodput(loaded, back_s, STALLED_SECONDS)


def signal_all(processes: list[psutil.Process], signal_number: int) -> None:
    """Send a signal to all that still live."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal_number)


def mean_goodput(loaded: Loaded, begin_s: float, end_s: float) -> float:
    """Requests per second that were answered in time, by the instants of answers."""
    served = loaded.records[loaded.records["outcome"] == SERVED]
    within = (served["done_us"] >= begin_s * 1e6) & (served["done_us"] < end_s * 1e6)
    return float(within.sum()) / (end_s - begin_s)


def goodput_by_second(loaded: Loaded, seconds: float) -> list[float]:
    """The same for every second."""
    return [mean_goodput(loaded, begin, begin + 1.0) for begin in range(int(seconds))]


def simulated_goodput(plan: Plan, load_factor: float) -> float:
    """The simulator's share of that load."""
    options = SimOptions(
        policy=None,
        load_factor=load_factor,
        duration_s=20,
        admission=True,
        keep_uses=False,
    )
    result = simulate(plan, options)
    return sum(model.served for model in result.models) / 20


def surge(served: Served, plan: Path, planned_rps: float, seconds: float) -> Load:
    """Offer Poisson arrivals at 3 x the planned rate, then at 0.7 x."""
    rng = np.random.default_rng(3)
    parts = ((0.0, seconds, OVERLOAD), (seconds, AFTER_SECONDS, AFTER))
    instants = np.concatenate(
        [
            begin + np.sort(rng.uniform(0, length, rng.poisson(planned_rps * factor * length)))
            for begin, length, factor in parts
        ]
    )
    trace = served.root / "surge.csv"
    with trace.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["arrival_s"])
        writer.writerows([f"{instant:.6f}"] for instant in instants)
    return Load(
        served.state.grpc_url,
        plan,
        f"--arrivals={trace}",
        f"--duration={seconds + AFTER_SECONDS}",
    )


def figures_of(row: dict[str, Any]) -> list[Figure]:
    """Goodput and memory under overload, and the time after it."""
    figures = [
        Figure(
            name=f"goodput at {step:g} x the planned rate",
            value=rps,
            unit="1/s",
            note=f"simulated {row['simulated_goodput_rps'][step]:.1f}",
        )
        for step, rps in row["goodput_rps"].items()
    ]
    memory = row["rss_mb"]
    return [
        *figures,
        Figure(name=f"goodput at {OVERLOAD:g} x, of the peak", value=row["of_peak"], least=FLAT),
        Figure(
            name="attainment from one SLO after overload",
            value=row["recovered_attainment"],
            least=RECOVERED,
        ),
        Figure(
            name=f"goodput from {BACK_AFTER_SECONDS:g} s after a stall of {STALL_SECONDS:g} s, of "
            "the peak",
            value=row["after_stall_of_peak"],
            least=FLAT,
        ),
        Figure(name="memory before overload", value=memory["before"], unit="MB"),
        Figure(name="memory, most", value=memory["most"], unit="MB"),
        Figure(name="memory after overload", value=memory["after"], unit="MB"),
        Figure(name="waited past deadline, longest", value=row["waited_longest_ms"], unit="ms"),
        Figure(name="generator late, p99", value=row["send_lag_ms"]["p99"], unit="ms"),
    ]


def main() -> int:
    """Run, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--port", type=int, default=18_550)
    add_destinations(parser)
    options = parser.parse_args()
    watch = Stopwatch()
    result = overload(options)
    figures = figures_of(result)
    return conclude(options, "overload", figures, {**result, "wall_seconds": watch.seconds()})


if __name__ == "__main__":
    sys.exit(main())
