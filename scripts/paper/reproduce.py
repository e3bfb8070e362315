"""Figures 6, 7, 8, 10 and 13 of the PPipe paper (ATC 2025), with its numbers beside ours.

    .venv/bin/python scripts/paper/reproduce.py --data DIR --out DIR [--only 6,7,8,10,13]
        [--policy reservation] [--processes N]

`--data` is the folder of published tables. Writes `figure_N.csv`, `figure_N.png` and `report.md`.
Plans, scheduler and simulator are ours; load factor 1 is the `pool` plan's rate; NICs are isolated
as in the published simulator. The paper's bursty trace is not public at the needed rate: gamma gaps
of shape 0.3 stand in for it.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np

from scripts.paper.alone import figure_10, figure_13
from scripts.paper.cells import CLUSTERS, GROUPS, PLANNERS, PaperData
from scripts.paper.published import (
    FIGURE_6,
    FIGURE_6_GAINS,
    FIGURE_7,
    FIGURE_8,
)
from scripts.paper.runs import Runner
from scripts.paper.study import ARRIVALS, Row, Study, filled
from triton_backend.contract.errors import InputError
from triton_backend.simulator.goodput import ATTAINMENT, GRID

mpl.use("Agg")
from matplotlib import pyplot as plt


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
    study.store(6, "highest load factor at 99 % attainment", filled(rows))


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
    study.store(7, "attainment of group G1 against load (Poisson)", rows)


def figure_8(study: Study) -> None:
    """Utilisation of both classes: one run of every group at its highest load factor."""
    rows: list[Row] = []
    for planner in PLANNERS:
        busy = study.busy(planner)
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
    study.store(8, "utilisation at 99 % attainment, all models of a group at once", filled(rows))


def _by_cluster(factors: Sequence[float]) -> list[float]:
    """Means per cluster; cells are ordered by group, cluster, model."""
    shaped = np.asarray(factors).reshape(len(GROUPS), len(CLUSTERS), -1)
    return shaped.mean(axis=(0, 2)).tolist()


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
        print(f"reproduce: {error}", file=sys.stderr)
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
