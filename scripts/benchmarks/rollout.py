"""A rollout under load: how long nothing is dispatched, what is lost, what a minute attains.

Two emulated models of two stages are offered load factor 0.8 with checked answers on the real
Triton; in the middle of the run another plan takes over, in which one model is cut elsewhere and
the other's workers go on. `--flush` lets everything in flight end first.

    .venv/bin/python scripts/benchmarks/rollout.py [--seconds 60] [--load-factor 0.8] [--out FILE]

Models that both plans have alike must not notice: none of their workers restarts, and the p99 of
the five seconds around the change lies among those of the run's other five seconds, which it is
paired with. What the benchmark itself asks and tries is done at other times, the same plan again in
a span of its own.

Lost is every request that failed or was never answered. Attainment is that of the whole run, of the
five seconds around the change, and beside them the simulator's, which changes plan under the same
arrivals.
"""

import argparse
import sys
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from flows.clock import Stopwatch
from flows.release.rollout.change import change_plan, steps_to_dicts
from flows.release.rollout.guarded import roll_out
from flows.release.rollout.options import RolloutMode, RolloutOptions
from flows.state import ProjectState
from flows.workspace import Workspace
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.served import (
    AROUND_S,
    Load,
    Loaded,
    Served,
    samples_file,
    small_plan,
)
from triton_backend.contract.plan import Plan, Slot
from triton_backend.contract.units import US_PER_MS, s_to_us, us_to_s
from triton_backend.serve_folder.repository import node_model, read_workers, used_nodes
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import PlanChange, SimOptions

SLACK_S, GAP_SLACK_S = 0.05, 0.01
EQUAL_S, EQUAL_TIMES = 0.05, 5
ATTAINED = 0.99


def rollout(options: argparse.Namespace) -> dict[str, Any]:
    """One run with a change of plan in its middle."""
    old, new = small_plan("old"), small_plan("new", cuts={"beta": 4})
    with Served(old, options.port) as served:
        before = worker_processes(served, old)
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
        how = RolloutOptions(way=RolloutMode.FLUSH if options.flush else RolloutMode.IN_PLACE)
        change = change_plan(served.folder, new, options=how)
        changed_us = time.monotonic_ns() // 1000
        time.sleep(2 * AROUND_S)  # the rest is no part of the change
        again_s = roll_out_again(served, new)
        loaded = load.result()
        after = worker_processes(served, new)
        workers = read_workers(served.folder, change.generation)
        (gaps,) = served.dispatch_gaps()
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
    kept = unchanged(old, new)
    by_span_ms = p99_ms(loaded, changed_us - loaded.started_us, kept)
    changed_ms, again_ms = by_span_ms.pop(0), by_span_ms.pop(1)
    return {
        "unchanged": sorted(kept.values()),
        "started_anew": sorted(
            key for key, pid in before.items() if key[0] in kept.values() and after.get(key) != pid
        ),
        "quiet_p99_ms": list(by_span_ms.values()),
        "changed_p99_ms": changed_ms,
        "again_p99_ms": again_ms,
        "slo_s": us_to_s(old.models[0].slo_us),
        "gap_before_s": gaps.before_s,
        "gap_s": gaps.around_s,
        "again_s": again_s,
        "inherited": sum(origin.generation < change.generation for origin in workers.origins),
        "workers": len(workers.origins),
        "steps": steps_to_dicts(change),
        "lost": sum(row["failed"] for row in models),
        "wrong": sum(row["checked"]["wrong"] for row in models),
        "dropped": sum(row["dropped"] for row in models),
        "late": sum(row["late"] for row in models),
        "offered": sum(row["offered"] for row in models),
        "attainment": loaded.attainment,
        "attainment_around": loaded.around([changed_us - loaded.started_us], AROUND_S),
        "simulated_attainment": simulated.attainment,
        "messages": loaded.summary["messages"],
        "send_lag_ms": loaded.summary["send_lag_ms"],
    }


def unchanged(old: Plan, new: Plan) -> dict[int, str]:
    """Names, by their number in the old plan, of models that both plans have alike."""
    return {n: m.name for n, m in enumerate(old.models) if m in new.models}


def worker_processes(served: Served, plan: Plan) -> dict[tuple[str, Slot], int]:
    """The process of every vGPU by each model that it runs and the place where it sits."""
    found: dict[int, int] = {}
    for node in used_nodes(plan):
        said = served.state.ask(node_model(node), {})["workers"]
        found |= {worker["vgpu"]: worker["pid"] for worker in said}
    models: dict[str, set[str]] = {}
    for model in plan.models:
        for pipeline in model.pipelines:
            for stage in pipeline.stages:
                models.setdefault(stage.pool, set()).add(model.name)
    return {
        (model, vgpu.slot): found[vgpu.index]
        for vgpu in plan.vgpus()
        for model in models[plan.pools[vgpu.pool].name]
    }


def p99_ms(loaded: Loaded, changed_us: int, models: Iterable[int]) -> dict[int, float]:
    """Latencies (p99) of models in spans of `2 * AROUND_S`.

    Number 0 has the change in its middle.
    """
    rows = loaded.records[np.isin(loaded.records["model"], list(models))]
    span_us = s_to_us(2 * AROUND_S)
    at = (rows["intended_us"] - changed_us + span_us // 2) // span_us
    latency_ms = (rows["done_us"] - rows["intended_us"]) / US_PER_MS
    whole = range(int(at.min()) + 1, int(at.max()))  # the first and the last are cut short
    return {n: float(np.percentile(latency_ms[at == n], 99)) for n in whole}


def roll_out_again(served: Served, plan: Plan) -> float:
    """Seconds that the command takes where its plan is in force already.

    No process starts or ends.
    """
    home = served.root
    work = Workspace(state=ProjectState(home=home), warehouse=home / "w.duckdb")
    with work.open():
        pass  # a project has its warehouse already
    took: list[float] = []
    for _ in range(EQUAL_TIMES):
        watch = Stopwatch()
        done = roll_out(work, plan, RolloutOptions())
        took.append(watch.seconds())
        assert done.rollout_id is None
    return max(took)


def figures(row: dict[str, Any], options: argparse.Namespace) -> list[Figure]:
    """Targets."""
    span = f"attainment over {options.seconds:g} s at load {options.load_factor:g}"
    return [
        Figure(
            name="longest time without a dispatch around the change",
            value=row["gap_s"],
            unit="s",
            most=row["slo_s"] + SLACK_S if options.flush else row["gap_before_s"] + GAP_SLACK_S,
            note=f"before it {row['gap_before_s']:.3f} s; SLO {row['slo_s']:g} s",
        ),
        Figure(
            name="the same plan again, from command to done, the longest of five",
            value=row["again_s"],
            unit="s",
            most=EQUAL_S,
        ),
        Figure(
            name="workers of unchanged models that restarted",
            value=len(row["started_anew"]),
            most=0,
            note=f"models {', '.join(row['unchanged'])}",
        ),
        Figure(
            name=f"their p99 in the {2 * AROUND_S:g} s around the change",
            value=row["changed_p99_ms"],
            unit="ms",
            most=max(row["quiet_p99_ms"]),
            note=f"in the others {min(row['quiet_p99_ms']):.1f} to "
            f"{max(row['quiet_p99_ms']):.1f} ms",
        ),
        Figure(
            name="their p99 in the span in which the same plan comes again, five times",
            value=row["again_p99_ms"],
            unit="ms",
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
    return conclude(options, "rollout", measured, {**row, "wall_seconds": watch.seconds()})


if __name__ == "__main__":
    sys.exit(main())
