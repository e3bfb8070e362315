"""Figures of the gpulets paper that tables of others allow, beside what it states.

    .venv/bin/python scripts/paper/gpulets/study.py --data DIR
        [--only fit,workloads,sizes,wave,overload,scenarios] [--gpus 4]
        [--scale 1] [--seconds 600] [--out FILE] [--warehouse FILE]

`mixes.py` says what `--data` holds. Plans keep a tenth of every SLO free.

`workloads` seeks the highest rate of seven mixes by every planner and simulates it; `scenarios`
decides which of the 19,682 mixes of nine models at 0, 100 or 200 requests/s fit the GPUs: a plan
settles all mixes of no more, a proof all of no less. `sizes` plans nine models of equal rates on 4,
100 and 1,000 GPUs in 10 and 20 s. `wave` plans a mix again every 20 s while its load rises and
falls twice; `overload` has one model offer three times its rate, by plans of 10 s.
"""

import argparse
import csv
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flows.clock import Stopwatch
from flows.operations.replanning.autoscale import Follower, follow_simulated
from flows.planning import PlanOptions, make_plan
from flows.planning.gpulets.master import Goal, Master
from flows.planning.gpulets.tables import Tables as Problem
from flows.planning.gpulets.tables import read_tables
from flows.planning.papers.gpulets.greedy import RULES, Greedy, placed
from flows.planning.registry import Inputs
from flows.planning.verify.numbers import verify_plan
from flows.planning.watch import Watch
from flows.preparation.interference.fit import fit
from flows.preparation.interference.tables import pair_rows
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.paper.gpulets.mixes import (
    GPU,
    Profiles,
    cluster,
    constants,
    mix,
    profiles_of,
    published,
    workloads,
)
from scripts.paper.gpulets.wave_plans import wave_of
from triton_backend.contract.plan import ModelPlan, Plan
from triton_backend.contract.profiles import InterferenceModel
from triton_backend.contract.workload import ModelDemand, Workload
from triton_backend.simulator.goodput import find_goodput
from triton_backend.simulator.offered import Instant
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

SEEDS = 20
RATES = (0.0, 100.0, 200.0)
OVERLOAD_PLAN_S = 10.0  # of a plan: what it lacks of the best one makes no model late
TRIED = 60  # scenarios looked at for the one that settles most
BASELINES = ("ideal-static", "gpulets-greedy", "sbp", "best-fit")
COMPARED = ("gpulets-greedy", "sbp", "best-fit")  # the paper's own, time sharing, best fit
LOADS = (0.8, 0.95)
SIMULATED_S = 20.0
SIZES = ((4, 10.0, 1.0), (100, 20.0, 0.2), (1_000, 20.0, 0.1))  # GPUs, seconds, gap asked for (%)
WAVE_MIX, WAVE_S = "scen2", 3_200


def fit_figures(data: Path) -> list[Figure]:
    """How well the interference model predicts pairs it has not seen."""
    figures: list[Figure] = []
    for stem, aims in (("igniter_v100", (5.9, 6.7)), ("wlgur", (None, None))):
        tables = published(data, stem)
        rows, _ = pair_rows(tables.pairs, tables.profiles, tables.pairs[0].gpu_class)
        reports = [fit(rows, seed) for seed in range(SEEDS)]
        for what, aim in zip(("p90", "p95"), aims, strict=True):
            mean = 100 * float(np.mean([getattr(r.linear, what) for r in reports]))
            flat = 100 * float(np.mean([getattr(r.constant, what) for r in reports]))
            note = f"constant {flat:.2f}; {len(rows.slowdown)} rows, mean of {SEEDS} splits"
            name = f"interference error {what}, {stem}"
            figures.append(Figure(name=name, value=mean, unit="%", most=aim, note=note))
        refused = sum(r.refused for r in reports)
        name = f"splits on which the linear model is refused, {stem}"
        least, most = (SEEDS, None) if stem == "wlgur" else (None, 0)
        figures.append(Figure(name=name, value=refused, least=least, most=most))
    return figures


def workload_figures(data: Path, gpus: int) -> list[Figure]:
    """Highest rates of seven mixes by every planner, and simulations of the exact plans."""
    profiles, model = profiles_of(data), constants(data)
    figures: list[Figure] = []
    for name, items in workloads(data).items():
        used, asked = mix(profiles, items)

        def planned(
            planner: str,
            used: Profiles = used,
            asked: Workload = asked,
            name: str = name,
            **own: str,
        ) -> tuple[Plan, float]:
            watch = Stopwatch()
            options = PlanOptions(planner=planner, own=own)
            made = make_plan(used, cluster(gpus), asked, options, interference={GPU: model})
            wrong = verify_plan(made, used)
            if wrong:
                raise AssertionError(f"{planner}, {name}: {wrong[0]}")
            return made, watch.seconds()

        exact, seconds = planned("gpulets")
        best = exact.objective.value
        note = f"gap {exact.objective.gap:.2%}, {seconds:.1f} s, {exact.certificate['status']}"
        figures.append(Figure(name=f"{name}: exact, rate per weight", value=best, note=note))
        for planner in BASELINES:
            value = planned(planner)[0].objective.value
            figures.append(
                Figure(
                    name=f"{name}: exact / {planner}",
                    value=best / value,
                    least=1.0,
                    note=f"{value:.1f}",
                )
            )
        blind = planned("gpulets-greedy", interference="off")[0].objective.value
        figures.append(Figure(name=f"{name}: greedy blind to interference", value=blind))
        ignorant, _ = planned("gpulets", interference="off")
        figures += late_figures(name, exact, ignorant)
        figures += overlap_figures(name, {p: planned(p)[0] for p in ("gpulets", *COMPARED)})
        for load in LOADS:
            run = simulate(exact, SimOptions(load_factor=load, duration_s=SIMULATED_S))
            late = sum(m.late for m in run.models)
            note = f"{late} accepted and late"
            name_of = f"{name}: attained at load {load:g}"
            figures.append(Figure(name=name_of, value=100 * run.attainment, unit="%", note=note))
            figures.append(
                Figure(name=f"{name}: accepted and late at load {load:g}", value=late, most=0)
            )
        print(f"{name}: {best:.1f}, gap {exact.objective.gap:.2%}", file=sys.stderr, flush=True)
    return figures


def late_figures(name: str, exact: Plan, ignorant: Plan) -> list[Figure]:
    """Requests late or dropped at the rates called schedulable, under real neighbours."""
    found: list[Figure] = []
    for what, plan, most in (("", exact, 1.0), (" blind to interference", ignorant, None)):
        run = simulate(plan, SimOptions(duration_s=SIMULATED_S, interference="overlap"))
        late = sum(m.late for m in run.models)
        of = max(1, sum(m.offered for m in run.models))
        note = f"{100 * (1 - run.attainment):.2f} % late or dropped"
        found.append(
            Figure(
                name=f"{name}: late as planned{what}",
                value=100 * late / of,
                unit="%",
                most=most,
                note=note,
            )
        )
    return found


def overlap_figures(name: str, plans: Mapping[str, Plan]) -> list[Figure]:
    """Highest rates with 99 % in time under real neighbours, beside the exact planner's."""
    options = SimOptions(duration_s=SIMULATED_S, interference="overlap")
    rates = {planner: find_goodput(plan, options).rps for planner, plan in plans.items()}
    best = rates["gpulets"]
    return [
        Figure(name=f"{name}: exact under overlap", value=best, unit="rps"),
        *(
            Figure(
                name=f"{name}: exact / {planner} under overlap",
                value=best / max(rates[planner], 1e-9),
                least=1.0,
                note=f"{rates[planner]:.1f} rps",
            )
            for planner in COMPARED
        ),
    ]


def size_figures(data: Path) -> list[Figure]:
    """Time and gap of plans of all nine models at equal rates."""
    profiles, model = profiles_of(data), constants(data)
    figures: list[Figure] = []
    for gpus, seconds, gap in SIZES:
        master = Master(tables_of(profiles, model, data, gpus))
        watch = Stopwatch()
        ones = np.ones(len(master.tables.models))
        found = master.solve(Goal(demand=ones), Watch(limit_s=seconds))
        took = watch.seconds()
        left = 100 * (found.bound / found.score - 1)
        note = f"{found.score:.1f} requests/s each"
        where = f"nine models on {gpus} GPUs"
        figures.append(Figure(name=f"{where}: time", value=took, unit="s", most=seconds))
        figures.append(Figure(name=f"{where}: gap", value=left, unit="%", most=gap, note=note))
    return figures


def wave_figures(data: Path, gpus: int) -> list[Figure]:
    """A mix of which the load rises and falls twice, planned again every 20 s.

    Its plan for the peak.
    """
    used, asked = mix(profiles_of(data), workloads(data)[WAVE_MIX])
    wave = wave_of(used, asked, cluster(gpus), {GPU: constants(data)}, WAVE_S)
    run = SimOptions(
        arrivals=Instant(by_model=wave.instants),
        duration_s=WAVE_S,
        interference="overlap",
        keep_uses=False,
    )
    watch = Stopwatch()
    found = follow_simulated(
        Follower.of(wave.planner, wave.first),
        run,
        20.0,
        lambda text: print(text, file=sys.stderr, flush=True),
    )
    mean = found.gpu_hours * 3600 / WAVE_S
    static = sum(wave.peak.gpus_used.values())
    worst = min(found.attainment_by_model.values())
    note = (
        f"{found.changes} changes, {watch.seconds():.0f} s; worst model {100 * worst:.2f} % in time"
    )
    missed = 100 * (1 - found.attainment)
    return [
        Figure(
            name=f"wave of {WAVE_MIX}: late or dropped", value=missed, unit="%", most=1.0, note=note
        ),
        Figure(
            name=f"wave of {WAVE_MIX}: mean GPUs",
            value=mean,
            most=static - 1e-9,
            note=f"the plan for the peak has {static}",
        ),
    ]


def overload_figures(data: Path, gpus: int) -> list[Figure]:
    """The worst attainment of a model beside one that offers three times its planned rate."""
    profiles, known = profiles_of(data), {GPU: constants(data)}
    figures: list[Figure] = []
    for name, items in workloads(data).items():
        used, asked = mix(profiles, items)
        options = PlanOptions(planner="gpulets")
        watch = Watch(limit_s=OVERLOAD_PLAN_S)
        plan = make_plan(used, cluster(gpus), asked, options, watch, interference=known)

        def worst(crowded: ModelPlan | None, plan: Plan = plan) -> float:
            instants = {
                m.name: np.arange(
                    0, SIMULATED_S * 1e6, 1e6 / m.throughput_rps / (3 if m is crowded else 1)
                ).astype(np.int64)
                for m in plan.models
            }
            run = SimOptions(
                arrivals=Instant(by_model=instants), duration_s=SIMULATED_S, interference="overlap"
            )
            found = simulate(plan, run).models
            kept = [m.attainment for m in found if crowded is None or m.name != crowded.name]
            return 100 * min(kept)

        figures.append(
            Figure(
                name=f"{name}: others while one model is at 3x",
                value=min(worst(model) for model in plan.models),
                unit="%",
                least=99.0,
                note=f"{worst(None):.1f} % while none is",
            )
        )
    return figures


def tables_of(profiles: Profiles, model: InterferenceModel, data: Path, gpus: int) -> Problem:
    """All nine models as the planners read them."""
    with (data / "glet_models.csv").open() as lines:
        slo = {row["model"]: round(1_000 * float(row["slo_ms"])) for row in csv.DictReader(lines)}
    asked = Workload(models=tuple(ModelDemand(name=n, slo_us=s, weight=1) for n, s in slo.items()))
    inputs = Inputs(
        profiles=profiles,
        cluster=cluster(gpus),
        workload=asked,
        options=PlanOptions(planner="gpulets"),
        interference={GPU: model},
    )
    return read_tables(inputs)


def scenario_figures(data: Path, gpus: int, seconds: float, scale: float) -> list[Figure]:
    """Which of the 19,682 mixes fit the GPUs, proven either way; what the greedy places of them."""
    tables = tables_of(profiles_of(data), constants(data), data, gpus)
    mixes = scale * np.array(list(product(RATES, repeat=len(tables.models))))[1:]
    watch = Stopwatch()
    fits, cannot, solved = decided(tables, mixes, seconds)
    took = watch.seconds()
    greedy = Greedy(Master(tables).patterns[0], RULES["gpulets-greedy"])
    static = Greedy(greedy.patterns, RULES["ideal-static"])
    by_greedy = np.array([placed(greedy, rates, gpus) is not None for rates in mixes])
    # exact plans serve all that the greedy places; the static ideal is asked about the rest
    rest = np.flatnonzero(~by_greedy)
    by_static = np.array([placed(static, mixes[i], gpus) is not None for i in rest], dtype=np.bool_)
    beaten = int((by_greedy & ~fits).sum() + (by_static & ~fits[rest]).sum())
    known = int((fits | cannot).sum())
    where = f"of {len(mixes)} mixes x {scale:g} on {gpus} GPUs"
    return [
        Figure(name=f"schedulable {where}", value=int(fits.sum()), note=f"{solved} programs"),
        Figure(name=f"proven not to be {where}", value=int(cannot.sum())),
        Figure(
            name=f"proven either way {where}", value=100 * known / len(mixes), unit="%", least=99.5
        ),
        Figure(name=f"time of that {where}", value=took, unit="s", most=1_800),
        Figure(name=f"placed by greedy {where}", value=int(by_greedy.sum())),
        Figure(
            name=f"placed by ideal-static where greedy fails {where}", value=int(by_static.sum())
        ),
        Figure(
            name=f"placed by a baseline, not by the exact planner {where}", value=beaten, most=0
        ),
    ]


def decided(
    tables: Problem, mixes: NDArray[np.float64], seconds: float
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], int]:
    """Mixes that a plan carries, mixes that no plan carries, and how many programs that took."""
    random = np.random.default_rng(0)
    fits = np.zeros(len(mixes), dtype=np.bool_)
    cannot, tried = fits.copy(), fits.copy()
    watch = Stopwatch()
    masters: dict[bytes, Master] = {}
    solved = 0
    while watch.seconds() < seconds:
        open_ = np.flatnonzero(~(fits | cannot | tried))
        if not len(open_):
            break
        if not solved:  # the largest first: a plan for it is one for all
            open_ = open_[[int(np.argmax(mixes[open_].sum(axis=1)))]]
        picked = random.choice(open_, min(TRIED, len(open_)), replace=False)
        rest = mixes[open_]
        gain = [
            float((rest <= mixes[i]).all(axis=1).sum() * (rest >= mixes[i]).all(axis=1).sum())
            for i in picked
        ]
        number = int(picked[int(np.argmax(gain))])
        rates = mixes[number]
        present = rates > 0
        key = present.tobytes()
        if key not in masters:
            masters[key] = Master(_without(tables, present))
        answer = masters[key].solve(
            Goal(demand=rates[present], enough=1.0), Watch(limit_s=seconds - watch.seconds())
        )
        solved += 1
        tried[number] = True
        carried = np.zeros(len(rates))
        for pattern, count in answer.chosen:
            carried[present] += count * pattern.rates_rps
        fits |= (mixes <= carried * (1 + 1e-9)).all(axis=1)
        if answer.bound < 1 - 1e-6:
            cannot |= (mixes >= rates).all(axis=1)
        print(
            f"{solved}: {int(fits.sum())} fit, {int(cannot.sum())} cannot, "
            f"{len(open_)} were open, {watch.seconds():.0f} s",
            file=sys.stderr,
            flush=True,
        )
    return fits, cannot, solved


def _without(tables: Problem, present: NDArray[np.bool_]) -> Problem:
    """The same for the models that are asked for."""
    kept = np.flatnonzero(present).tolist()
    classes = tuple(
        replace(
            table,
            cells={
                share: {i: cells[m] for i, m in enumerate(kept) if m in cells}
                for share, cells in table.cells.items()
            },
        )
        for table in tables.classes
    )
    return replace(
        tables,
        models=tuple(tables.models[m] for m in kept),
        classes=classes,
        limit_us=tables.limit_us[kept],
        static_gib=tables.static_gib[kept],
        dynamic_gib=tables.dynamic_gib[kept],
    )


def main() -> int:
    """Take the figures asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", default="fit,workloads,sizes,wave,overload,scenarios")
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--scale", type=float, default=1.0, help="of the rates of scenarios")
    parser.add_argument("--seconds", type=float, default=600.0, help="of deciding scenarios")
    add_destinations(parser)
    asked = parser.parse_args()
    wanted = set(asked.only.split(","))
    figures: list[Figure] = []
    if "fit" in wanted:
        figures += fit_figures(asked.data)
    if "workloads" in wanted:
        figures += workload_figures(asked.data, asked.gpus)
    if "sizes" in wanted:
        figures += size_figures(asked.data)
    if "wave" in wanted:
        figures += wave_figures(asked.data, asked.gpus)
    if "overload" in wanted:
        figures += overload_figures(asked.data, asked.gpus)
    if "scenarios" in wanted:
        figures += scenario_figures(asked.data, asked.gpus, asked.seconds, asked.scale)
    return conclude(asked, "gpulets", figures, {})


if __name__ == "__main__":
    sys.exit(main())
