"""Overload and soak of a running system: does goodput stay flat, does anything grow, is one lost.

    .venv/bin/python scripts/bench_soak.py [--overload-seconds 60] [--soak-minutes 4]
        [--change-seconds 30] [--only overload|soak] [--output FILE]

*Overload*: a small emulated plan is offered 1, 1.5, 2 and then 3 times its planned rate (the last
for `--overload-seconds`), followed by 0.7 without a pause. Goodput at 3 x must be at least 95 % of
the highest seen, the memory of all processes bounded, and requests that arrive one SLO after the
overload's end must be served as if nothing had been.

*Soak*: load factor 0.7 with checked answers for `--soak-minutes`, while two plans take turns every
`--change-seconds`. Memory, open files, sockets, processes and shared memory are counted before,
between and after; every flush and swap is timed against one SLO and 50 ms. The full run is
`--soak-minutes 30 --change-seconds 60`.
"""

import argparse
import csv
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from benchmark import Figure, add_destinations, exit_code, keep, show
from testbed import SERVED, SHARED_FOLDER, Load, Loaded, Served, samples_file, small_plan

from flows.clock import Stopwatch
from flows.release.migrate import Migration, migrate, steps_to_dicts
from triton_backend.core.plan import Plan
from triton_backend.sim.options import SimOptions
from triton_backend.sim.run import simulate

STEPS = (1.0, 1.5, 2.0)
STEP_SECONDS = 6.0
OVERLOAD = 3.0
AFTER = 0.7
AFTER_SECONDS = 6.0
FLAT = 0.95
RECOVERED = 0.99
OVERLOAD_STAGE_US = 160_000  # 3 x the planned rate is then 270 requests/s, which two cores carry
SOAK = 0.7
SAMPLE_SECONDS = 2.0
DOWNTIME_SLACK_S = 0.05
MEMORY_FRACTION = 0.05


def resources(served: Served) -> dict[str, Any]:
    """What the system holds now; memory in MB, of processes (RSS) and of /dev/shm."""
    rss = files = sockets = processes = 0
    names: dict[str, int] = {}
    for process in served.processes():
        try:
            memory, fds = process.memory_info().rss, list(Path(f"/proc/{process.pid}/fd").iterdir())
            targets = [_target(fd) for fd in fds]
            name = process.name()
        except (psutil.Error, OSError):
            continue
        rss += memory
        files += len(fds)
        sockets += sum(target.startswith("socket:") for target in targets)
        processes += 1
        names[name] = names.get(name, 0) + memory
    segments = served.segments()
    return {
        "rss_mb": rss / 1e6,
        "rss_mb_by_process": {name: size / 1e6 for name, size in sorted(names.items())},
        "processes": processes,
        "files": files,
        "sockets": sockets,
        "segments": len(segments),
        "segments_mb": sum(_allocated(path) for path in segments) / 1e6,
    }


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def _allocated(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


class Sampler(threading.Thread):
    """Samples `resources` until told to end."""

    def __init__(self, served: Served) -> None:
        super().__init__(daemon=True)
        self._served = served
        self._over = threading.Event()
        self.samples: list[dict[str, Any]] = []

    def run(self) -> None:
        """Sample."""
        while not self._over.wait(SAMPLE_SECONDS):
            self.samples.append(resources(self._served))

    def end(self) -> list[dict[str, Any]]:
        """Stop; all samples."""
        self._over.set()
        self.join()
        return self.samples


def overload(options: argparse.Namespace) -> dict[str, Any]:
    """Goodput by offered rate, memory, recovery."""
    plan = small_plan("overload", ("alpha",), stage_us=OVERLOAD_STAGE_US, quick=())
    (model,) = plan.models
    with Served(plan, options.port) as served:
        path = served.write_plan(plan, "plan")
        goodput = {
            step: goodput_rps(
                Load(
                    served.state.grpc_url,
                    path,
                    f"--load-factor={step}",
                    f"--duration={STEP_SECONDS}",
                ).result(),
                STEP_SECONDS,
            )
            for step in STEPS
        }
        before, sampler = resources(served), Sampler(served)
        trace = surge(served.root / "surge.csv", model.throughput_rps, options.overload_seconds)
        sampler.start()
        duration = options.overload_seconds + AFTER_SECONDS
        loaded = Load(
            served.state.grpc_url, path, f"--arrivals={trace}", f"--duration={duration}"
        ).result()
        samples = sampler.end()
        after = resources(served)
    (row,) = loaded.summary["models"].values()
    windows = goodput_windows(loaded, options.overload_seconds)
    goodput[OVERLOAD] = float(np.mean(windows))
    peak = max(goodput.values())
    late_part = loaded.records[
        loaded.records["intended_us"] > options.overload_seconds * 1e6 + model.slo_us
    ]
    return {
        "planned_rps": model.throughput_rps,
        "slo_ms": model.slo_us / 1000,
        "goodput_rps": goodput,
        "simulated_goodput_rps": {
            step: simulated_goodput(plan, step) for step in (*STEPS, OVERLOAD)
        },
        "windows_rps": windows,
        "of_peak": goodput[OVERLOAD] / peak,
        "recovered_attainment": float((late_part["outcome"] == SERVED).mean()),
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


def goodput_rps(loaded: Loaded, seconds: float) -> float:
    """Requests served in time per second."""
    return float((loaded.records["outcome"] == SERVED).sum()) / seconds


def goodput_windows(loaded: Loaded, seconds: float) -> list[float]:
    """The same for windows of the overload, without its first second, by the instant of answers."""
    served = loaded.records[loaded.records["outcome"] == SERVED]
    width = max((seconds - 1.0) / 5, 1.0)
    edges = np.arange(1.0, seconds + 0.01, width) * 1e6
    counts, _ = np.histogram(served["done_us"], edges)
    return [float(count) / width for count in counts]


def simulated_goodput(plan: Plan, load_factor: float) -> float:
    """What the simulator serves of that load."""
    options = SimOptions(load_factor=load_factor, duration_s=20, admission=True, keep_uses=False)
    result = simulate(plan, options)
    return sum(model.served for model in result.models) / 20


def surge(path: Path, planned_rps: float, seconds: float) -> Path:
    """A trace: Poisson at 3 x the planned rate, then at 0.7 x."""
    rng = np.random.default_rng(3)
    parts = ((0.0, seconds, OVERLOAD), (seconds, AFTER_SECONDS, AFTER))
    instants = np.concatenate(
        [
            begin + np.sort(rng.uniform(0, length, rng.poisson(planned_rps * factor * length)))
            for begin, length, factor in parts
        ]
    )
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["arrival_s"])
        writer.writerows([f"{instant:.6f}"] for instant in instants)
    return path


def alternating() -> Iterator[Plan]:
    """Two plans that take turns: another cut, other vGPUs; same tensors, same answers."""
    number = 0
    while True:
        number += 1
        plan = small_plan("soak", cut=4 if number % 2 else 5)
        yield replace(plan, plan_id=f"soak-{number}")


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Plan changes under load."""
    first = small_plan("soak-0")
    slo_s = first.models[0].slo_us / 1e6
    migrations: list[Migration] = []
    with Served(first, options.port, within=options.within) as served:
        checks = [f"--check={m.name}={samples_file(served.root, m)}" for m in first.models]
        load = Load(
            served.state.grpc_url,
            served.write_plan(first, "plan"),
            f"--load-factor={SOAK}",
            f"--duration={options.soak_minutes * 60}",
            *checks,
        )
        steady = [resources(served)]
        watch, plans = Stopwatch(), alternating()
        while watch.seconds() + options.change_seconds < options.soak_minutes * 60:
            time.sleep(options.change_seconds / 2)
            migrations.append(migrate(served.folder, next(plans)))
            time.sleep(options.change_seconds / 2)
            steady.append(resources(served))
            print(_progress(migrations[-1], steady[-1]), flush=True)
        loaded = load.result()
        instance, group = (served.state.data[k] for k in ("instance", "process_group"))
        socket_folder = Path(served.state.data["socket_folder"])
    return {
        "changes": len(migrations),
        "downtime_s": [m.downtime_seconds for m in migrations],
        "downtime_target_s": slo_s + DOWNTIME_SLACK_S,
        "steps": [steps_to_dicts(m) for m in migrations],
        "attainment": loaded.attainment,
        "lowest_attainment_10_s": min(share for _, share, _ in loaded.windows(10.0)),
        "waited_longest_ms": float(loaded.waited_past_deadline_us().max()) / 1000,
        "models": {
            name: {k: v for k, v in row.items() if k != "histogram"}
            for name, row in loaded.summary["models"].items()
        },
        "messages": loaded.summary["messages"],
        "resources": steady,
        "left_over": {
            "processes": [p.pid for p in psutil.process_iter() if _lives(p, group)],
            "segments": [str(p) for p in SHARED_FOLDER.glob(f"poolpipe-{instance}-*")],
            "socket_folder": socket_folder.exists(),
        },
    }


def _lives(process: psutil.Process, group: int) -> bool:
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False


def _progress(migration: Migration, now: dict[str, Any]) -> str:
    return (
        f"{migration.plan_id}: {migration.seconds:.1f} s in all, nothing dispatched for"
        f" {migration.downtime_seconds * 1000:.0f} ms; {now['rss_mb']:.0f} MB in"
        f" {now['processes']} processes, {now['segments']} segments of {now['segments_mb']:.1f} MB,"
        f" {now['sockets']} sockets, {now['files']} files; machine load {os.getloadavg()[0]:.1f}"
    )


def overload_figures(row: dict[str, Any]) -> list[Figure]:
    """What overload leaves of goodput, memory and the time after."""
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
        Figure(name="memory before overload", value=memory["before"], unit="MB"),
        Figure(name="memory, most", value=memory["most"], unit="MB"),
        Figure(name="memory after overload", value=memory["after"], unit="MB"),
        Figure(name="waited past deadline, longest", value=row["waited_longest_ms"], unit="ms"),
        Figure(name="generator late, p99", value=row["send_lag_ms"]["p99"], unit="ms"),
    ]


def soak_figures(row: dict[str, Any]) -> list[Figure]:
    """What changes of plan under load cost, and what grows meanwhile."""
    models = row["models"].values()
    first, last = row["resources"][min(2, len(row["resources"]) - 1)], row["resources"][-1]
    left = row["left_over"]
    grown = [
        Figure(name=f"{what} more than after warm-up", value=last[what] - first[what])
        for what in ("processes", "segments", "sockets", "files")
    ]
    return [
        Figure(name="changes of plan", value=row["changes"]),
        Figure(
            name="longest downtime",
            value=max(row["downtime_s"], default=None),
            unit="s",
            most=row["downtime_target_s"],
        ),
        Figure(name="requests lost", value=sum(m["failed"] for m in models), most=0),
        Figure(name="wrong answers", value=sum(m["checked"]["wrong"] for m in models), most=0),
        Figure(name="requests dropped", value=sum(m["dropped"] for m in models)),
        Figure(name="attainment", value=row["attainment"]),
        Figure(name="attainment, lowest 10 s", value=row["lowest_attainment_10_s"]),
        Figure(
            name="memory at the end, of that after warm-up",
            value=last["rss_mb"] / first["rss_mb"],
            most=1 + MEMORY_FRACTION,
            note=f"{first['rss_mb']:.0f} -> {last['rss_mb']:.0f} MB",
        ),
        *grown,
        Figure(
            name="processes, segments and folders left over",
            value=len(left["processes"]) + len(left["segments"]) + left["socket_folder"],
            most=0,
        ),
    ]


def main() -> int:
    """Run, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--overload-seconds", type=float, default=60.0)
    add("--soak-minutes", type=float, default=4.0)
    add("--change-seconds", type=float, default=30.0)
    add("--only", choices=("overload", "soak"))
    add("--port", type=int, default=18_550)
    add("--within", type=Path, help="where the serve folder is made")
    add_destinations(parser)
    options = parser.parse_args()
    watch, result, figures = Stopwatch(), dict[str, Any](), list[Figure]()
    if options.only != "soak":
        result["overload"] = overload(options)
        figures += overload_figures(result["overload"])
    if options.only != "overload":
        result["soak"] = soak(options)
        figures += soak_figures(result["soak"])
    show(figures)
    keep(options, "soak", figures, {**result, "wall_seconds": watch.seconds()})
    return exit_code(figures)


if __name__ == "__main__":
    sys.exit(main())
