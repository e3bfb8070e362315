"""How much load a plan sustains, as a value that integer programs can maximise or hold.

    e_m ∈ [0, 1]        share of model m's planned rate that comes in time (99 %) under Poisson arrivals
    h_m ∈ [0, 1 + HEADROOM]   what model m can serve over its planned rate: bursts need more

    sustain_m:  e_m · planned_m ≤ Σ_{c of m} rate of c / needed_c
    serve_m:    h_m · planned_m ≤ Σ_{c of m} rate of c
    value:      Σ_m e_m + BURSTS · h_m

`needed_c` (`patience`) says how much wider a model must be than its planned rate, the more, the less
time its requests can wait: the value prefers short pipelines, and slack where waiting time is short.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flows.planning.pool.columns import Columns
from flows.planning.pool.headroom import HEADROOM
from flows.planning.pool.integer import Layout, delivered_rps
from flows.planning.solver.program import ProgramBuilder

BURSTS = 0.1  # what capacity beyond the needed is worth beside the load sustained


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """What the value is made of: configurations, [n] needed capacity, [models] planned rates."""

    columns: Columns
    needed: NDArray[np.float64]
    promised_rps: NDArray[np.float64]

    def most(self) -> float:
        """What no plan exceeds."""
        return len(self.promised_rps) * (1 + BURSTS * (1 + HEADROOM))

    def value(self, vgpus: NDArray[np.int64]) -> float:
        """The value of vGPUs [n, S]."""
        sustained, served = self.shares(vgpus)
        return float(sustained.sum() + BURSTS * served.sum())

    def shares(self, vgpus: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """[models] e and h of vGPUs [n, S]."""
        rate = delivered_rps(self.columns, vgpus)
        models = len(self.promised_rps)
        sustained = np.bincount(self.columns.model, weights=rate / self.needed, minlength=models)
        served = np.bincount(self.columns.model, weights=rate, minlength=models)
        return (
            np.minimum(sustained / self.promised_rps, 1.0),
            np.minimum(served / self.promised_rps, 1 + HEADROOM),
        )

    def variables(
        self, build: ProgramBuilder, layout: Layout
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Add e and h with their rows to a program; returns their numbers."""
        models = len(self.promised_rps)
        e = build.variables("e", models, upper=1.0)
        h = build.variables("h", models, upper=1 + HEADROOM)
        for name, share, needed in (
            ("sustain", e, self.needed),
            ("serve", h, np.ones_like(self.needed)),
        ):
            row = build.rows(name, models, upper=0.0)
            build.entries(row, share, self.promised_rps)
            several = np.flatnonzero(layout.rates >= 0)
            model = self.columns.model[several]
            build.entries(row[model], layout.rates[several], -1 / needed[several])
            single = np.flatnonzero(layout.rates[layout.cell_column] < 0)
            column = layout.cell_column[single]
            rate = self.columns.rate_rps[column, layout.cell_stage[single]]
            build.entries(
                row[self.columns.model[column]], layout.vgpus[single], -rate / needed[column]
            )
        return e, h

    def hold(
        self,
        build: ProgramBuilder,
        shares: tuple[NDArray[np.int64], NDArray[np.int64]],
        least: float,
    ) -> None:
        """Add the row that keeps the value from falling below `least`."""
        e, h = shares
        row = build.rows("value", 1, upper=-least)
        build.entries(np.repeat(row, len(e)), e, -1.0)
        build.entries(np.repeat(row, len(h)), h, -BURSTS)
