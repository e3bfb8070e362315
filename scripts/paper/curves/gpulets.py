"""Curves of the gpulets paper from the tables that `gpulets/mixes.py` names.

Figures 4 to 6, 12 and 13. The derived table is easier than the paper's GPUs: at the paper's rates
nearly all mixes fit, so figure 4 multiplies them. `sbp` leaves GPUs whole, `sbp, halves` cuts each
into two equal parts.
"""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flows.planning import PlanOptions, make_plan
from flows.planning.gpulets.master import Master
from flows.planning.papers.gpulets.greedy import RULES, Gpu, Greedy, Part, placed
from flows.preparation.interference.tables import pair_rows
from scripts.paper.curves.panels import BARS, STEPS, Asked, Found, Panel, distribution, over_seeds
from scripts.paper.gpulets.mixes import (
    GPU,
    cluster,
    constants,
    mix,
    profiles_of,
    published,
    workloads,
)
from scripts.paper.gpulets.study import RATES, tables_of
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.plan import Plan
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.simulator.goodput import find_goodput
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

GPUS = 4
SCALES = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
MIXES_A_DRAW = 20
GREEDY, STATIC = "gpulets-greedy", "ideal-static"
COMPARED = ("sbp", "best-fit", GREEDY, STATIC)
HALVES = "sbp, halves"
PAIRS = (
    ("ssd-mobilenetv1", "bert"),
    ("resnet50", "vgg16"),
    ("googlenet", "mobilenet_v2"),
    ("mnasnet1_0", "densenet161"),
)
EXACT = "gpulets"
BLIND, EXACT_BLIND = "gpulets-greedy, blind", "gpulets, blind"
SYSTEMS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    BLIND: ("gpulets-greedy", {"interference": "off"}),
    EXACT_BLIND: (EXACT, {"interference": "off"}),
}
PLAN_S = 30.0
STEP = 0.02  # of load factors tried
ALLOWED = 1.0  # percent of requests that may be late or dropped

Items = Sequence[tuple[str, float, int]]  # model, weight, SLO (us)
Plans = Mapping[str, Sequence[Plan | None]]  # by system, in the order of the cases


def schedulable(asked: Asked) -> Found:
    """Figure 4: mixes of nine models that each rule places on four GPUs, by times of the rates."""
    data = asked.data / "gpulets"
    tables = tables_of(profiles_of(data), constants(data), data, GPUS)
    patterns = Master(tables).patterns[0]
    every = np.array(list(product(RATES, repeat=len(tables.models))))[1:]
    random = np.random.default_rng(0)
    picked = every[random.choice(len(every), MIXES_A_DRAW * asked.draws, replace=False)]
    rules = {name: Greedy(patterns, RULES[name]) for name in COMPARED}
    halves = Greedy(patterns, RULES["ideal-static"])

    def fits(name: str, rates: np.ndarray) -> bool:
        if name != HALVES:
            return placed(rules[name], rates, GPUS) is not None
        cut = [Gpu([Part(WHOLE_GPU // 2), Part(WHOLE_GPU // 2)]) for _ in range(GPUS)]
        return halves.place(rates, cut)

    found = Found()
    curves: dict[str, list[tuple[float, float]]] = {}
    for name in (*COMPARED, HALVES):
        curves[name] = [
            (scale, 100 * float(np.mean([fits(name, scale * rates) for rates in picked])))
            for scale in SCALES
        ]
        for scale, share in curves[name]:
            where = f"figure 4, {scale:g} x the rates, {name}: mixes placed"
            found.figures += over_seeds(where, [share], "%")
    found.panels.append(
        Panel(
            title=f"{len(picked)} of {len(every)} mixes on {GPUS} GPUs",
            x="times the paper's rates",
            y="% of mixes placed",
            series=curves,
        )
    )
    return found


def items_of(data: Path, names: Iterable[str]) -> Items:
    """Models of equal rates with their SLOs (us)."""
    with (data / "glet_models.csv").open() as lines:
        slo_ms = {row["model"]: float(row["slo_ms"]) for row in csv.DictReader(lines)}
    return [(name, 1.0, round(1_000 * slo_ms[name])) for name in names]


def plan_of(data: Path, system: str, items: Items, gpus: int) -> Plan | None:
    """A system's plan, made with the authors' constants unless it is blind; None without one."""
    planner, own = SYSTEMS.get(system, (system, {}))
    used, asked = mix(profiles_of(data), items)
    limit_s = PLAN_S if planner == EXACT else None
    how = PlanOptions(planner=planner, time_limit_s=limit_s, own=own)
    try:
        return make_plan(used, cluster(gpus), asked, how, interference={GPU: constants(data)})
    except InfeasibleError:
        return None


def over(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Ratios; large ones where the base is 0."""
    return [value / max(own, 1e-9) for value, own in zip(values, base, strict=True)]


class Compared(NamedTuple):
    """A figure of goodputs: its number and title, its GPUs, the systems and the bases of ratios."""

    figure: str
    title: str
    gpus: int
    systems: tuple[str, ...]
    bases: tuple[str, ...]


def plans_of(asked: Asked, how: Compared, cases: Mapping[str, Items]) -> Plans:
    """The plan of every system for every case."""
    data = asked.data / "gpulets"
    return {
        system: [plan_of(data, system, items, how.gpus) for items in cases.values()]
        for system in how.systems
    }


def goodputs(asked: Asked, how: Compared, cases: Iterable[str], plans: Plans) -> Found:
    """The highest rates with 99 % in time of every system's plan, over those of some.

    Poisson arrivals, simulated with neighbours that slow each other down, whether the planner knew
    of it or not.
    """
    run = SimOptions(duration_s=asked.seconds, interference="overlap")
    rates = {
        system: [find_goodput(plan, run, step=STEP).rps if plan else 0.0 for plan in own]
        for system, own in plans.items()
    }
    found = Found()
    for base, system in product(how.bases, how.systems):
        if system != base:
            ratios = over(rates[system], rates[base])
            where = f"figure {how.figure}, {system} over {base}"
            found.figures += over_seeds(where, ratios)
            found.figures += over_seeds(f"{where}, mean", [float(np.mean(ratios))])
    found.panels.append(bars_of(how.title, "goodput", cases, rates, how.bases[0]))
    return found


def bars_of(
    title: str, what: str, cases: Iterable[str], rates: Mapping[str, Sequence[float]], base: str
) -> Panel:
    """Rates of every system over those of one, a group of bars for each case."""
    names = list(cases)
    return Panel(
        title=title,
        x="",
        y=f"{what} over that of {base}",
        series={
            system: list(zip(names, over(own, rates[base]), strict=True))
            for system, own in rates.items()
        },
        kind=BARS,
        mark=1.0,
    )


def pairs(asked: Asked) -> Found:
    """Figure 5: four pairs of models on two GPUs, served by the plan of each planner."""
    cases = {
        ", ".join(name[:3] for name in names): items_of(asked.data / "gpulets", names)
        for names in PAIRS
    }
    how = Compared("5", "pairs on two GPUs", 2, (*COMPARED, EXACT), ("best-fit",))
    return goodputs(asked, how, cases, plans_of(asked, how, cases))


def mixes(asked: Asked) -> Found:
    """Figures 12 and 16: seven mixes on four GPUs, by the plan of each planner."""
    title = f"mixes on {GPUS} GPUs"
    systems = (*COMPARED, BLIND, EXACT)
    how = Compared("12", title, GPUS, systems, ("sbp", "best-fit"))
    cases = workloads(asked.data / "gpulets")
    plans = plans_of(asked, how, cases)
    found, planned = goodputs(asked, how, cases, plans), highest_rates(title, cases, plans)
    return Found(
        figures=[*found.figures, *planned.figures], panels=[*found.panels, *planned.panels]
    )


def highest_rates(title: str, cases: Iterable[str], plans: Plans) -> Found:
    """Figure 16: highest rates that every system plans, over those of the best static cut."""
    found, names = Found(), list(cases)
    rates = {
        system: [plan.objective.value if plan else 0.0 for plan in plans[system]]
        for system in (*COMPARED, EXACT)
    }
    for system in COMPARED:
        for name, ratio in zip(names, over(rates[EXACT], rates[system]), strict=True):
            found.figures += over_seeds(f"figure 16, {name}: exact plan over {system}", [ratio])
    ratios = over(rates[GREEDY], rates[STATIC])
    where = f"figure 16, {GREEDY} over {STATIC}"
    found.figures += over_seeds(where, ratios)
    found.figures += over_seeds(f"{where}, mean", [float(np.mean(ratios))])
    found.panels.append(bars_of(f"{title}, as planned", "highest rate", names, rates, STATIC))
    return found


def violations(asked: Asked) -> Found:
    """Figure 13: requests late or dropped at the very rates that a planner calls schedulable."""
    found = Found()
    run = SimOptions(duration_s=asked.seconds, interference="overlap")
    bars: dict[str, list[tuple[str, float]]] = {}
    for system in (BLIND, "gpulets-greedy", EXACT_BLIND, EXACT):
        for name, items in workloads(asked.data / "gpulets").items():
            plan = plan_of(asked.data / "gpulets", system, items, GPUS)
            missed = 100 * (1 - simulate(plan, run).attainment) if plan else math.nan
            bars.setdefault(system, []).append((name, missed))
        values = [value for _, value in bars[system]]
        found.figures += over_seeds(
            f"figure 13, {system}: late or dropped", values, "%", worst="most"
        )
        beyond = sum(value > ALLOWED for value in values)
        found.figures += over_seeds(f"figure 13, {system}: mixes above {ALLOWED:g} %", [beyond])
    found.panels.append(
        Panel(
            title=f"mixes on {GPUS} GPUs, as planned",
            x="",
            y="% late or dropped",
            series=bars,
            kind=BARS,
            mark=ALLOWED,
        )
    )
    return found


def overheads(asked: Asked) -> Found:
    """Figure 6: how much slower a model runs beside another, of two public tables of pairs."""
    found = Found()
    series: dict[str, list[tuple[float, float]]] = {}
    for stem, label in (("igniter_v100", "V100, measured"), ("wlgur", "GPU not named, noisy")):
        tables = published(asked.data / "gpulets", stem)
        rows, _ = pair_rows(tables.pairs, tables.profiles, tables.pairs[0].gpu_class)
        slower = 100 * (np.asarray(rows.slowdown) - 1)
        series[f"{label}, {len(slower)} rows"] = distribution(slower.tolist())
        for percent in (50, 90, 99):
            value = float(np.percentile(slower, percent))
            where = f"figure 6, {stem}: overhead at {percent} % of rows"
            found.figures += over_seeds(where, [value], "%", worst="most")
    found.panels.append(
        Panel(
            title="pairs of models on one GPU",
            x="latency beside another, % more",
            y="% of rows",
            series=series,
            kind=STEPS,
            mark=18.0,
        )
    )
    return found


FIGURES = {
    "gpulets-4": schedulable,
    "gpulets-5": pairs,
    "gpulets-6": overheads,
    "gpulets-12": mixes,
    "gpulets-13": violations,
}
