"""Charts as files (PNG, SVG, whatever matplotlib writes by the file's suffix).

Here: attainment against load, utilisation by class, latency distribution, what-if curves and a
backtest over time. Not here: charts inside pages (`charts`), the runs behind them.
Figures are drawn without pyplot, so nothing global is touched and no display is needed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from flows.reporting.svg import BAD, LINE, SOFT, model_colour

GOAL_PERCENT = 99.0
MARKERS = "osD^vPX*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line: `y` over `x`, with the spread over seeds where known."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


def attainment_chart(curves: Sequence[Curve], path: Path, *, title: str = "") -> Path:
    """Attainment (fractions) against load factor for several plans or policies."""
    figure, axes = _figure(title)
    for number, curve in enumerate(curves):
        _line(axes, number, _scaled(curve, 100))
    axes.axhline(GOAL_PERCENT, color=BAD, linewidth=1, linestyle="--")
    lowest = min((min(curve.y, default=1.0) for curve in curves), default=1.0) * 100
    axes.set_ylim(max(0.0, min(lowest - 2, 95.0)), 100.4)
    axes.set_xlabel("load factor (offered / planned rate)")
    axes.set_ylabel("attainment")
    axes.yaxis.set_major_formatter(PercentFormatter(symbol=" %"))
    return _save(figure, axes, path)


def utilisation_chart(
    runs: Mapping[str, Mapping[str, float]], path: Path, *, title: str = ""
) -> Path:
    """Bars of utilisation (fractions) per GPU class, one group per class, one bar per run."""
    figure, axes = _figure(title)
    classes = list(dict.fromkeys(name for by_class in runs.values() for name in by_class))
    width = 0.8 / max(len(runs), 1)
    for number, (label, by_class) in enumerate(runs.items()):
        places = np.arange(len(classes)) + (number - (len(runs) - 1) / 2) * width
        values = [by_class.get(name, 0.0) * 100 for name in classes]
        bars = axes.bar(places, values, width * 0.92, label=label, color=model_colour(number))
        axes.bar_label(bars, fmt="%.0f", fontsize=8, color=SOFT, padding=2)
    axes.set_xticks(np.arange(len(classes)), classes)
    axes.set_ylim(0, 108)
    axes.set_ylabel("utilisation")
    axes.yaxis.set_major_formatter(PercentFormatter(symbol=" %"))
    return _save(figure, axes, path)


def latency_chart(
    runs: Mapping[str, NDArray[np.float64]], slo_ms: float, path: Path, *, title: str = ""
) -> Path:
    """Cumulative distribution of latencies (ms) of several runs against the SLO."""
    figure, axes = _figure(title)
    for number, (label, latencies_ms) in enumerate(runs.items()):
        ordered = np.sort(latencies_ms)
        share = np.arange(1, len(ordered) + 1) / max(len(ordered), 1) * 100
        axes.step(ordered, share, where="post", label=label, color=model_colour(number))
    axes.axvline(slo_ms, color=BAD, linewidth=1, linestyle="--", label=f"SLO {slo_ms:g} ms")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 101)
    axes.set_xlabel("latency (ms)")
    axes.set_ylabel("answered within")
    axes.yaxis.set_major_formatter(PercentFormatter(symbol=" %"))
    return _save(figure, axes, path)


def curve_chart(
    curves: Sequence[Curve],
    path: Path,
    *,
    x_label: str,
    y_label: str,
    title: str = "",
    marked_x: float | None = None,
) -> Path:
    """Sweep curves: one outcome over one varied input; `marked_x` is today's value."""
    figure, axes = _figure(title)
    for number, curve in enumerate(curves):
        _line(axes, number, curve)
    if marked_x is not None:
        axes.axvline(marked_x, color=SOFT, linewidth=1, linestyle=":", label="as it is")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    return _save(figure, axes, path)


def _figure(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    _plain(axes)
    axes.set_title(title, loc="left", fontsize=11)
    return figure, axes


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=SOFT, labelsize=9)


def _line(axes: Axes, number: int, curve: Curve) -> None:
    colour = model_colour(number)
    axes.plot(
        curve.x,
        curve.y,
        label=curve.label,
        color=colour,
        marker=MARKERS[number % len(MARKERS)],
        markersize=4,
        linewidth=1.6,
    )
    if curve.low is not None and curve.high is not None:
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)


def _scaled(curve: Curve, factor: float) -> Curve:
    def scale(values: Sequence[float] | None) -> list[float] | None:
        return None if values is None else [value * factor for value in values]

    return Curve(
        label=curve.label,
        x=curve.x,
        y=scale(curve.y) or [],
        low=scale(curve.low),
        high=scale(curve.high),
    )


def _save(figure: Figure, axes: Axes, path: Path) -> Path:
    """Legend, folders, file."""
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=150)
    return path
