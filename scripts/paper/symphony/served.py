"""Sub-clusters of the Symphony paper behind a real Triton server, measured beside the simulator.

Published profiles in slow motion (`--slow`): all times are that many times longer. Plans are made
by `subclusters`, vGPUs are emulated, tensors small. Two plans: ResNet50 of table 2 on 8 vGPUs; six
A100 models, whose beta / alpha range from 195 to 3, on 4 vGPUs.

    loads   both at shares of the planned rate: attainment, mean batch, idle, less the simulator's
    guard   the first at its whole rate: the guard measured by the fronts beside a fixed tenth of
            the SLO, in turns, each after a while at a lower rate (512 batches are needed to
            measure it)
    killed  the second while a worker is killed, for `--away` seconds as often as it comes back.
            The simulator has the same losses, at the instants at which the gateway had them.
            Requests that were due at other times show what the machine costs
    moved   the six in two sub-clusters of 2 vGPUs, each of which gives the other a model under load

    .venv/bin/python scripts/paper/symphony/served.py --data DIR [--only loads,guard,killed,moved]
        [--plans resnet50 six]
        [--loads 0.5 0.8 0.95] [--seconds 30] [--slow 10] [--out FILE]
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.release.rollout.change import change_plan
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.served import SERVED, Load, Loaded, Served, samples_file
from scripts.benchmarks.shared_pools import Row, measured, simulated
from scripts.benchmarks.shared_pools import figures_of as figures_of_loads
from scripts.faults.injection import worker
from scripts.paper.symphony.study import Row as Profile
from scripts.paper.symphony.study import plan_of, rows_of, table_2_rows
from triton_backend.contract.decisions import Dispatch, Drop, DropReason
from triton_backend.contract.events import WorkerBack, WorkerLost
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import s_to_us, us_to_s
from triton_backend.runtimes.clock import SystemClock
from triton_backend.runtimes.stage_tensors import complete_tensors
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.simulator.failures import Failure

SIX = (
    "DenseNet121",
    "ResNet50",
    "InceptionResNetV2",
    "InceptionV3",
    "MobileNetV2",
    "EfficientNetB3",
)
PAPER = {"dispatch": "deferred"}  # its own rule
PLANS = {"resnet50": 8, "six": 4}  # and their vGPUs
MOVED_GPUS = 4
GUARDS = {"measured": None, "a tenth of the SLO": 0.1}
KILL_EVERY_S = 0.05
LOOKED_S = 3.0  # after a kill, for models that run elsewhere
SETTLES_S = 1.0  # after a worker is back
FAULT_LOAD = 0.6
KILLED = 0  # the vGPU that late binding takes first
AROUND_S = 2.5
WRITTEN_S = 1.0  # the event files are written four times a second
GAP_SLACK_S = 0.05
ATTAINED = 0.02  # below the simulator's


def profiles(name: str, options: argparse.Namespace) -> list[Profile]:
    """Models of a plan, in slow motion."""
    if name == "resnet50":
        chosen = [table_2_rows(options.data)["ResNet50"]]
    else:
        known = {row.name: row for row in rows_of(options.data / "profiles_A100.csv")}
        chosen = [known[each] for each in SIX]
    return [
        Profile(
            row.name,
            row.alpha_us * options.slow,
            row.beta_us * options.slow,
            round(row.slo_us * options.slow),
        )
        for row in chosen
    ]


def planned(name: str, options: argparse.Namespace) -> Plan:
    """A plan of `PLANS`, with small tensors."""
    return complete_tensors(plan_of(profiles(name, options), PLANS[name], own=PAPER))


def checks_of(served: Served) -> dict[str, Path]:
    """Samples with their answers, by model."""
    return {model.name: samples_file(served.root, model) for model in served.plan.models}


def report(what: str, found: Mapping[str, Any]) -> None:
    """Say at once what was found."""
    print(what, dict(found), file=sys.stderr, flush=True)


def loads(options: argparse.Namespace) -> list[Figure]:
    """Both plans at shares of their rates."""
    return figures_of_loads(list(points(options)))


def points(options: argparse.Namespace) -> Iterator[Row]:
    """Every plan at every load."""
    for name in options.plans:
        plan = planned(name, options)
        with Served(plan, options.port, ServeOptions(guard_fraction=options.guard)) as served:
            checks = checks_of(served)
            for load_factor in options.loads:
                row = Row(
                    where=f"{name} at load {load_factor}",
                    measured=measured(served, load_factor, checks, options),
                    simulated=simulated(plan, load_factor, options),
                    load_average=os.getloadavg()[0],
                )
                report("loads", row)
                yield row


def guard(options: argparse.Namespace) -> list[Figure]:
    """Attainment with either guard at the rate and a tenth more, by paired rounds."""
    plan = planned("resnet50", options)
    warming = argparse.Namespace(**vars(options) | {"seconds": options.warm_seconds})
    found: dict[tuple[str, float], list[dict[str, float]]] = {}
    for _ in range(options.guard_rounds):
        for name, fraction in GUARDS.items():
            with Served(plan, options.port, ServeOptions(guard_fraction=fraction)) as served:
                measured(served, 0.8, {}, warming)  # until the guard is known
                for load_factor in options.guard_loads:
                    row = measured(served, load_factor, {}, options)
                    row["guard_ms"] = 1e3 * max(served.metric("poolpipe_guard_seconds").values())
                    report(f"guard, {name}, load {load_factor}", row)
                    found.setdefault((name, load_factor), []).append(row)
    return [
        Figure(
            name=f"ResNet50 at load {load_factor}, guard {name}: attained",
            value=float(np.mean([100 * row["attainment"] for row in rows])),
            unit="%",
            note=f"{spread(rows)}; machine load {os.getloadavg()[0]:.1f}",
        )
        for (name, load_factor), rows in found.items()
    ]


def spread(rows: list[dict[str, float]]) -> str:
    """Values beside the attainment of every run."""

    def each(name: str, form: str) -> str:
        return ", ".join(format(row[name], form) for row in rows)

    return (
        f"runs {each('attainment', '.2%')}; guards {each('guard_ms', '.1f')} ms; "
        f"mean batches {each('mean_batch', '.1f')}; late {each('late', '.0f')}"
    )


def under_load(served: Served, options: argparse.Namespace, act: Callable[[], None]) -> Loaded:
    """Offer a plan part of its rate, and do something in the middle."""
    load = Load(
        served.state.grpc_url,
        served.write_plan(served.plan, "reference"),
        f"--load-factor={FAULT_LOAD}",
        f"--duration={options.seconds}",
        f"--seed={options.seed}",
        "--give-up-s=2",
        *(f"--check={name}={path}" for name, path in checks_of(served).items()),
    )
    time.sleep(options.seconds / 2)
    act()
    loaded = load.result()
    time.sleep(WRITTEN_S)
    return loaded


def count(loaded: Loaded, outcome: str) -> int:
    """Requests of all models that ended so."""
    return sum(row[outcome] for row in loaded.summary["models"].values())


def wrong(loaded: Loaded) -> int:
    """Answers that were not the request's."""
    return sum(row["checked"]["wrong"] for row in loaded.summary["models"].values())


def killed(options: argparse.Namespace) -> list[Figure]:
    """A worker away for a while: its models run on the vGPUs beside it."""
    plan = planned("six", options)

    def kill() -> None:
        until_us = SystemClock().now_us() + s_to_us(options.away)
        while SystemClock().now_us() < until_us:
            with contextlib.suppress(RuntimeError):  # it has no worker at this moment
                worker(served, KILLED).kill()
            time.sleep(KILL_EVERY_S)

    with Served(plan, options.port, ServeOptions(guard_fraction=options.guard)) as served:
        loaded = under_load(served, options, kill)
        sent = dispatches(served)
        away = losses(served, loaded)
        unanswered = count(loaded, "failed") - worker_died(served)
    begin_s, end_s = away[0].start_s, away[-1].end_s or options.seconds
    expected = simulated(plan, FAULT_LOAD, options, failures=away)
    undisturbed = simulated(plan, FAULT_LOAD, options)
    elsewhere = {
        decision.model
        for at_us, decision in sent
        if begin_s < us_to_s(at_us - loaded.started_us) < max(end_s, begin_s + LOOKED_S)
        and decision.hops[0].vgpu != KILLED
    }
    due_us, slo_us = loaded.records["intended_us"], max(model.slo_us for model in plan.models)
    near = (due_us > s_to_us(begin_s) - slo_us) & (due_us < s_to_us(end_s + SETTLES_S))
    good = loaded.records["outcome"] == SERVED
    note = f"{len(loaded.records)} requests, machine load {os.getloadavg()[0]:.1f}"
    refused = count(loaded, "failed") - unanswered
    return [
        Figure(
            name="a worker killed: models that ran elsewhere",
            value=len(elsewhere),
            least=len(plan.models),
            note=f"{note}; lost {len(away)} times within {end_s - begin_s:.1f} s",
        ),
        Figure(name="a worker killed: wrong answers", value=wrong(loaded), most=0),
        Figure(
            name="a worker killed: requests without an answer",
            value=unanswered,
            most=0,
            note=f"{refused} were answered at once that their worker had died and a retry "
            "would be late",
        ),
        Figure(
            name="a worker killed: attainment less simulated",
            value=100 * (loaded.attainment - expected["attainment"]),
            unit="points",
            least=-100 * ATTAINED,
            note=f"measured {loaded.attainment:.2%}, simulated {expected['attainment']:.2%}, "
            f"without the loss {undisturbed['attainment']:.2%}",
        ),
        Figure(
            name="a worker killed: attained of requests due around it",
            value=100 * float(good[near].mean()),
            unit="%",
            note=f"of {near.sum()}; of the others {good[~near].mean():.2%}",
        ),
    ]


def worker_died(served: Served) -> int:
    """Requests that were refused because their worker had died, as the event files tell."""
    drops = (item for _, item in served.events() if isinstance(item, Drop))
    return sum(item.reason is DropReason.WORKER_LOST for item in drops)


def losses(served: Served, loaded: Loaded) -> tuple[Failure, ...]:
    """When the killed worker was lost and back, in seconds of the load, as the event files tell."""
    found: list[Failure] = []
    lost_s: float | None = None
    for at_us, item in served.events():
        at_s = us_to_s(at_us - loaded.started_us)
        if at_s < 0 or getattr(item, "vgpu", None) != KILLED:
            continue
        if isinstance(item, WorkerLost):
            lost_s = at_s
        elif isinstance(item, WorkerBack) and lost_s is not None:
            found.append(Failure(start_s=lost_s, end_s=at_s, vgpu=KILLED))
            lost_s = None
    if lost_s is not None:
        found.append(Failure(start_s=lost_s, vgpu=KILLED))
    return tuple(found)


def moved(options: argparse.Namespace) -> list[Figure]:
    """Two sub-clusters exchange a model under load; the others go on."""
    before = complete_tensors(
        plan_of(profiles("six", options), MOVED_GPUS, own={**PAPER, "subclusters": "2"})
    )
    after, names = exchanged(before)
    changed_us = [0, 0]

    def change() -> None:
        changed_us[0] = SystemClock().now_us()
        change_plan(served.folder, after)
        changed_us[1] = SystemClock().now_us()

    with Served(before, options.port, ServeOptions(guard_fraction=options.guard)) as served:
        loaded = under_load(served, options, change)
        sent = dispatches(served)
        ((swapped_us, *_), _) = served.changes_and_dispatches()
    staying = [n for n, model in enumerate(before.models) if model.name not in names]
    note = f"{', '.join(names)} of {len(before.models)}; machine load {os.getloadavg()[0]:.1f}"
    took_s = us_to_s(changed_us[1] - changed_us[0])
    figures = [
        Figure(name="2 of 6 models moved: requests lost", value=count(loaded, "failed"), most=0),
        Figure(name="2 of 6 models moved: wrong answers", value=wrong(loaded), most=0),
        Figure(name="2 of 6 models moved: the change took", value=took_s, unit="s", note=note),
        Figure(
            name="2 of 6 models moved: attained, of 5 s around the change",
            value=100 * loaded.around([swapped_us - loaded.started_us], AROUND_S),
            unit="%",
            note=f"of the run {loaded.attainment:.2%}",
        ),
    ]
    at_us = np.sort([at for at, decision in sent if decision.model in staying])
    around, otherwise = longest_gaps_s(at_us, changed_us[0], changed_us[1])
    figures.append(
        Figure(
            name="2 of 6 models moved: longest time without a dispatch of the other four around it",
            value=around,
            unit="s",
            most=otherwise + GAP_SLACK_S,
            note=f"at other times {otherwise:.3f} s",
        )
    )
    return figures


def exchanged(plan: Plan) -> tuple[Plan, tuple[str, str]]:
    """The plan with one model of either sub-cluster in the other one, and those models.

    Those two that are most alike in what they ask for, so that both sub-clusters still carry
    theirs.
    """
    by_pool: dict[str, list[int]] = {}
    for number, model in enumerate(plan.models):
        by_pool.setdefault(model.pipelines[0].stages[0].pool, []).append(number)
    (first, these), (second, those) = by_pool.items()
    a, b = min(
        ((a, b) for a in these for b in those),
        key=lambda pair: abs(vgpus_asked(plan, pair[0]) - vgpus_asked(plan, pair[1])),
    )
    models = list(plan.models)
    for number, pool in ((a, second), (b, first)):
        (pipeline,) = models[number].pipelines
        (stage,) = pipeline.stages
        there = replace(pipeline, stages=(replace(stage, pool=pool),))
        models[number] = replace(models[number], pipelines=(there,))
    names = (models[a].name, models[b].name)
    return replace(plan, plan_id=f"{plan.plan_id}-moved", models=tuple(models)), names


def vgpus_asked(plan: Plan, model: int) -> float:
    """vGPUs that a model keeps busy at its planned rate."""
    (pipeline,) = plan.models[model].pipelines
    return pipeline.throughput_rps * pipeline.latency_us / pipeline.batch / 1e6


def dispatches(served: Served) -> list[tuple[int, Dispatch]]:
    """Instants and dispatches, as the gateway's event files tell."""
    return [(at_us, item) for at_us, item in served.events() if isinstance(item, Dispatch)]


def longest_gaps_s(at_us: NDArray[np.int64], begin_us: int, end_us: int) -> tuple[float, float]:
    """The longest times from one dispatch to the next: those that touch a span, all others."""
    gaps = np.diff(at_us)
    touches = (at_us[1:] > begin_us) & (at_us[:-1] < end_us)
    return (
        us_to_s(int(gaps[touches].max(initial=0))),
        us_to_s(int(gaps[~touches].max(initial=0))),
    )


PARTS: dict[str, Callable[[argparse.Namespace], Iterable[Figure]]] = {
    "loads": loads,
    "guard": guard,
    "killed": killed,
    "moved": moved,
}


def main() -> int:
    """Run, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="DIR")
    add("--only", default=",".join(PARTS), metavar="NAME,NAME")
    add("--plans", nargs="+", choices=tuple(PLANS), default=list(PLANS))
    add("--loads", nargs="+", type=float, default=[0.5, 0.8, 0.95])
    add("--guard-loads", nargs="+", type=float, default=[1.0, 1.1])
    add("--away", type=float, default=0.01, help="seconds for which a worker is killed again")
    add("--guard-rounds", type=int, default=2)
    add("--warm-seconds", type=float, default=40.0, help="before the guard counts")
    add("--seconds", type=float, default=30.0)
    add("--slow", type=float, default=10.0, help="times as long as published")
    add("--guard", type=float, default=0.1, help="part of an SLO that is kept back")
    add("--seed", type=int, default=1)
    add("--port", type=int, default=18_790)
    add_destinations(parser)
    options = parser.parse_args()
    unknown = sorted(set(options.only.split(",")) - set(PARTS))
    if unknown:
        parser.error(f"--only: {unknown[0]!r} is none of {', '.join(PARTS)}")
    found = [figure for name in options.only.split(",") for figure in PARTS[name](options)]
    return conclude(options, "symphony served", found, {})


if __name__ == "__main__":
    sys.exit(main())
