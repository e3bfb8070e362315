"""The chart of a backtest: what came and what was planned for, above the GPUs in use.

Here: the picture. Not here: the figures (`flows/replanning/backtest`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flows.reporting.plots import write_figure
from flows.reporting.svg import BAD, LINE, SOFT, model_colour

INK, GPUS = "#111827", "#0f766e"
HOURS_PER_TICK = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCurve:
    """One model by period: mean, highest and planned rate (requests/s)."""

    name: str
    mean_rps: Sequence[float]
    highest_rps: Sequence[float]
    planned_rps: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class BacktestPicture:
    """The data of the chart; `hours` has one entry more, the end of the last period."""

    title: str
    hours: Sequence[float]
    models: Sequence[ModelCurve]
    gpus: Sequence[int]
    static_gpus: int
    mean_gpus: float
    served_percent: Sequence[float]


def draw_backtest(picture: BacktestPicture, path: Path) -> Path:
    """Draw into a file of any type that its name says.

    Raises:
        InputError: it cannot be written.
        ValueError: matplotlib does not know the type.
    """
    rows = len(picture.models)
    figure = Figure(figsize=(10, 1.8 * rows + 3.4), layout="constrained")
    heights = [1.0] * rows + [1.1, 0.7]
    axes: list[Axes] = list(figure.subplots(rows + 2, 1, sharex=True, height_ratios=heights))
    figure.suptitle(picture.title, x=0.01, ha="left", fontsize=11)
    for number, (model, place) in enumerate(zip(picture.models, axes, strict=False)):
        _rates(place, model, picture.hours, model_colour(number))
    _gpus(axes[rows], picture)
    _served(axes[rows + 1], picture)
    axes[0].legend(frameon=False, fontsize=8, ncols=3, loc="upper left")
    last = int(picture.hours[-1])
    axes[-1].set_xlim(picture.hours[0], picture.hours[-1])
    axes[-1].set_xticks(range(int(picture.hours[0]), last + 1, HOURS_PER_TICK))
    axes[-1].set_xlabel("hours since the table begins", fontsize=8)
    write_figure(figure, path, dpi=130)
    return path


def _rates(axes: Axes, model: ModelCurve, hours: Sequence[float], colour: str) -> None:
    _plain(axes)
    starts = hours[:-1]
    axes.fill_between(
        starts, model.highest_rps, step="post", color=colour, alpha=0.25, label="highest minute"
    )
    axes.fill_between(starts, model.mean_rps, step="post", color=colour, alpha=0.75, label="mean")
    axes.step(starts, model.planned_rps, where="post", color=INK, linewidth=1, label="planned")
    room = 1.3 * max([*model.highest_rps, *model.planned_rps])
    axes.set_ylim(0, room)
    axes.set_ylabel("requests/s", fontsize=8)
    axes.text(0.995, 0.93, model.name, transform=axes.transAxes, ha="right", va="top", fontsize=8)


def _gpus(axes: Axes, picture: BacktestPicture) -> None:
    _plain(axes)
    starts = picture.hours[:-1]
    axes.fill_between(starts, picture.gpus, step="post", color=GPUS, alpha=0.25)
    axes.step(starts, picture.gpus, where="post", color=GPUS, linewidth=1.2)
    levels = (
        (picture.static_gpus, "-", f"static plan for the peak: {picture.static_gpus}"),
        (picture.mean_gpus, "--", f"mean with replanning: {picture.mean_gpus:.1f}"),
    )
    for level, style, label in levels:
        axes.axhline(level, color=INK, linewidth=1, linestyle=style, label=label)
    axes.set_ylim(0, 1.45 * max([picture.static_gpus, *picture.gpus]))
    axes.set_ylabel("GPUs", fontsize=8)
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")


def _served(axes: Axes, picture: BacktestPicture) -> None:
    _plain(axes)
    lost = [100.0 - percent for percent in picture.served_percent]
    axes.bar(picture.hours[:-1], lost, width=_width(picture.hours), align="edge", color=BAD)
    axes.set_ylim(0, max(1.0, 1.15 * max(lost)))
    axes.set_ylabel("not served, %", fontsize=8)


def _width(hours: Sequence[float]) -> float:
    return hours[1] - hours[0]


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=SOFT, labelsize=8)
