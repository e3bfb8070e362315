"""Figures 10 and 13 of the paper: every model alone on one cluster."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np

from flows.planning import PlanOptions
from scripts.paper.cells import Cell
from scripts.paper.published import FIGURE_10, FIGURE_13_MARGIN, FIGURE_13_RATIO, HIGH_CLASSES
from scripts.paper.study import Row, Study, filled
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError
from triton_backend.simulator.goodput import ATTAINMENT, GRID

mpl.use("Agg")
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from scripts.paper.runs import Run


def figure_10(study: Study) -> None:
    """Reservation against reactive: one model alone, at most 3 stages, margin 0.1, HC2-L."""
    cluster = study.data.cluster("HC2-L")
    options = PlanOptions(slo_margin=0.1, max_partitions=3)
    cells = [_alone(study, model, cluster, options) for model in study.data.profiles]
    attained: dict[str, list[float]] = {}
    highest: dict[str, float] = {}
    for policy in FIGURE_10:
        runs = study.curves([study.alone(cell, policy=policy) for cell in cells])
        attained[policy] = np.mean(runs, axis=0).tolist()
        highest[policy] = float(np.mean([_highest(run) for run in runs]))
    figure, axis = plt.subplots(figsize=(7, 4))
    for k, (policy, values) in enumerate(attained.items()):
        label = f"{policy}: 99 % up to {highest[policy]:.3f}, paper {FIGURE_10[policy]:.2f}"
        axis.plot(GRID, values, color=f"C{k}", label=label)
        axis.axvline(highest[policy], color=f"C{k}", linestyle=":")
    axis.set_xlabel("load factor")
    axis.set_ylabel("SLO attainment, mean of 18 models")
    axis.legend()
    study.draw(10, figure)
    study.store(
        10,
        "reactive and reservation scheduling, HC2-L",
        [
            {"policy": p, "load factor at 99 %": highest[p], "paper": FIGURE_10[p]}
            for p in FIGURE_10
        ],
    )


def figure_13(study: Study) -> None:
    """Sensitivity on HC1-S: SLO scale, share of high-class GPUs, margin."""
    base = study.data.cluster("HC1-S")
    rows: list[Row] = []
    for scale in (2, 3, 5, 7, 10):
        gain = _gain(study, base, PlanOptions(), scale / 5)
        rows.append({"varied": "SLO scale", "value": scale, **gain})
    for high in (2, 4, 6, 8, 10, 12):
        gain = _gain(study, _with_high(base, high), PlanOptions(), 1.0)
        paper = FIGURE_13_RATIO.get(high)
        rows.append({"varied": "high-class GPUs", "value": high, **gain, "gain, paper": paper})
    for margin in (0.2, 0.4, 0.6):
        gain = _gain(study, base, PlanOptions(slo_margin=margin), 1.0)
        paper = FIGURE_13_MARGIN[margin]
        rows.append({"varied": "margin", "value": margin, **gain, "gain, paper": paper})
    figure, axes = plt.subplots(2, 3, figsize=(11, 5.5), sharex="col", sharey="row")
    for column, varied in enumerate(("SLO scale", "high-class GPUs", "margin")):
        chosen = [row for row in rows if row["varied"] == varied]
        values = [float(str(row["value"])) for row in chosen]
        for planner in ("pool", "no-partitioning"):
            loads = [float(str(row[planner])) for row in chosen]
            axes[0, column].plot(values, loads, marker="o", label=planner)
        gains = [float(str(row["gain"])) for row in chosen]
        axes[1, column].plot(values, gains, marker="o", color="C2", label="ours")
        stated = [row for row in chosen if row.get("gain, paper") is not None]
        at = [float(str(row["value"])) for row in stated]
        paper = [float(str(row["gain, paper"])) for row in stated]
        axes[1, column].plot(at, paper, "kx", label="paper")
        axes[1, column].set_xlabel(varied)
        axes[1, column].set_xticks(values)
    axes[0, 0].set_ylabel("load factor at 99 %")
    axes[0, 0].set_ylim(0, 1.05)
    axes[1, 0].set_ylabel("gain of pool")
    axes[1, 0].set_ylim(bottom=0)
    axes[0, 2].legend(loc="lower right")
    axes[1, 2].legend(loc="upper right")
    study.draw(13, figure)
    study.store(13, "sensitivity on HC1-S", filled(rows))


def _gain(study: Study, cluster: Cluster, options: PlanOptions, slo_share: float) -> Row:
    """Mean highest load factors of `pool` and `no-partitioning`, one model alone.

    Over the models that can be served at all: without partitioning, within SLO less margin.
    """
    cells: dict[str, list[Run]] = {"pool": [], "no-partitioning": []}
    for model in study.data.profiles:
        try:
            plans = [
                _alone(study, model, cluster, replace(options, planner=planner), slo_share)
                for planner in cells
            ]
        except InfeasibleError:
            continue
        for cell, runs in zip(plans, cells.values(), strict=True):
            runs.append(study.alone(replace(cell, reference=plans[0].plan)))
    means = {planner: study.highest(runs) for planner, runs in cells.items()}
    pool, whole = (float(np.mean(found)) for found in means.values())
    return {
        "models": len(means["pool"]),
        "pool": pool,
        "no-partitioning": whole,
        "gain": pool / whole - 1,
    }


def _alone(
    study: Study, model: str, cluster: Cluster, options: PlanOptions, slo_share: float = 1.0
) -> Cell:
    slo_us = int(study.data.slos_us()[model] * slo_share)
    plan = study.data.single_plan(model, cluster, slo_us, options)
    return Cell(group="", cluster=cluster.name, model=model, plan=plan, reference=plan)


def _with_high(cluster: Cluster, high: int) -> Cluster:
    """A cluster of 16 one-GPU nodes, `high` of them of the high class."""
    total = sum(group.count for group in cluster.nodes)
    counts = [high if g.gpu_class in HIGH_CLASSES else total - high for g in cluster.nodes]
    nodes = tuple(replace(g, count=n) for g, n in zip(cluster.nodes, counts, strict=True))
    return replace(cluster, nodes=nodes)


def _highest(attained: Iterable[float]) -> float:
    """Highest load factor of the grid that attains, searched from above."""
    for at, share in zip(GRID, attained, strict=True):
        if share >= ATTAINMENT:
            return at
    return 0.0
