"""Common parts of `reproduce.py`: runs of cells, tables and charts on disk."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import matplotlib as mpl
import numpy as np

from scripts.paper.cells import CLUSTERS, GROUPS, Cell, PaperData
from scripts.paper.published import HIGH_CLASSES
from scripts.paper.runs import Run, Runner, attainment, highest_load, utilisation
from triton_backend.simulator.goodput import GRID
from triton_backend.simulator.offered import POISSON, Arrivals, Gamma
from triton_backend.simulator.scenario import SimOptions

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

ARRIVALS: dict[str, Arrivals] = {"Poisson": POISSON, "Bursty": Gamma(shape=0.3)}

Row = dict[str, object]


@dataclass(slots=True, kw_only=True)
class Study:
    """Inputs of every figure: data, output folder, earlier simulations."""

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

    def together(self, group: str, cluster: str, planner: str) -> Run:
        """A run of all models of a group at once, at one load factor."""
        options = SimOptions(
            policy=self.policy,
            nic="isolated",
            reference=self.data.group_plan(group, cluster, "pool"),
        )
        return Run(plan=self.data.group_plan(group, cluster, planner), options=options)

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

    def busy(self, planner: str) -> dict[tuple[str, str], tuple[float, float]]:
        """Busy share of high- and low-class GPUs by group and cluster.

        All models of a group at once, at their highest load factor.
        """
        names = [(group, cluster) for group in GROUPS for cluster in CLUSTERS]
        runs = [self.together(group, cluster, planner) for group, cluster in names]
        loaded = [run.at(load) for run, load in zip(runs, self.highest(runs), strict=True)]
        found: dict[tuple[str, str], tuple[float, float]] = {}
        for name, shares in zip(names, self.runner.map(utilisation, loaded), strict=True):
            high = sum(share for gpu, share in shares.items() if gpu in HIGH_CLASSES)
            found[name] = (high, sum(shares.values()) - high)
        return found

    def store(self, number: int, title: str, rows: Sequence[Row]) -> None:
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


def filled(rows: Sequence[Row]) -> list[Row]:
    """Rows with the same columns, None where a row has no value."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)
