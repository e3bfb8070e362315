"""Mixes of the gpulets paper behind a real Triton server, measured beside the simulator.

Every mix is planned exactly and served by emulated parts of GPUs that slow each other down as those
that really run there do (`overlap`), in slow motion: so that the mix asks for `--rps` requests/s.
Tensors are small: what is measured is when batches run, not what this machine's network carries. A
run of few SLOs is no test: no backlog has time to grow (`--rps` and `--seconds` say how many it
has). `loads` offers shares of the planned rates as Poisson arrivals; `crowd` has one model offer
three times its planned rate, evenly, while the others offer theirs; `wave` changes plan every
period while the load rises and falls twice.

    .venv/bin/python scripts/paper/gpulets/served.py --data DIR [--only loads,crowd,wave]
        [--mixes scen1 game]
        [--loads 0.5 0.8 0.95] [--seconds 45] [--rps 150] [--out FILE]
"""

import argparse
import csv
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.operations.replanning.autoscale import Follower, follow_live, follow_simulated
from flows.planning import PlanOptions, make_plan
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.scheduling.followed import Rolled
from scripts.benchmarks.served import Load, Loaded, Served
from scripts.paper.gpulets.mixes import (
    GPU,
    Profiles,
    cluster,
    constants,
    mix,
    profiles_of,
    workloads,
)
from scripts.paper.gpulets.wave_plans import wave_of
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.workload import Workload
from triton_backend.runtimes.stage_tensors import complete_tensors
from triton_backend.scheduler.policies.demand import Sizing
from triton_backend.serve_folder.settings import OVERLAP, ServeOptions
from triton_backend.simulator.offered import Instant
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

TARGET_POINTS = 2.0
CROWD, KEPT = 3.0, 99.0  # times its planned rate; what the others keep (%)

Instants = Mapping[str, NDArray[np.int64]]


def slowed(profile: ModelProfile, slow: float) -> ModelProfile:
    """A profile in slow motion: pressures on neighbours stay."""
    tables = {
        key: replace(table, latency_us=table.latency_us * slow)
        for key, table in profile.tables.items()
    }
    return replace(profile, tables=tables)


def problem(name: str, slow: float, data: Path) -> tuple[Profiles, Workload]:
    """A mix in slow motion."""
    used, asked = mix(profiles_of(data), workloads(data)[name])
    models = tuple(replace(m, slo_us=round(m.slo_us * slow)) for m in asked.models)
    return {n: slowed(p, slow) for n, p in used.items()}, Workload(models=models)


def planned(name: str, slow: float, options: argparse.Namespace) -> Plan:
    """The exact plan of a mix, in slow motion."""
    used, wanted = problem(name, slow, options.data)
    asked = PlanOptions(planner="gpulets", time_limit_s=options.plan_seconds)
    known = {GPU: constants(options.data)}
    return make_plan(used, cluster(options.gpus), wanted, asked, interference=known)


def slow_motion(name: str, options: argparse.Namespace) -> float:
    """The factor at which a mix asks for so many requests/s."""
    total_rps = sum(m.throughput_rps for m in planned(name, 1.0, options).models)
    return max(1.0, total_rps / options.rps)


def simulated(plan: Plan, options: argparse.Namespace, **how: Any) -> SimResult:
    """Simulated results; SLOs are less the gateway's guard."""
    guard_us = ServeOptions(guard_fraction=options.guard).guard_us
    kept = tuple(replace(m, slo_us=m.slo_us - guard_us(m.slo_us)) for m in plan.models)
    run = SimOptions(
        duration_s=options.seconds, seed=options.seed, admission=True, interference=OVERLAP, **how
    )
    return simulate(replace(plan, models=kept), run)


def loads(served: Served, name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Shares of the planned rates."""
    path = served.write_plan(served.plan, "reference")
    for load_factor in options.loads:
        found = Load(
            served.state.grpc_url,
            path,
            f"--load-factor={load_factor}",
            f"--duration={options.seconds}",
            f"--seed={options.seed}",
            "--give-up-s=1",
        ).result()
        expected = simulated(served.plan, options, load_factor=load_factor)
        yield {
            "what": "load",
            "mix": name,
            "load_factor": load_factor,
            "slos": options.seconds * 1e6 / max(m.slo_us for m in served.plan.models),
            "measured": 100 * found.attainment,
            "simulated": 100 * expected.attainment,
            **ends(found),
        }


def ends(found: Loaded) -> dict[str, Any]:
    """How requests ended, and how busy this machine was."""
    rows = found.summary["models"].values()
    counts = {name: sum(row[name] for row in rows) for name in ("offered", "late", "failed")}
    return {**counts, "load_average": os.getloadavg()[0]}


def evenly(plan: Plan, crowd: str | None, seconds: float) -> Instants:
    """Every model at its planned rate, one at three times that."""
    return {
        m.name: np.arange(
            0, seconds * 1e6, 1e6 / m.throughput_rps / (CROWD if m.name == crowd else 1)
        ).astype(np.int64)
        for m in plan.models
    }


def write_trace(path: Path, instants: Instants) -> Path:
    """Instants by model as a trace for the load generator."""
    rows = sorted((at / 1e6, name) for name, own in instants.items() for at in own.tolist())
    with path.open("w", newline="") as lines:
        csv.writer(lines).writerows([("arrival_s", "model"), *rows])
    return path


def crowd(served: Served, name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One model at three times its planned rate.

    The one that harms the others most in the simulator.
    """
    plan = served.plan
    worst: dict[str | None, float] = {}
    for one in (None, *(m.name for m in plan.models)):
        instants = Instant(by_model=evenly(plan, one, options.seconds))
        rows = simulated(plan, options, arrivals=instants).models
        worst[one] = min(m.attainment for m in rows if m.name != one)
    quiet = worst.pop(None)
    crowded = min(worst, key=lambda one: worst[one])
    trace = write_trace(served.root / "crowd.csv", evenly(plan, crowded, options.seconds))
    found = Load(
        served.state.grpc_url,
        served.write_plan(plan, "reference"),
        f"--arrivals={trace}",
        "--trace-model=model",
        f"--duration={options.seconds}",
        "--give-up-s=1",
    ).result()
    rows = found.summary["models"].items()
    yield {
        "what": "crowd",
        "mix": name,
        "crowded": crowded,
        "measured": 100 * min(row["attainment"] for other, row in rows if other != crowded),
        "simulated": 100 * worst[crowded],
        "quiet": 100 * quiet,
        **ends(found),
    }


def wave(options: argparse.Namespace) -> dict[str, Any]:
    """Plans that follow the load every period, served; and the same simulated."""
    seconds, name = options.wave_seconds, options.wave_mix
    own = PlanOptions(planner="gpulets", time_limit_s=options.plan_seconds)
    slow = slow_motion(name, options)
    found = wave_of(
        *problem(name, slow, options.data),
        cluster(options.gpus),
        {GPU: constants(options.data)},
        seconds,
        own,
    )
    serve = ServeOptions(guard_fraction=options.guard, interference=OVERLAP)
    sizing = Sizing().slowed(slow)
    with Served(complete_tensors(found.first), options.port, serve) as served:
        system = Rolled(served)
        load = Load(
            served.state.grpc_url,
            served.write_plan(served.plan, "reference"),
            f"--arrivals={write_trace(served.root / 'wave.csv', found.instants)}",
            "--trace-model=model",
            f"--duration={seconds}",
            "--give-up-s=2",
        )
        follow_live(
            Follower.of(found.planner, found.first, sizing),
            system,
            options.period,
            lambda text: print(text, file=sys.stderr, flush=True),
            follower_of=lambda plan: Follower.of(found.planner, plan, sizing),
            periods=max(1, int(seconds // options.period) - 1),
        )
        loaded = load.result()
        changed_us, _ = served.changes_and_dispatches()
    instants_us = [at - loaded.started_us for at in changed_us]
    slos = [m.slo_us for m in served.plan.models]
    run = SimOptions(
        arrivals=Instant(by_model=found.instants),
        duration_s=seconds,
        interference=OVERLAP,
        keep_uses=False,
    )
    expected = follow_simulated(
        Follower.of(found.planner, found.first, sizing), run, options.period, lambda _: None
    )
    return {
        "what": "wave",
        "mix": name,
        "slow": slow,
        "measured": 100 * loaded.attainment,
        "simulated": 100 * expected.attainment,
        "around": 100 * loaded.around(instants_us, 1.0, int(np.argmin(slos))),
        "changes": len(changed_us),
        "gpus": system.mean_gpus(seconds),
        "peak_gpus": sum(found.peak.gpus_used.values()),
        **ends(loaded),
    }


def points(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every mix, served once."""
    kinds = [kind for word, kind in (("loads", loads), ("crowd", crowd)) if word in options.only]
    for name in options.mixes if kinds else ():
        plan = complete_tensors(planned(name, slow_motion(name, options), options))
        serve = ServeOptions(guard_fraction=options.guard, interference=OVERLAP)
        with Served(plan, options.port, serve) as served:
            for kind in kinds:
                for row in kind(served, name, options):
                    print(row, file=sys.stderr, flush=True)
                    yield row
    if "wave" in options.only:
        row = wave(options)
        print(row, file=sys.stderr, flush=True)
        yield row


def figures_of(rows: list[dict[str, Any]]) -> list[Figure]:
    """How far each point lies from the simulator's, and what others keep beside a crowd."""
    found: list[Figure] = []
    for row in rows:
        note = f"measured {row['measured']:.2f} %, {row['late']} late of {row['offered']}"
        note += f", machine load {row['load_average']:.1f}"
        if row["what"] == "wave":
            found += wave_figures(row, note)
            continue
        if row["what"] == "crowd":
            where = f"{row['mix']}, {row['crowded']} at {CROWD:g}x: the worst other"
            note = f"simulated {row['simulated']:.2f} %, {row['quiet']:.2f} % while none is"
            kept = Figure(name=where, value=row["measured"], unit="%", least=KEPT, note=note)
            found.append(kept)
            continue
        note += f"; {row['slos']:.0f} of the longest SLO"
        found.append(
            Figure(
                name=f"{row['mix']} at load {row['load_factor']}: attainment less simulated",
                value=row["measured"] - row["simulated"],
                unit="points",
                least=-TARGET_POINTS,
                most=TARGET_POINTS,
                note=note,
            )
        )
    return found


def wave_figures(row: dict[str, Any], note: str) -> list[Figure]:
    """Attainment and GPUs of plans that follow the load."""
    where = f"wave of {row['mix']}, {row['changes']} changes"
    simulated = f"simulated {row['simulated']:.2f} %; {note}"
    return [
        Figure(
            name=f"{where}: attainment", value=row["measured"], unit="%", least=KEPT, note=simulated
        ),
        Figure(name=f"{where}: requests lost", value=row["failed"], most=0),
        Figure(
            name=f"{where}: the shortest SLO within 1 s of a change",
            value=row["around"],
            unit="%",
            least=KEPT,
        ),
        Figure(
            name=f"{where}: mean GPUs",
            value=row["gpus"],
            most=row["peak_gpus"] - 1e-9,
            note=f"the plan for the peak has {row['peak_gpus']}, {row['slow']:.0f} times slower",
        ),
    ]


def main() -> int:
    """Run, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="DIR")
    add("--only", default="loads,crowd")
    add(
        "--mixes",
        nargs="+",
        default=["scen1", "scen2", "scen3", "scen4", "scen5", "game", "traffic"],
    )
    add("--loads", nargs="+", type=float, default=[0.5, 0.8, 0.95])
    add("--seconds", type=float, default=45.0)
    add("--wave-mix", default="scen5")
    add("--wave-seconds", type=int, default=900)
    add("--period", type=float, default=20.0, help="seconds between two plans of the wave")
    add("--plan-seconds", type=float, default=10.0, help="of planning a mix")
    add("--gpus", type=int, default=4)
    add("--rps", type=float, default=150.0, help="requests/s that a mix is slowed down to")
    add("--guard", type=float, default=0.05)
    add("--seed", type=int, default=0)
    add("--port", type=int, default=18_760)
    add_destinations(parser)
    options = parser.parse_args()
    rows = list(points(options))
    return conclude(options, "gpulets served", figures_of(rows), {"rows": rows})


if __name__ == "__main__":
    sys.exit(main())
