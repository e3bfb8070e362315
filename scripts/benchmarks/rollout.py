"""A rollout under load: how long nothing is dispatched, what is lost, what a minute attains.

Two emulated models of two stages are offered load factor 0.8 with checked answers on the real
Triton; in the middle of the run another plan takes over, in which one model is cut elsewhere and the
other's workers go on. `--flush` lets everything in flight end first.

    .venv/bin/python scripts/benchmarks/rollout.py [--seconds 60] [--load-factor 0.8] [--out FILE]

Lost is every request that failed or was never answered. Attainment is that of the whole run, of the
five seconds around the change, and beside them the simulator's, which changes plan under the same
arrivals.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.clock import Stopwatch
from flows.release.rollout.change import change_plan, steps_to_dicts
from scripts.benchmarks.figures import Figure, add_destinations, exit_code, show, store
from scripts.benchmarks.served import SERVED, Load, Loaded, Served, samples_file, small_plan
from triton_backend.contract.decisions import Dispatch
from triton_backend.contract.units import s_to_us, us_to_s
from triton_backend.serve_folder.repository import read_workers
from triton_backend.serving.gateway.event_log import read_events
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import PlanChange, SimOptions

SLACK_S, GAP_SLACK_S = 0.05, 0.01
ATTAINED = 0.99
AROUND_S = 2.5
MINUTE_S = 60


def rollout(options: argparse.Namespace) -> dict[str, Any]:
    """One run with a change of plan in its middle."""
    old, new = small_plan("old"), small_plan("new", cuts={"beta": 4})
    with Served(old, options.port) as served:
        checks = [f"--check={m.name}={samples_file(served.root, m)}" for m in old.models]
        load = Load(
            served.state.grpc_url,
            served.write_plan(old, "plan"),
            f"--load-factor={options.load_factor}",
            f"--duration={options.seconds}",
            "--give-up-s=2",
            *checks,
        )
        time.sleep(options.seconds / 2)
        change = change_plan(served.folder, new, flush=options.flush)
        changed_us = time.monotonic_ns() // 1000
        loaded = load.result()
        workers = read_workers(served.folder, change.generation)
        gaps = dispatch_gaps(served.folder / "events")
    simulated = simulate(
        old,
        SimOptions(
            policy=served.options.policy,
            load_factor=options.load_factor,
            duration_s=options.seconds,
            changes=(PlanChange(at_s=options.seconds / 2, plan=new, flush=options.flush),),
            admission=True,
            keep_uses=False,
        ),
    )
    models = loaded.summary["models"].values()
    return {
        "slo_s": us_to_s(old.models[0].slo_us),
        "gap_before_s": gaps[0],
        "gap_s": gaps[1],
        "inherited": sum(origin.generation < change.generation for origin in workers.origins),
        "workers": len(workers.origins),
        "steps": steps_to_dicts(change),
        "lost": sum(row["failed"] for row in models),
        "wrong": sum(row["checked"]["wrong"] for row in models),
        "dropped": sum(row["dropped"] for row in models),
        "late": sum(row["late"] for row in models),
        "offered": sum(row["offered"] for row in models),
        "attainment": loaded.attainment,
        "attainment_around": around(loaded, changed_us - loaded.started_us),
        "simulated_attainment": simulated.attainment,
        "messages": loaded.summary["messages"],
        "send_lag_ms": loaded.summary["send_lag_ms"],
    }


def dispatch_gaps(folder: Path) -> tuple[float, float]:
    """Longest time (s) without a dispatch: in the minute before the change, and from 1 s before it on."""
    now_us, changed_us = 0, 0
    dispatched: list[int] = []
    for path in sorted(folder.glob("events-*.jsonl")):
        for item in read_events(path.read_text().splitlines()):
            if isinstance(item, dict):
                changed_us = item["now_us"] if item["rollout"] else changed_us
            elif isinstance(item, Dispatch):
                dispatched.append(now_us)
            else:
                now_us = getattr(item, "now_us", now_us)
    at = np.asarray(dispatched, dtype=np.int64)
    before = at[(at > changed_us - s_to_us(MINUTE_S)) & (at <= changed_us)]
    near = at[(at > changed_us - s_to_us(1)) & (at < changed_us + s_to_us(AROUND_S))]
    return longest_gap_s(before), longest_gap_s(near)


def longest_gap_s(instants_us: NDArray[np.int64]) -> float:
    """Longest time between one instant and the next."""
    return us_to_s(int(np.diff(instants_us).max(initial=0)))


def around(loaded: Loaded, instant_us: int) -> float:
    """Attainment of the requests due within `AROUND_S` of an instant of the run."""
    near = np.abs(loaded.records["intended_us"] - instant_us) < s_to_us(AROUND_S)
    return float((loaded.records["outcome"][near] == SERVED).mean())


def figures(row: dict[str, Any], options: argparse.Namespace) -> list[Figure]:
    """What must hold."""
    span = f"attainment over {options.seconds:g} s at load {options.load_factor:g}"
    return [
        Figure(
            name="longest time without a dispatch around the change",
            value=row["gap_s"],
            unit="s",
            most=row["slo_s"] + SLACK_S if options.flush else row["gap_before_s"] + GAP_SLACK_S,
            note=f"before it {row['gap_before_s']:.3f} s; SLO {row['slo_s']:g} s",
        ),
        Figure(name="workers that went on", value=row["inherited"], note=f"of {row['workers']}"),
        Figure(name="requests lost", value=row["lost"], most=0, note=f"of {row['offered']}"),
        Figure(name="wrong answers", value=row["wrong"], most=0),
        Figure(
            name=span,
            value=row["attainment"],
            least=ATTAINED,
            note=f"simulated {row['simulated_attainment']:.4f}",
        ),
        Figure(
            name=f"the same within {AROUND_S:g} s of the change", value=row["attainment_around"]
        ),
        Figure(name="requests dropped", value=row["dropped"]),
        Figure(name="requests late", value=row["late"]),
    ]


def main() -> int:
    """Run, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--load-factor", type=float, default=0.8)
    parser.add_argument("--flush", action="store_true")
    parser.add_argument("--port", type=int, default=18_580)
    add_destinations(parser)
    options = parser.parse_args()
    watch = Stopwatch()
    row = rollout(options)
    measured = figures(row, options)
    show(measured)
    store(options, "rollout", measured, {**row, "wall_seconds": watch.seconds()})
    return exit_code(measured)


if __name__ == "__main__":
    sys.exit(main())
