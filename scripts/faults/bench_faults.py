"""Faults on a running system, at load factor 0.6 if nothing else is asked for.

Losses, waits, and how soon all is well. Two emulated models of two stages on pools of four
vGPUs over two nodes each are served by the real Triton and loaded with requests whose right answers
are known. A few seconds into each run one part is broken; a prober asks for the state ten times a
second and tries a request of every model.

    .venv/bin/python scripts/faults/bench_faults.py [--only NAME ...] [--seconds 12]
        [--load-factor 0.6]
        [--application | --wide] [--policy deferred] [--clock-ahead 100000] [--out FILE]

Where one of two servers is killed clients send what fails once more, after 0.1 s; a request is lost
that is dropped or fails then, too.

With `--wide` the models of `bench_pauses`, with tensors of 100 KB, too large for a checksum, and an
SLO of 50 ms beside that of 400 ms, stand in the place of the two; their links are not slowed down.

With `--application` a diamond of four modules stands in the place of the two models, on as many
vGPUs. Where there are two hosts, half of two of its modules is on the other one.

Per fault: wrong answers; requests dropped and failed; answers later than their deadline and 100 ms
(those that a killed process held are never answered by Triton, their clients give up after a
second); seconds until repaired (every worker up, every model answers) and from then until
attainment is back at 99 % and stays there; attainment of the whole run beside the simulator's,
which loses the same vGPUs for as long; tasks of jobs that ran again. Of a fault that lasts,
attainment without them beside the simulator's.

Full disk and full shared memory need a mount namespace of our own (`unshare`), two hosts a network
namespace, the jumping clock a C compiler; where one is not there the row says so.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.clock import Stopwatch
from scripts.benchmarks.applications.plans import faulty_application, requests_of
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.served import (
    SERVED,
    Load,
    Loaded,
    Served,
    run_to_its_end,
    samples_file,
    small_plan,
    stop_when_terminated,
)
from scripts.faults.injection import (
    CHANGED,
    CLOCK,
    FAR,
    FILLED,
    LINK_GBPS,
    LINKED,
    PROCESSES,
    TWO_GATEWAYS,
    Fault,
)
from scripts.faults.places import (
    FAR_NODE,
    Far,
    NotHereError,
    Shifted,
    in_mount_namespace,
    small_file_systems,
)
from scripts.faults.plans import wide_plan
from scripts.faults.probe import Prober, wait_well
from triton_backend.contract.errors import PoolPipeError
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import us_to_s
from triton_backend.runtimes.stage_tensors import served_models
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.simulator.failures import Failure
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

LOAD_FACTOR = 0.6
FAULT_AT_S = 3.0
NOTICED_S = 6.0  # a fault that lasts is noticed by then
WINDOW_S = 0.5
GOOD = 0.99
GRACE_US = 100_000
RECOVERY_TARGET_S = 5.0
LINK_TOLERANCE = 0.03
GIVE_UP_S = 1.0
CONNECTIONS = 8
WRITTEN_S = 1.0  # the event files are written four times a second
GAP_BEFORE_US, GAP_AFTER_US = 500_000, 5_000_000


def serve_options(options: argparse.Namespace, gateways: int = 1) -> ServeOptions:
    """How the plan is served."""
    return ServeOptions(policy=options.policy, gateways=gateways)


def measure(served: Served, fault: Fault, load_factor: float, seconds: float) -> dict[str, Any]:
    """One run with one fault in it."""
    load = checked_load(served, load_factor, seconds, fault.retries)
    before = served.tasks_run_again()
    prober = Prober(served)
    prober.start()
    time.sleep(FAULT_AT_S)
    fault_us = time.monotonic_ns() // 1000
    fault.inject(served)
    gone_us = time.monotonic_ns() // 1000
    loaded = load.result()
    prober.end()
    time.sleep(WRITTEN_S)
    again = served.tasks_run_again() - before
    row = counted(loaded) | {"complaints": prober.complaints, "tasks_run_again": again}
    if fault.longest_gap_s is not None:
        _, dispatched_us = served.changes_and_dispatches()
        gap_s = longest_gap_s(dispatched_us, fault_us)
        row |= {"gap_s": gap_s, "gap_target_s": fault.longest_gap_s}
    if fault.lasts:
        return row | reduced(loaded, fault, served, fault_us, load_factor)
    repaired_us = max(gone_us, prober.last_bad_us)
    began_s = (fault_us - loaded.started_us) / 1e6
    ended_s = (repaired_us - loaded.started_us) / 1e6
    away = tuple(Failure(start_s=began_s, end_s=ended_s, vgpu=v) for v in fault.vgpus)
    return (
        row
        | recovery(loaded, fault_us, repaired_us)
        | {
            "attainment": loaded.attainment,
            "simulated": simulated(served, load_factor, seconds, away),
        }
    )


def checked_load(served: Served, load_factor: float, seconds: float, retries: int) -> Load:
    """Requests whose answers are compared, each given up a second after its deadline."""
    checks = [f"--check={name}={path}" for name, path in checked_files(served).items()]
    return Load(
        served.state.grpc_url,
        served.write_plan(served.plan, "plan"),
        f"--load-factor={load_factor}",
        f"--duration={seconds}",
        f"--give-up-s={GIVE_UP_S}",
        f"--retries={retries}",
        # Of several servers on one port the kernel chooses one for each connection.
        f"--connections={CONNECTIONS if retries else 1}",
        *checks,
    )


def checked_files(served: Served) -> dict[str, Path]:
    """Requests with their answers, of every model and application."""
    applications = {planned.name for planned in served.plan.applications}
    return {
        model.name: requests_of(served.folder, model.name).path
        if model.name in applications
        else samples_file(served.root, model)
        for model in served_models(served.plan)
    }


def counted(loaded: Loaded) -> dict[str, Any]:
    """Outcomes of the requests of a run."""
    checks = [row["checked"] for row in loaded.summary["models"].values()]
    waited = loaded.waited_past_deadline_us()
    return {
        "offered": len(loaded.records),
        "checked": sum(c["responses"] for c in checks),
        "wrong": sum(c["wrong"] for c in checks),
        **{
            name: sum(row[name] for row in loaded.summary["models"].values())
            for name in ("late", "dropped", "failed")
        },
        "waited_longest_ms": float(waited.max()) / 1000,
        "waited_too_long": int((waited > GRACE_US).sum()),
        "sent_again": loaded.summary["sent_again"],
        "messages": loaded.summary["messages"],
        "load_average": os.getloadavg()[0],
    }


def longest_gap_s(dispatched_us: NDArray[np.int64], fault_us: int) -> float:
    """The longest time without a dispatch from just before a fault of the scheduler on."""
    low_us, high_us = fault_us - GAP_BEFORE_US, fault_us + GAP_AFTER_US
    around = dispatched_us[(dispatched_us > low_us) & (dispatched_us <= high_us)]
    return us_to_s(int(np.diff(around).max(initial=0)))


def recovery(loaded: Loaded, fault_us: int, repaired_us: int) -> dict[str, Any]:
    """When all was well again, and how well."""
    begin_us = loaded.started_us
    bad = [at for at, share, _ in loaded.windows(WINDOW_S) if share < GOOD]
    good_again_us = begin_us + round((bad[-1] + WINDOW_S) * 1e6) if bad else fault_us
    after = loaded.records[loaded.records["intended_us"] + begin_us >= repaired_us]
    return {
        "repaired_s": (repaired_us - fault_us) / 1e6,
        "good_again_s": max(good_again_us - fault_us, 0) / 1e6,
        "good_after_repair_s": max(good_again_us - repaired_us, 0) / 1e6,
        "attainment_after_repair": float((after["outcome"] == SERVED).mean())
        if len(after)
        else 1.0,
    }


def reduced(
    loaded: Loaded, fault: Fault, served: Served, fault_us: int, load_factor: float
) -> dict[str, Any]:
    """Attainment at the capacity that is left, once the fault is noticed."""
    from_us = fault_us + NOTICED_S * 1e6 - loaded.started_us
    left = loaded.records[loaded.records["intended_us"] >= from_us]
    away = tuple(Failure(start_s=0.0, vgpu=v) for v in fault.vgpus)
    return {
        "attainment": float((left["outcome"] == SERVED).mean()),
        "simulated": simulated(served, load_factor, 60.0, away, fault.link),
        "least_of_simulated": -LINK_TOLERANCE if fault.link < 1 else None,
    }


def with_link(plan: Plan, share: float) -> Plan:
    """The plan whose far node has a link of that share of its rate."""
    cluster = plan.cluster
    groups = [group for group in cluster.nodes for _ in range(group.count)]
    names = [cluster.node_name(node) for node in range(cluster.node_count)]
    nodes = tuple(
        replace(
            group,
            count=1,
            name=name,
            nic_gbps=group.nic_gbps * (share if name == FAR_NODE else 1),
        )
        for group, name in zip(groups, names, strict=True)
    )
    return replace(plan, cluster=replace(cluster, nodes=nodes))


def simulated(
    served: Served,
    load_factor: float,
    seconds: float,
    away: tuple[Failure, ...],
    link: float = 1.0,
) -> float:
    """Simulated attainment without these vGPUs, and with what is left of a link."""
    options = SimOptions(
        policy=served.options.policy,
        load_factor=load_factor,
        duration_s=seconds,
        failures=away,
        admission=True,
        keep_uses=False,
    )
    plan = served.plan if link == 1 else with_link(served.plan, link)
    return simulate(plan, options).attainment


def run_all(
    options: argparse.Namespace, faults: tuple[Fault, ...], made: Callable[[], Served]
) -> list[dict[str, Any]]:
    """All faults against one system, one after the other."""
    wanted = [fault for fault in faults if not options.only or fault.name in options.only]
    rows: list[dict[str, Any]] = []
    if not wanted:
        return rows
    try:
        with made() as served:
            before = len(served.processes())
            wait_well(served)
            rows += [one(served, f, options) for f in wanted]
            after = len(served.processes())
            print(f"processes before {before}, after {after}", flush=True)
            if options.verbose:
                for log in ("server.log", "triton.log"):
                    print((served.folder / "logs" / log).read_text()[-6000:])
    except NotHereError as error:
        rows += [{"fault": f.name, "broken": f"not tried: {error}"} for f in wanted]
    return rows


def one(served: Served, fault: Fault, options: argparse.Namespace) -> dict[str, Any]:
    """One fault, and all well again."""
    row: dict[str, Any] = {
        "fault": fault.name,
        "may_lose": fault.loses,
        "holds": fault.holds,
        "retries": fault.retries,
        "repair_target_s": fault.repaired_within_s,
    }
    try:
        seconds = max(options.seconds, fault.at_least_s)
        row |= measure(served, fault, options.load_factor, seconds)
    except (RuntimeError, PoolPipeError) as error:
        row |= {"broken": str(error)}
    if fault.lasts and isinstance(served, Far):
        served.mend()
    row["whole_again"] = wait_well(served)
    print(table_row(row), flush=True)
    return row


WIDTH = 38
HEADINGS = (
    "wrong", "late", "dropped", "failed", ">100 ms", "longest", "repaired", ">=99 %", "attained",
    "simulated", "again",
)  # fmt: skip


def table_row(row: dict[str, Any]) -> str:
    """One line of the table: times in seconds, the longest wait past the deadline in ms."""
    if "offered" not in row:
        return f"{row['fault']:<{WIDTH}} {row['broken']}"
    counts = "".join(
        f"{row[k]:>10}" for k in ("wrong", "late", "dropped", "failed", "waited_too_long")
    )
    times = (
        f"{row['repaired_s']:>10.1f}{row['good_after_repair_s']:>10.1f}"
        if "repaired_s" in row
        else f"{'lasts':>10}{'-':>10}"
    )
    whole = "" if row["whole_again"] else "  NOT WHOLE AGAIN"
    return (
        f"{row['fault']:<{WIDTH}}{counts}{row['waited_longest_ms']:>10.0f}{times}"
        f"{row['attainment']:>10.3f}{row['simulated']:>10.3f}{row['tasks_run_again']:>10}{whole}"
    )


def figures_of(rows: list[dict[str, Any]]) -> list[Figure]:
    """The figures that have targets."""
    tried = [row for row in rows if "offered" in row]
    wrong = sum(row["wrong"] for row in tried)
    compared = f"of {sum(row['checked'] for row in tried)} compared, {len(tried)} faults"
    figures = [Figure(name="all faults: wrong answers", value=wrong, most=0, note=compared)]
    for row in rows:
        name = row["fault"]
        if "offered" not in row:
            figures.append(Figure(name=f"{name}: wrong answers", value=None, note=row["broken"]))
            continue
        held = "held by the dead process" if row["holds"] else ""
        figures += [
            Figure(name=f"{name}: wrong answers", value=row["wrong"], most=0),
            Figure(
                name=f"{name}: answers later than deadline + 100 ms",
                value=row["waited_too_long"],
                most=None if held else 0,
                note=held,
            ),
            Figure(name=f"{name}: not whole again", value=int(not row["whole_again"]), most=0),
        ]
        if row["retries"]:
            what = f"{name}: dropped or failed in spite of a retry"
            figures.append(Figure(name=what, value=row["dropped"] + row["failed"], most=0))
        if "gap_s" in row:
            what = f"{name}: longest time without a dispatch"
            figures.append(
                Figure(name=what, value=row["gap_s"], unit="s", most=row["gap_target_s"])
            )
        if "repaired_s" in row:
            what, aim_s = f"{name}: repaired", row["repair_target_s"]
            figures.append(Figure(name=what, value=row["repaired_s"], unit="s", most=aim_s))
            what = f"{name}: from repair to 99 % attainment"
            value = row["good_after_repair_s"]
            figures.append(Figure(name=what, value=value, unit="s", most=RECOVERY_TARGET_S))
        else:
            what = f"{name}: attainment less the simulator's"
            value = row["attainment"] - row["simulated"]
            figures.append(Figure(name=what, value=value, least=row["least_of_simulated"]))
    return figures


def in_namespace() -> list[dict[str, Any]]:
    """The faults of full file systems, in a mount namespace of their own."""
    path = Path(f"/tmp/poolpipe-faults-{os.getpid()}.json")  # noqa: S108  # read back at once
    try:
        words = in_mount_namespace()
    except NotHereError as error:
        return [{"fault": f.name, "broken": f"not tried: {error}"} for f in FILLED]
    command = [*words, sys.executable, *sys.argv, "--inside", str(path)]
    code = run_to_its_end(command).returncode
    if code or not path.exists():
        return [{"fault": f.name, "broken": f"not tried: ended with {code}"} for f in FILLED]
    rows = json.loads(path.read_text())
    path.unlink()
    return rows


def inside(options: argparse.Namespace, plan: Plan) -> None:
    """In the namespace: small file systems, then the faults."""
    serve = serve_options(options)
    with small_file_systems(64, 512) as within:
        rows = run_all(options, FILLED, lambda: Served(plan, options.port, serve, within))
        options.inside.write_text(json.dumps(rows))


def plan_of(options: argparse.Namespace) -> Plan:
    """The plan that the options ask for."""
    if options.application:
        return faulty_application()
    return wide_plan("faults", quick=True) if options.wide else small_plan("faults")


def main() -> int:
    """Run, print, store; exit 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", help="names of faults")
    add("--seconds", type=float, default=12.0, help="of load per fault")
    add("--load-factor", type=float, default=LOAD_FACTOR, help="of what the plan serves")
    served = parser.add_mutually_exclusive_group()
    served.add_argument(
        "--application", action="store_true", help="an application in place of the models"
    )
    served.add_argument("--wide", action="store_true", help="tensors of 100 KB, one SLO of 50 ms")
    add(
        "--policy",
        help="of the scheduler, in place of the plan's; not with two hosts, nor another clock",
    )
    add("--clock-ahead", type=int, default=0, help="seconds, of the far host's monotonic clock")
    add("--port", type=int, default=18_530, help="the first of those used")
    add("--verbose", action="store_true", help="the server's logs at the end")
    add("--inside", type=Path, help=argparse.SUPPRESS)
    add_destinations(parser)
    options = parser.parse_args()
    stop_when_terminated()
    plan = plan_of(options)
    if options.inside is not None:
        inside(options, plan)
        return 0
    watch = Stopwatch()
    print(f"{'fault':<{WIDTH}}{''.join(f'{heading:>10}' for heading in HEADINGS)}", flush=True)
    here = serve_options(options)
    rows = run_all(options, PROCESSES + CHANGED, lambda: Served(plan, options.port, here))
    beside = serve_options(options, gateways=2)
    rows += run_all(options, TWO_GATEWAYS, lambda: Served(plan, options.port, beside))
    ahead = options.clock_ahead
    rows += run_all(options, FAR, lambda: Far(plan, options.port, clock_ahead_s=ahead))
    slow = small_plan("faults", nic_gbps=LINK_GBPS)
    if not options.wide:
        rows += run_all(options, LINKED, lambda: Far(slow, options.port, link_gbps=LINK_GBPS))
    rows += run_all(options, CLOCK, lambda: Shifted(plan, options.port))
    if not options.only or any(fault.name in options.only for fault in FILLED):
        rows += in_namespace()
    print(*(table_row(row) for row in rows if "offered" not in row), sep="\n")
    figures = figures_of(rows)
    name = "faults of wide tensors" if options.wide else "faults"
    return conclude(options, name, figures, {"rows": rows, "wall_seconds": watch.seconds()})


if __name__ == "__main__":
    sys.exit(main())
