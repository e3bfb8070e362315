"""Pictures of the papers' experiments, from the panels that their runs keep."""

from collections.abc import Mapping, Sequence
from math import ceil
from textwrap import fill
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
LETTERS = 28  # of a line of an axis' title


def picture(title: str, panels: Sequence[Mapping[str, Any]]) -> Plot:
    """The plot of an experiment; `title` begins its alternative text."""
    across = ACROSS.get(len(panels), min(len(panels), 3))
    wide = max(WIDE * across, 6.0)
    titles = "; ".join(str(panel["title"]) for panel in panels)

    def draw(canvas: Canvas, _: object) -> None:
        drawn = canvas.subplots(ceil(len(panels) / across), across, squeeze=False).flatten()
        known = max((list(panel["series"]) for panel in panels), key=len)
        shared = len(known) > 1 and all(set(panel["series"]) <= set(known) for panel in panels)
        for axes, panel in zip(drawn, panels, strict=False):
            _panel(axes, panel, known if shared else list(panel["series"]))
        for axes in drawn[len(panels) :]:
            axes.axis("off")
        if shared:
            every = next(
                a for a, p in zip(drawn, panels, strict=False) if list(p["series"]) == known
            )
            handles, _ = every.get_legend_handles_labels()
            canvas.legend(
                handles, known, loc="outside lower center", ncols=3, frameon=False, fontsize=8
            )
        else:
            for axes in drawn[: len(panels)]:
                below = -0.2 - 0.08 * axes.get_xlabel().count("\n")
                axes.legend(
                    frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, below)
                )

    high = HIGH * ceil(len(panels) / across) + 0.4
    return Plot(area="papers", text=f"{title}: {titles}", draw=draw, size=(wide, high))


def panels_of(figures: Figures, name: str) -> list[Mapping[str, Any]]:
    """The panels of the newest kept run of an experiment."""
    return details_of(figures, "papers", name)


def _panel(axes: Axes, panel: Mapping[str, Any], labels: Sequence[str]) -> None:
    """Draw a panel; every one of `labels` has a colour of its own."""
    series: Mapping[str, Sequence[Sequence[Any]]] = panel["series"]
    bars, steps = panel["kind"] == BARS, panel["kind"] == STEPS
    for number, (label, points) in enumerate(series.items()):
        xs, ys = [point[0] for point in points], [point[1] for point in points]
        own = COLOURS[labels.index(label) % len(COLOURS)]
        colour = PAPER if label.startswith("paper") else own
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
    for axis in (axes.yaxis,) * ("y" in panel["log"]) + (axes.xaxis,) * (
        "x" in panel["log"] and steps
    ):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    if panel["mark"] is not None:
        line = axes.axvline if steps else axes.axhline
        line(panel["mark"], color=TARGET, linestyle="--", linewidth=0.8)
    if not panel["log"] and not steps and min(y for p in series.values() for _, y in p) >= 0:
        axes.set_ylim(0, None)
    axes.set_title(panel["title"], fontsize=9)
    x, y = (fill(panel[axis], LETTERS, break_on_hyphens=False) for axis in "xy")
    axes.set(xlabel=x, ylabel=y)
