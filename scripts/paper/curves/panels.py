"""Curves of an experiment beside its figures, as `scripts.figures` draws them.

A panel is data, not a drawing: a run keeps it as JSON, and the page's picture is made of that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scripts.benchmarks.figures import Figure

Points = Sequence[tuple[float | str, float]]
LINES, STEPS, BARS = "lines", "steps", "bars"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart of a picture.

    Attributes:
        title, x, y: what it shows, and what its axes hold.
        series: points (x, y) by label; x of bars is the name of a group.
        kind: `lines`, `steps` (a distribution) or `bars`.
        log: axes on a logarithmic scale, of "x" and "y".
        mark: a level to compare with, drawn dashed across: along y, or along x for `steps`.
    """

    title: str
    x: str
    y: str
    series: Mapping[str, Points]
    kind: str = LINES
    log: str = ""
    mark: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As a run keeps it, numbers to four digits."""
        return {
            "title": self.title,
            "x": self.x,
            "y": self.y,
            "kind": self.kind,
            "log": self.log,
            "mark": self.mark,
            "series": {
                label: [[x if isinstance(x, str) else short(x), short(y)] for x, y in points]
                for label, points in self.series.items()
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How an experiment is run: folder of the published tables, and how much of it."""

    data: Path
    seeds: int
    seconds: float
    draws: int


@dataclass(slots=True, kw_only=True)
class Found:
    """Figures and panels of one experiment."""

    figures: list[Figure] = field(default_factory=list[Figure])
    panels: list[Panel] = field(default_factory=list[Panel])


def short(value: float) -> float:
    """A number with four digits."""
    return float(f"{value:.4g}")


def distribution(values: Sequence[float], points: int = 60) -> list[tuple[float, float]]:
    """Points of the cumulative distribution, in percent."""
    shares = np.linspace(0, 100, points + 1)
    return list(zip(np.percentile(values, shares).tolist(), shares.tolist(), strict=True))


def over_seeds(
    name: str, values: Sequence[float], unit: str = "", *, worst: str = "least", note: str = ""
) -> list[Figure]:
    """The median of several values and, as a figure of its own, the worst: the least or the most.

    One value stands alone.
    """
    if len(values) == 1:
        return [Figure(name=name, value=float(values[0]), unit=unit, note=note)]
    low = float(min(values) if worst == "least" else max(values))
    middle = float(np.median(values))
    return [
        Figure(name=f"{name}: median", value=middle, unit=unit, note=note),
        Figure(name=f"{name}: worst", value=low, unit=unit),
    ]
