"""Soak of a running system: does anything grow, is a request lost, while plans take turns.

    .venv/bin/python scripts/benchmarks/soak.py [--minutes 4] [--change-seconds 30] [--out FILE]

Load factor 0.7 with checked answers for `--minutes`, while two plans take turns every
`--change-seconds`: models of 200 ms and more, and one of 5 ms beside them. Memory, open files,
sockets, processes and shared memory are counted before, between and after; the longest time without
a dispatch around a change is held against one SLO and 50 ms. The full run is `--minutes 30
--change-seconds 60`.
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import psutil

from flows.clock import Stopwatch
from flows.release.rollout.change import PlanChange, change_plan, steps_to_dicts
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.resource_usage import growth_figures, left_over, resources
from scripts.benchmarks.served import Load, Served, samples_file, small_plan
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import US_PER_S

SOAK = 0.7
GAP_SLACK_S = 0.05
MEMORY_FRACTION = 0.05
QUICK_SLO_US = 25_000
QUICK_ATTAINED = 0.99
PROCESSORS = {
    "started": "what it has started",
    "there": "what was there, beyond the usual,",
    "command": "the command",
}


def alternating() -> Iterator[Plan]:
    """Two plans that take turns: another cut, other vGPUs; same tensors, same answers."""
    number = 0
    while True:
        number += 1
        plan = small_plan("soak", cut=4 if number % 2 else 5, quick_slo_us=QUICK_SLO_US)
        yield replace(plan, plan_id=f"soak-{number}")


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Plan changes under load."""
    first = small_plan("soak-0", quick_slo_us=QUICK_SLO_US)
    slo_s = first.models[0].slo_us / 1e6
    migrations: list[PlanChange] = []
    changing_us: list[int] = []
    spent: list[ChangeCost] = []
    with Served(first, options.port, within=options.within) as served:
        checks = [f"--check={m.name}={samples_file(served.root, m)}" for m in first.models]
        load = Load(
            served.state.grpc_url,
            served.write_plan(first, "plan"),
            f"--load-factor={SOAK}",
            f"--duration={options.minutes * 60}",
            *checks,
        )
        steady = [resources(served)]
        watch, plans = Stopwatch(), alternating()
        while watch.seconds() + options.change_seconds < options.minutes * 60:
            following = next(plans)
            quiet = Usage.now(served)
            time.sleep(options.change_seconds / 2)
            before = Usage.now(served)
            migrations.append(change_plan(served.folder, following))
            after = Usage.now(served)
            changing_us += range(before.at_us, after.at_us, US_PER_S)
            spent.append(ChangeCost.of(quiet, before, after))
            time.sleep(options.change_seconds / 2)
            steady.append(resources(served))
            print(_progress(migrations[-1], steady[-1]), flush=True)
        loaded = load.result()
        gaps = served.dispatch_gaps()
        state = served.state
    return {
        "changes": len(migrations),
        "gaps_s": [gap.around_s for gap in gaps],
        "gaps_before_s": [gap.before_s for gap in gaps],
        "slo_s": slo_s,
        "processor_s": [cost._asdict() for cost in spent],
        "steps": [steps_to_dicts(m) for m in migrations],
        "attainment": loaded.attainment,
        "quick_attainment": loaded.around(
            [at - loaded.started_us for at in changing_us], 1.0, len(first.models) - 1
        ),
        "lowest_attainment_10_s": min(share for _, share, _ in loaded.windows(10.0)),
        "waited_longest_ms": float(loaded.waited_past_deadline_us().max()) / 1000,
        "models": {
            name: {k: v for k, v in row.items() if k != "histogram"}
            for name, row in loaded.summary["models"].items()
        },
        "messages": loaded.summary["messages"],
        "resources": steady,
        "left_over": left_over([state]),
    }


class Usage(NamedTuple):
    """Seconds of a processor that processes have had until an instant.

    `system`: each of the system's, by its number and its start; `own`: this one, which is the
    command.
    """

    at_us: int
    system: dict[tuple[int, float], float]
    own: float

    @classmethod
    def now(cls, served: Served) -> Self:
        """Look."""
        found: dict[tuple[int, float], float] = {}
        for process in served.processes():
            with contextlib.suppress(psutil.Error):
                had = process.cpu_times()
                found[process.pid, process.create_time()] = had.user + had.system
        return cls(time.monotonic_ns() // 1000, found, time.process_time())

    def more_than(self, before: Self) -> float:
        """CPU time since then of the processes that were there before."""
        both = self.system.keys() & before.system.keys()
        return sum(self.system[key] - before.system[key] for key in both)


class ChangeCost(NamedTuple):
    """Seconds of a processor that a change took.

    Attributes:
        started: of what it has started.
        there: of processes that were there, beyond what they had before in as much time.
        command: of the command.
        usual: of a processor, what was there took in each second before the change.
    """

    started: float
    there: float
    command: float
    usual: float

    @classmethod
    def of(cls, quiet: Usage, before: Usage, after: Usage) -> Self:
        """Between `before` and `after`, beside the time since `quiet`."""
        usual = before.more_than(quiet) / (before.at_us - quiet.at_us)
        return cls(
            started=sum(after.system[key] for key in after.system.keys() - before.system.keys()),
            there=after.more_than(before) - usual * (after.at_us - before.at_us),
            command=after.own - before.own,
            usual=usual * US_PER_S,
        )


def _progress(migration: PlanChange, now: dict[str, Any]) -> str:
    return (
        f"{migration.plan_id}: {migration.seconds:.1f} s in all; {now['rss_mb']:.0f} MB in"
        f" {now['processes']} processes, {now['segments']} segments of {now['segments_mb']:.1f} MB,"
        f" {now['sockets']} sockets, {now['files']} files; machine load {os.getloadavg()[0]:.1f}"
    )


def figures_of(row: dict[str, Any]) -> list[Figure]:
    """The cost of plan changes under load, and growth meanwhile."""
    models = row["models"].values()
    first, last = row["resources"][min(2, len(row["resources"]) - 1)], row["resources"][-1]
    return [
        Figure(name="changes of plan", value=row["changes"]),
        Figure(
            name="longest time without a dispatch around a change",
            value=max(row["gaps_s"], default=None),
            unit="s",
            most=row["slo_s"] + GAP_SLACK_S,
            note=f"in the minutes before them {max(row['gaps_before_s'], default=0):.3f} s",
        ),
        *(
            Figure(
                name=f"processor time of {whose} when a change is done, mean",
                value=float(np.mean([cost[key] for cost in row["processor_s"]])),
                unit="s",
            )
            for key, whose in PROCESSORS.items()
            if row["changes"]
        ),
        *(
            Figure(
                name=f"processors in use between changes, before the {which}",
                value=row["processor_s"][at]["usual"],
            )
            for which, at in (("first", 0), ("last", -1))
            if row["changes"]
        ),
        Figure(name="requests lost", value=sum(m["failed"] for m in models), most=0),
        Figure(name="wrong answers", value=sum(m["checked"]["wrong"] for m in models), most=0),
        Figure(name="requests dropped", value=sum(m["dropped"] for m in models)),
        Figure(name="attainment", value=row["attainment"]),
        Figure(
            name="attainment of the model of 5 ms in the seconds with a change",
            value=row["quick_attainment"],
            least=QUICK_ATTAINED,
        ),
        Figure(name="attainment, lowest 10 s", value=row["lowest_attainment_10_s"]),
        *growth_figures(first, last, MEMORY_FRACTION, row["left_over"]),
    ]


def main() -> int:
    """Run, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--minutes", type=float, default=4.0)
    add("--change-seconds", type=float, default=30.0)
    add("--port", type=int, default=18_555)
    add("--within", type=Path, help="where the serve folder is made")
    add_destinations(parser)
    options = parser.parse_args()
    watch = Stopwatch()
    result = soak(options)
    figures = figures_of(result)
    return conclude(options, "soak", figures, {**result, "wall_seconds": watch.seconds()})


if __name__ == "__main__":
    sys.exit(main())
