"""Curves of `whatif` as files (PNG, SVG, all that matplotlib writes by the file's suffix).

Not here: backtests over time (`backtest_chart`), charts inside pages (`charts`).
Figures are drawn without pyplot, so nothing global is touched and no display is needed.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from flows.files import write_bytes
from flows.reporting.svg import LINE, SOFT, model_colour
from triton_backend.contract.errors import InputError

MARKERS = "osD^vPX*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line: `y` over `x`."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


def curve_chart(
    curves: Sequence[Curve],
    path: Path,
    *,
    x_label: str,
    y_label: str,
    title: str,
) -> Path:
    """Sweep curves: one outcome over one varied input."""
    figure, axes = _figure(title)
    for number, curve in enumerate(curves):
        _line(axes, number, curve)
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


def _save(figure: Figure, axes: Axes, path: Path) -> Path:
    """Legend and file."""
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=9)
    write_figure(figure, path, dpi=150)
    return path


def check_drawable(path: Path) -> None:
    """Refuse a file whose type matplotlib does not know, before the work.

    Raises:
        InputError: it is none of those types.
    """
    known = sorted(FigureCanvasAgg.get_supported_filetypes())
    if path.suffix[1:].lower() not in known:
        raise InputError(str(path), f"cannot be drawn: its type is none of {', '.join(known)}")


def write_figure(figure: Figure, path: Path, dpi: int) -> None:
    """Write a figure, of the type that the file's name says, whole or not at all.

    Raises:
        InputError: the file cannot be written.
        ValueError: matplotlib does not know the type.
    """
    FigureCanvasAgg(figure)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=dpi, format=path.suffix[1:])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, drawn.getvalue())
