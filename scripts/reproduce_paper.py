"""Figures 6, 7, 8, 10 and 13 of the PPipe paper (ATC 2025), with its numbers beside ours.

    .venv/bin/python scripts/reproduce_paper.py --data DIR --out DIR [--only 6,7,8,10,13]
        [--policy reservation] [--processes N]

`--data` is the folder of published tables. Writes `figure_N.csv`, `figure_N.png` and `report.md`.
Plans, scheduler and simulator are ours; load factor 1 is the `pool` plan's rate; NICs are isolated as
in the published simulator. The paper's bursty trace is not public at the needed rate: gamma gaps of
shape 0.3 stand in for it.
"""

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
from paper_cells import CLUSTERS, GROUPS, PLANNERS, Cell, PaperData
from paper_numbers import (
    FIGURE_6,
    FIGURE_6_GAINS,
    FIGURE_7,
    FIGURE_8,
    FIGURE_10,
    FIGURE_13_MARGIN,
    FIGURE_13_RATIO,
    HIGH_CLASSES,
)
from paper_runs import Run, Runner, attainment, highest_load, utilisation

from flows.planning import PlanOptions
from triton_backend.core.cluster import Cluster
from triton_backend.core.errors import InfeasibleError, InputError
from triton_backend.sim.arrivals import POISSON, Arrivals, Gamma
from triton_backend.sim.goodput import ATTAINMENT, GRID
from triton_backend.sim.options import SimOptions

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

ARRIVALS: dict[str, Arrivals] = {"Poisson": POISSON, "Bursty": Gamma(shape=0.3)}

Row = dict[str, object]


@dataclass(slots=True, kw_only=True)
class Study:
    """What every figure needs: inputs, where to write, and what was simulated before."""

    data: PaperData
    out: Path
    policy: str
    runner: Runner
    factors: dict[tuple[str, str], list[float]] = field(
        default_factory=dict[tuple[str, str], list[float]]
    )
    report: list[str] = field(default_factory=list[str])

    def alone(self, cell: Cell, **more: object) -> Run:
        """A run of one model alone."""
        plain = SimOptions(
            policy=self.policy,
            nic="isolated",
            models=(cell.model,),
            reference=cell.reference,
        )
        return Run(plan=cell.plan, options=replace(plain, **more))

    def highest(self, runs: Iterable[Run]) -> list[float]:
        """Highest load factor of every run."""
        return [found.load_factor for found in self.runner.map(highest_load, runs)]

    def curves(self, runs: Sequence[Run]) -> list[list[float]]:
        """Attainment of every run at each load factor of the grid."""
        found = self.runner.map(attainment, [run.at(at) for run in runs for at in GRID])
        return np.asarray(found).reshape(len(runs), len(GRID)).tolist()

    def load_factors(self, planner: str, arrivals: str) -> list[float]:
        """Highest load factor of all 72 cells."""
        key = (planner, arrivals)
        if key not in self.factors:
            runs = [
                self.alone(cell, arrivals=ARRIVALS[arrivals]) for cell in self.data.cells(planner)
            ]
            self.factors[key] = self.highest(runs)
        return self.factors[key]

    def keep(self, number: int, title: str, rows: Sequence[Row]) -> None:
        """Write a figure's table, and the same into the report."""
        names = list(rows[0])
        with (self.out / f"figure_{number}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
        lines = [f"## Figure {number}: {title}", "", f"![](figure_{number}.png)", ""]
        lines += ["| " + " | ".join(names) + " |", "| " + " | ".join("---" for _ in names) + " |"]
        lines += ["| " + " | ".join(_text(row[name]) for name in names) + " |" for row in rows]
        self.report += [*lines, ""]
        print("\n".join([*lines, ""]), flush=True)

    def draw(self, number: int, figure: Figure) -> None:
        """Write a figure's chart."""
        figure.tight_layout()
        figure.savefig(self.out / f"figure_{number}.png", dpi=120)
        plt.close(figure)


def figure_6(study: Study) -> None:
    """Highest load factor with 99 % attainment, by cluster, planner and arrivals."""
    rows: list[Row] = []
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.5), sharey=True)
    for axis, arrivals in zip(axes, ARRIVALS, strict=True):
        means = {p: _by_cluster(study.load_factors(p, arrivals)) for p in PLANNERS}
        for k, planner in enumerate(PLANNERS):
            positions = np.arange(len(CLUSTERS)) + 0.27 * (k - 1)
            paper = FIGURE_6[arrivals, planner]
            label = f"{planner}: mean {np.mean(means[planner]):.3f}, paper {paper:.3f} (dotted)"
            axis.bar(positions, means[planner], width=0.25, label=label)
            axis.axhline(paper, color=f"C{k}", linestyle=":")
            gains = FIGURE_6_GAINS.get((arrivals, planner))
            for c, cluster in enumerate(CLUSTERS):
                gain = means["pool"][c] / means[planner][c] - 1
                rows.append(
                    {
                        "arrivals": arrivals,
                        "cluster": cluster,
                        "planner": planner,
                        "load factor": means[planner][c],
                        "gain of pool": gain if gains else None,
                        "gain of pool, paper": gains[c] if gains else None,
                    }
                )
            rows.append(
                {
                    "arrivals": arrivals,
                    "cluster": "mean",
                    "planner": planner,
                    "load factor": float(np.mean(means[planner])),
                    "load factor, paper": FIGURE_6[arrivals, planner],
                }
            )
        axis.set_xticks(range(len(CLUSTERS)), CLUSTERS)
        axis.set_title(arrivals)
        axis.legend(loc="upper center", fontsize="small")
    axes[0].set_ylabel("load factor at 99 % attainment")
    axes[0].set_ylim(0, 1.5)
    axes[0].set_yticks(np.arange(0, 1.1, 0.2))
    study.draw(6, figure)
    study.keep(6, "highest load factor at 99 % attainment", _filled(rows))


def figure_7(study: Study) -> None:
    """Attainment of group G1 against load, mean of its three models."""
    rows: list[Row] = []
    figure, axes = plt.subplots(1, len(CLUSTERS), figsize=(14, 3.2), sharey=True)
    for axis, cluster in zip(axes, CLUSTERS, strict=True):
        for k, planner in enumerate(PLANNERS):
            cells = [
                c for c in study.data.cells(planner) if (c.group, c.cluster) == ("G1", cluster)
            ]
            curves = study.curves([study.alone(cell) for cell in cells])
            attained = np.mean(curves, axis=0).tolist()
            label = f"{planner} (paper {FIGURE_7[planner]:.2f})" if cluster == "HC1-L" else planner
            axis.plot(GRID, attained, color=f"C{k}", label=label)
            holds = [at for at, share in zip(GRID, attained, strict=True) if share >= ATTAINMENT]
            highest = max(holds, default=0.0)
            axis.axvline(highest, color=f"C{k}", linestyle=":")
            row: Row = {
                "cluster": cluster,
                "planner": planner,
                "load factor at 99 %": highest,
                "paper": FIGURE_7[planner] if cluster == "HC1-L" else None,
                "attainment at load factor 1": attained[0],
            }
            rows.append(row)
        axis.set_title(cluster)
        axis.set_xlabel("load factor")
        axis.set_ylim(0.5, 1.01)
    axes[0].set_ylabel("SLO attainment, group G1")
    axes[0].legend(loc="lower left", fontsize="small", framealpha=1)
    study.draw(7, figure)
    study.keep(7, "attainment of group G1 against load (Poisson)", rows)


def figure_8(study: Study) -> None:
    """Utilisation of both classes at the highest load factor, all models of a group at once."""
    rows: list[Row] = []
    for planner in PLANNERS:
        busy = _busy(study, planner)
        for cluster in CLUSTERS:
            high, low = np.mean([busy[group, cluster] for group in GROUPS], axis=0).tolist()
            rows.append({"cluster": cluster, "planner": planner, "high": high, "low": low})
    for planner in PLANNERS:
        chosen = [row for row in rows if row["planner"] == planner]
        high, low = (float(np.mean([float(str(r[k])) for r in chosen])) for k in ("high", "low"))
        rows.append(
            {
                "cluster": "mean",
                "planner": planner,
                "high": high,
                "low": low,
                "low, paper": FIGURE_8[planner],
            }
        )
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    for axis, kind in zip(axes, ("high", "low"), strict=True):
        for k, planner in enumerate(PLANNERS):
            values = [float(str(r[kind])) for r in rows if r["planner"] == planner]
            axis.bar(np.arange(len(values)) + 0.27 * (k - 1), values, width=0.25, label=planner)
            if kind == "low":
                place = len(CLUSTERS) + 0.27 * (k - 1)
                axis.plot(place, FIGURE_8[planner], "kx", label="paper's mean" if k == 0 else None)
        axis.set_xticks(range(len(CLUSTERS) + 1), (*CLUSTERS, "mean"))
        axis.set_title(f"{kind}-class GPUs")
    axes[0].set_ylabel("busy share of all GPUs")
    axes[0].set_ylim(0, 1.25)
    axes[1].legend(loc="upper center", ncols=2, fontsize="small")
    study.draw(8, figure)
    study.keep(8, "utilisation at 99 % attainment (Poisson)", _filled(rows))


def _busy(study: Study, planner: str) -> dict[tuple[str, str], tuple[float, float]]:
    """Busy share of high- and low-class GPUs: every model alone at its highest load, summed."""
    cells = list(study.data.cells(planner))
    loads = study.load_factors(planner, "Poisson")
    runs = [study.alone(cell).at(load) for cell, load in zip(cells, loads, strict=True)]
    busy: dict[tuple[str, str], tuple[float, float]] = {}
    for cell, found in zip(cells, study.runner.map(utilisation, runs), strict=True):
        high, low = busy.get((cell.group, cell.cluster), (0.0, 0.0))
        high += sum(share for name, share in found.items() if name in HIGH_CLASSES)
        low += sum(share for name, share in found.items() if name not in HIGH_CLASSES)
        busy[cell.group, cell.cluster] = (high, low)
    return busy


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
    study.keep(
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
    study.keep(13, "sensitivity on HC1-S", _filled(rows))


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


def _by_cluster(factors: Sequence[float]) -> list[float]:
    """Means per cluster; cells are ordered by group, cluster, model."""
    shaped = np.asarray(factors).reshape(len(GROUPS), len(CLUSTERS), -1)
    return shaped.mean(axis=(0, 2)).tolist()


def _filled(rows: Sequence[Row]) -> list[Row]:
    """Rows with the same columns, None where a row has no value."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)


FIGURES: dict[int, Callable[[Study], None]] = {
    6: figure_6,
    7: figure_7,
    8: figure_8,
    10: figure_10,
    13: figure_13,
}


def main(arguments: list[str]) -> int:
    """Make the figures; 2 on wrong input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of published tables")
    parser.add_argument("--out", type=Path, required=True, help="folder for tables and charts")
    parser.add_argument("--only", default=",".join(map(str, FIGURES)), help="numbers of figures")
    parser.add_argument("--policy", default="reservation", help="of `pool` and its baselines")
    parser.add_argument("--processes", type=int, help="simulations at once; a core each without")
    chosen = parser.parse_args(arguments)
    try:
        data = PaperData.read(chosen.data)
        figures = [FIGURES[int(number)] for number in chosen.only.split(",")]
    except (InputError, KeyError, ValueError) as error:
        print(f"reproduce_paper: {error}", file=sys.stderr)
        return 2
    chosen.out.mkdir(parents=True, exist_ok=True)
    with Runner(chosen.processes) as runner:
        study = Study(data=data, out=chosen.out, policy=chosen.policy, runner=runner)
        for figure in figures:
            figure(study)
    heading = f"# Figures of the paper, policy `{chosen.policy}`"
    text = "\n".join([heading, "", *study.report])
    (chosen.out / "report.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
