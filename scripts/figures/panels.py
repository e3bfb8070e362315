"""Pictures of the papers' experiments, from the panels that their runs keep."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator

from scripts.figures.claims import Figures
from scripts.figures.plots import PAPER, TARGET, Plot, details_of
from scripts.paper.curves.panels import BARS, STEPS

COLOURS = ("#3b6fb6", "#d9822b", "#4d9a6a", "#8e6bb0", "#9aa5b1", "#b65c5c")
ACROSS = {4: 2}  # panels beside each other, by their number; else up to three
WIDE, HIGH = 2.9, 2.9  # inches of a panel
GROUPS = 4  # groups of bars above which their names are turned


def picture(title: str, panels: Sequence[Mapping[str, Any]]) -> Plot:
    """The plot of an experiment; `title` begins its alternative text."""
    across = ACROSS.get(len(panels), min(len(panels), 3))
    wide = max(WIDE * across, 6.0)
    titles = "; ".join(str(panel["title"]) for panel in panels)

    def draw(canvas: Canvas, _: object) -> None:
        drawn = canvas.subplots(ceil(len(panels) / across), across, squeeze=False).flatten()
        for axes, panel in zip(drawn, panels, strict=False):
            _panel(axes, panel)
        for axes in drawn[len(panels) :]:
            axes.axis("off")
        handles, labels = drawn[0].get_legend_handles_labels()
        same = all(list(panel["series"]) == list(panels[0]["series"]) for panel in panels)
        if same and len(labels) > 1:
            canvas.legend(
                handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8
            )
        else:
            for axes in drawn[: len(panels)]:
                axes.legend(
                    frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2)
                )

    high = HIGH * ceil(len(panels) / across) + 0.4
    return Plot(area="papers", text=f"{title}: {titles}", draw=draw, size=(wide, high))


def panels_of(figures: Figures, name: str) -> list[Mapping[str, Any]]:
    """The panels of the newest kept run of an experiment."""
    return details_of(figures, "papers", name)


def _panel(axes: Axes, panel: Mapping[str, Any]) -> None:
    series: Mapping[str, Sequence[Sequence[Any]]] = panel["series"]
    bars, steps = panel["kind"] == BARS, panel["kind"] == STEPS
    for number, (label, points) in enumerate(series.items()):
        xs, ys = [point[0] for point in points], [point[1] for point in points]
        colour = PAPER if label.startswith("paper") else COLOURS[number % len(COLOURS)]
        if bars:
            width = 0.8 / len(series)
            places = np.arange(len(xs)) + width * (number - (len(series) - 1) / 2)
            axes.bar(places, ys, 0.92 * width, color=colour, label=label)
            turned = len(xs) > GROUPS and max(map(len, xs)) > GROUPS
            axes.set_xticks(
                range(len(xs)), xs, rotation=60 if turned else 0, ha="right" if turned else "center"
            )
        elif steps:
            axes.step(xs, ys, where="post", color=colour, label=label)
        else:
            axes.plot(xs, ys, "o-", color=colour, label=label, markersize=3)
    for axis in panel["log"]:
        getattr(axes, f"set_{axis}scale")("log")
    if "x" in panel["log"] and not steps:
        ticks = sorted({point[0] for points in series.values() for point in points})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=7)
        axes.minorticks_off()
    if "x" in panel["log"] and steps:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    if panel["mark"] is not None:
        line = axes.axvline if steps else axes.axhline
        line(panel["mark"], color=TARGET, linestyle="--", linewidth=0.8)
    if not panel["log"] and not steps and min(y for p in series.values() for _, y in p) >= 0:
        axes.set_ylim(0, None)
    axes.set_title(panel["title"], fontsize=9)
    axes.set(xlabel=panel["x"], ylabel=panel["y"])
