"""Curves of the gpulets paper from the tables that `gpulets/mixes.py` names: figures 4 to 6.

The derived table is easier than the paper's GPUs: at the paper's rates nearly all mixes fit, so
figure 4 multiplies them. `sbp` leaves GPUs whole, `sbp, halves` cuts each into two equal parts.
"""

import csv
from itertools import product
from pathlib import Path

import numpy as np

from flows.planning import PlanOptions, make_plan
from flows.planning.gpulets.master import Master
from flows.planning.papers.gpulets.greedy import RULES, Gpu, Greedy, Part, placed
from flows.preparation.interference.tables import pair_rows
from scripts.paper.curves.panels import BARS, STEPS, Asked, Found, Panel, distribution, over_seeds
from scripts.paper.gpulets.mixes import GPU, cluster, constants, mix, profiles_of, published
from scripts.paper.gpulets.study import RATES, tables_of
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.contract.workload import ModelDemand, Workload
from triton_backend.simulator.goodput import find_goodput
from triton_backend.simulator.scenario import SimOptions

GPUS = 4
SCALES = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
MIXES_A_DRAW = 20
COMPARED = ("sbp", "best-fit", "gpulets-greedy", "ideal-static")
HALVES = "sbp, halves"
PAIRS = (
    ("ssd-mobilenetv1", "bert"),
    ("resnet50", "vgg16"),
    ("googlenet", "mobilenet_v2"),
    ("mnasnet1_0", "densenet161"),
)
PLAN_S = 10.0
STEP = 0.02  # of load factors tried


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


def slos(data: Path) -> dict[str, int]:
    """SLO (us) of every model."""
    with (data / "glet_models.csv").open() as lines:
        return {row["model"]: round(1_000 * float(row["slo_ms"])) for row in csv.DictReader(lines)}


def pairs(asked: Asked) -> Found:
    """Figure 5: four pairs of models on two GPUs, served by the plan of each planner.

    The highest rate with 99 % in time under Poisson arrivals, simulated with neighbours that slow
    each other down, whether the planner knew of it or not.
    """
    data = asked.data / "gpulets"
    profiles, limits = profiles_of(data), slos(data)
    found = Found()
    planners = (*COMPARED, "gpulets")
    bars: dict[str, list[tuple[str, float]]] = {name: [] for name in planners}
    ratios: dict[str, list[float]] = {name: [] for name in planners}
    for names in PAIRS:
        used, _ = mix(profiles, [(name, 1.0, limits[name]) for name in names])
        workload = Workload(
            models=tuple(ModelDemand(name=n, slo_us=limits[n], weight=1.0) for n in names)
        )
        rates: dict[str, float] = {}
        for planner in planners:
            how = PlanOptions(
                planner=planner, time_limit_s=PLAN_S if planner == "gpulets" else None
            )
            known = {GPU: constants(data)}
            try:
                plan = make_plan(used, cluster(2), workload, how, interference=known)
            except InfeasibleError:
                rates[planner] = 0.0
            else:
                run = SimOptions(duration_s=asked.seconds, interference="overlap")
                rates[planner] = find_goodput(plan, run, step=STEP).rps
        for planner, rate in rates.items():
            ratio = rate / max(rates["best-fit"], 1e-9)
            ratios[planner].append(ratio)
            bars[planner].append((", ".join(name[:3] for name in names), ratio))
    for planner, own in ratios.items():
        if planner != "best-fit":
            where = f"figure 5, {planner} over best-fit"
            found.figures += over_seeds(where, own)
            found.figures += over_seeds(f"{where}, mean", [float(np.mean(own))])
    found.panels.append(
        Panel(
            title="pairs on two GPUs",
            x="",
            y="goodput over that of best-fit",
            series=bars,
            kind=BARS,
            mark=1.0,
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


FIGURES = {"gpulets-4": schedulable, "gpulets-5": pairs, "gpulets-6": overheads}
