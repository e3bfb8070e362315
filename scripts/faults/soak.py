"""Soak with faults drawn at random.

Is every one repaired in its time, is an answer wrong, does anything grow?

    .venv/bin/python scripts/faults/soak.py [--minutes 30] [--fault-seconds 60]
        [--change-seconds 40] [--seed 0]
        [--two-gateways] [--out FILE]

The models of `bench_pauses`, with tensors of 100 KB and SLOs of 400 and 50 ms, and a quick one are
served over two hosts, in file systems small enough to be filled and with a time of day that can
jump, loaded at load factor 0.6 with requests whose right answers are known. Every
`--change-seconds` the plan changes, whatever else goes on (0: never). Every `--fault-seconds` one
of the faults of `injection` is drawn, by a generator with `--seed`, and made; the next one waits
until all is whole again. Where this machine does not allow it (root, a C compiler, a mount
namespace) one host serves, and only processes are broken. `--two-gateways` breaks workers and one
of two servers instead, on one host, with clients that send again once.

Per fault: requests late, dropped and failed until the next one; answers later than their deadline
and 100 ms; seconds until it is repaired (every worker up, every model answers, for five seconds),
against the time of its row; seconds from then until two seconds attain 99 %. In the end: wrong
answers, memory (without the fork servers of nodes, which come and go), processes, files, sockets
and segments of shared memory against those after the warm-up, with what kinds of
descriptors and which series are more, and what is left over when all has stopped. Workers and
fronts open links to one another when tensors first go there, so files and sockets are also counted
without these (lasting), and the links against the most that the plan can have.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from flows.clock import Stopwatch
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.resource_usage import growth_figures, in_short, left_over, resources
from scripts.benchmarks.served import SERVED, Loaded, Served
from scripts.faults.bench_faults import (
    GOOD,
    GRACE_US,
    LOAD_FACTOR,
    RECOVERY_TARGET_S,
    WINDOW_S,
    checked_load,
    longest_gap_s,
)
from scripts.faults.changes import Changes
from scripts.faults.injection import (
    CLOCK,
    FAR,
    FILLED,
    PAUSED,
    PROCESSES,
    STOPPED,
    TWO_GATEWAYS,
    Fault,
)
from scripts.faults.places import (
    Far,
    NotHereError,
    Shifted,
    ShiftedFar,
    in_mount_namespace,
    small_file_systems,
)
from scripts.faults.plans import wide_plan
from scripts.faults.probe import Prober, wait_well, well_from_us
from triton_backend.contract.errors import PoolPipeError
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import s_to_us, us_to_s
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.node.fork_server import SERVER_NAME as FORK_SERVER

MEMORY_FRACTION = 0.01
WARM_UP_S = 60.0
SETTLED_WINDOWS = 4
CALM_S = 5.0  # a fault is repaired when nothing is amiss for so long
MEGABYTES, SHARED_MEGABYTES = 512, 512  # the event files of half an hour take 150 MB
POLL_S = 0.1
LONG_MINUTES = 25.0


def soak(options: argparse.Namespace, plan: Plan, within: Path | None) -> dict[str, Any]:
    """Load, and one fault after the other."""
    served, faults = place(options, plan, within)
    drawn = np.random.default_rng(options.seed)
    seconds = options.minutes * 60
    rows: list[dict[str, Any]] = []
    with served:
        wait_well(served)
        load = checked_load(served, options.load_factor, seconds, int(options.two_gateways))
        watch = Stopwatch()
        changes = Changes(served, options.change_seconds) if options.change_seconds else None
        if changes is not None:
            changes.start()
        time.sleep(WARM_UP_S)
        looks = [look(served, changes)]
        while watch.seconds() + options.fault_seconds <= seconds:
            row = one(served, faults[drawn.integers(len(faults))], options.fault_seconds)
            looks.append(look(served, changes))
            rows.append(row)
            print(progress(watch.seconds(), row, looks[-1]), flush=True)
        if changes is not None:
            changes.end()
        loaded = load.result()
        dispatched_us = served.changes_and_dispatches()[1]
        states = served.states()
    ends_us = [row["at_us"] for row in rows[1:]] + [loaded.started_us + s_to_us(seconds)]
    for row, end_us in zip(rows, ends_us, strict=True):
        row.update(judged(loaded, row, end_us))
        if row["gap_target_s"] is not None:
            row["gap_s"] = longest_gap_s(dispatched_us, row["at_us"])
    models = loaded.summary["models"].values()
    return {
        "rows": rows,
        "attainment": loaded.attainment,
        "offered": len(loaded.records),
        "wrong": sum(model["checked"]["wrong"] for model in models),
        "messages": loaded.summary["messages"],
        "resources": [looks[0], *map(in_short, looks[1:-1]), looks[-1]],
        "changes": [] if changes is None else changes.rows,
        "left_over": left_over(states),
    }


def look(served: Served, changes: Changes | None) -> dict[str, Any]:
    """Resources of the whole system while no plan changes."""
    with nullcontext() if changes is None else changes.paused():
        wait_well(served)
        return resources(served)


def place(
    options: argparse.Namespace, plan: Plan, within: Path | None
) -> tuple[Served, Sequence[Fault]]:
    """Where it is served, and what can break there."""
    if options.two_gateways:
        of_workers = tuple(fault for fault in PROCESSES if fault.vgpus)
        beside = ServeOptions(gateways=2)
        return Served(plan, options.port, beside), of_workers + TWO_GATEWAYS
    if within is None:
        return Served(plan, options.port), PROCESSES + STOPPED
    far = tuple(fault for fault in FAR if not fault.lasts)
    return ShiftedFar(
        plan, options.port, within
    ), PROCESSES + STOPPED + far + PAUSED + CLOCK + FILLED


def one(served: Served, fault: Fault, seconds: float) -> dict[str, Any]:
    """One fault, for `seconds` and until all is whole again."""
    prober, watch = Prober(served), Stopwatch()
    prober.start()
    at_us = time.monotonic_ns() // 1000
    row: dict[str, Any] = {
        "fault": fault.name,
        "at_us": at_us,
        "aim_s": fault.repaired_within_s,
        "gap_target_s": fault.longest_gap_s,
    }
    try:
        fault.inject(served)
    except (RuntimeError, PoolPipeError) as error:
        row["broken"] = str(error)
    gone_us = time.monotonic_ns() // 1000
    while watch.seconds() < seconds:
        time.sleep(POLL_S)
    row["whole_again"] = wait_well(served)
    prober.end()
    repaired_us = well_from_us(prober.bad_us, gone_us, CALM_S)
    later = [at for at in prober.bad_us if at > repaired_us]
    return row | {
        "repaired_us": repaired_us,
        "repaired_s": us_to_s(repaired_us - at_us),
        "complaints": prober.complaints,
        "complaints_later": len(later),
        "load_average": os.getloadavg()[0],
    }


def judged(loaded: Loaded, row: dict[str, Any], end_us: int) -> dict[str, Any]:
    """Outcomes of the requests due between a fault and the next one."""
    due_us = loaded.records["intended_us"] + loaded.started_us
    its = loaded.part((due_us >= row["at_us"]) & (due_us < end_us))
    outcomes = its.records["outcome"]
    waited_us = its.waited_past_deadline_us()
    return {
        "offered": len(outcomes),
        "lost": int((outcomes != SERVED).sum()),
        "waited_too_long": int((waited_us > GRACE_US).sum()),
        "attainment": its.attainment,
        "good_after_repair_s": settled_s(its, row["repaired_us"]),
    }


def settled_s(its: Loaded, repaired_us: int) -> float | None:
    """Seconds from a repair to the first that begin two seconds of 99 %; None: there are none."""
    windows = [
        (its.started_us + s_to_us(at), round(share * offered), offered)
        for at, share, offered in its.windows(WINDOW_S)
        if its.started_us + s_to_us(at + WINDOW_S) > repaired_us
    ]
    for first in range(len(windows) - SETTLED_WINDOWS + 1):
        seen = windows[first : first + SETTLED_WINDOWS]
        if sum(served for _, served, _ in seen) >= GOOD * sum(offered for *_, offered in seen):
            return us_to_s(max(seen[0][0] - repaired_us, 0))
    return None


def progress(at_s: float, row: dict[str, Any], now: dict[str, Any]) -> str:
    """A line per fault while it runs."""
    broken = f"  {row['broken']}" if "broken" in row else ""
    return (
        f"{at_s:6.0f} s  {row['fault']:<40} repaired after {row['repaired_s']:.1f} s;"
        f" {now['rss_mb']:.0f} MB in {now['processes']} processes, {now['segments']} segments,"
        f" {now['sockets']} sockets, {now['files']} files; machine load {row['load_average']:.1f}"
        f"{'' if row['whole_again'] else '  NOT WHOLE AGAIN'}{broken}"
    )


def figures_of(result: dict[str, Any], fault_seconds: float) -> list[Figure]:
    """Of every fault drawn, by number, and of all of it."""
    figures: list[Figure] = []
    for number, row in enumerate(result["rows"], 1):
        name = f"{number} {row['fault']}"
        lost = f"{row['lost']} of {row['offered']} lost, {row['waited_too_long']} > 100 ms late"
        if row["complaints_later"]:
            lost += f", {row['complaints_later']} probes later not well"
        if "broken" in row:
            figures.append(Figure(name=f"{name}: made", value=0, least=1, note=row["broken"]))
        figures.append(
            Figure(
                name=f"{name}: repaired",
                value=row["repaired_s"] if row["whole_again"] else float("inf"),
                unit="s",
                most=row["aim_s"],
                note=lost,
            )
        )
        settled = row["good_after_repair_s"]
        figures.append(
            Figure(
                name=f"{name}: from repair to 99 %",
                value=fault_seconds if settled is None else settled,
                unit="s",
                most=RECOVERY_TARGET_S,
                note="not before the next fault" if settled is None else "",
            )
        )
        if "gap_s" in row:
            what = f"{name}: longest time without a dispatch"
            figures.append(
                Figure(name=what, value=row["gap_s"], unit="s", most=row["gap_target_s"])
            )
    looks, changes = result["resources"], result["changes"]
    taken_back = [row["failed"] for row in changes if "failed" in row]
    return [
        *figures,
        Figure(name="changes of plan", value=len(changes) - len(taken_back)),
        Figure(
            name="changes of plan taken back", value=len(taken_back), note="; ".join(taken_back)
        ),
        Figure(name="wrong answers", value=result["wrong"], most=0),
        Figure(name="attainment", value=result["attainment"], note=f"of {result['offered']}"),
        *fork_server_figures(looks),
        *growth_figures(
            without_fork_servers(looks[0]),
            without_fork_servers(looks[-1]),
            MEMORY_FRACTION,
            result["left_over"],
        ),
    ]


def without_fork_servers(look: dict[str, Any]) -> dict[str, Any]:
    """Resources without the processes that start with the first missed worker."""
    return look | {
        kind: look[kind] - look[f"{kind}_by_process"].get(FORK_SERVER, 0.0)
        for kind in ("rss_mb", "own_mb")
    }


def fork_server_figures(looks: Sequence[dict[str, Any]]) -> list[Figure]:
    """How much the mean fork server has grown since the first was there."""
    means_mb = [
        look["rss_mb_by_process"][FORK_SERVER] / look["processes_by_name"][FORK_SERVER]
        for look in looks
        if FORK_SERVER in look["processes_by_name"]
    ]
    if not means_mb:
        return []
    name = "memory of a fork server at the end, of that of the first"
    return [Figure(name=name, value=means_mb[-1] / means_mb[0], most=1 + MEMORY_FRACTION)]


def main() -> int:
    """Run, print, store; exit 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--minutes", type=float, default=30.0)
    add("--fault-seconds", type=float, default=60.0, help="from one fault to the next")
    add("--change-seconds", type=float, default=40.0, help="from one change of plan to the next")
    add("--seed", type=int, default=0, help="of the faults drawn")
    add("--load-factor", type=float, default=LOAD_FACTOR, help="of what the plan serves")
    add("--two-gateways", action="store_true", help="two servers on one host")
    add("--port", type=int, default=18_580, help="the first of those used")
    add("--inside", action="store_true", help=argparse.SUPPRESS)
    add_destinations(parser)
    options = parser.parse_args()
    if not options.inside and not options.two_gateways:
        try:
            Shifted.compiler()
            Far.check_possible()
            words = in_mount_namespace()
        except NotHereError as error:
            print(f"only faults of processes: {error}")
        else:
            os.execv(words[0], [*words, sys.executable, *sys.argv, "--inside"])  # noqa: S606  # as it was called
    watch = Stopwatch()
    with ExitStack() as stack:
        within = None
        if options.inside:
            within = stack.enter_context(small_file_systems(MEGABYTES, SHARED_MEGABYTES))
        result = soak(options, wide_plan("faults", quick=True), within)
    figures = figures_of(result, options.fault_seconds)
    return conclude(
        options, benchmark_name(options), figures, {**result, "wall_seconds": watch.seconds()}
    )


def benchmark_name(options: argparse.Namespace) -> str:
    """The name of a run: figures of short ones, and of two gateways, are claims of their own."""
    name = "soak with faults" if options.minutes >= LONG_MINUTES else "short soak with faults"
    return f"{name}, two gateways" if options.two_gateways else name


if __name__ == "__main__":
    sys.exit(main())
