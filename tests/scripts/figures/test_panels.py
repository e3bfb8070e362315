"""Panels of a run become one picture, with the legend once where all panels have the same lines."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from scripts.figures.panels import picture
from scripts.paper.curves.panels import BARS, LINES, STEPS, Panel


def panels(kind: str, count: int, labels: tuple[str, ...] = ("a", "b")) -> list[dict[str, object]]:
    points = [("x", 1.0), ("y", 2.0)] if kind == BARS else [(1.0, 1.0), (2.0, 3.0)]
    series = dict.fromkeys(labels, points)
    log = "" if kind == BARS else "x"
    return [
        Panel(title=f"p{n}", x="x", y="y", series=series, kind=kind, log=log, mark=1.0).to_dict()
        for n in range(count)
    ]


@pytest.mark.long
@pytest.mark.parametrize("kind", [LINES, STEPS, BARS])
@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_every_panel_is_drawn_and_the_legend_once(kind: str, count: int) -> None:
    plot = picture("Paper 1", panels(kind, count))
    assert plot.text.startswith("Paper 1: p0")
    canvas = Canvas(figsize=plot.size, layout="constrained")
    FigureCanvasAgg(canvas)
    plot.draw(canvas, None)  # pyright: ignore[reportArgumentType] - panels need no claims
    drawn = [axes for axes in canvas.axes if axes.axison]
    assert [axes.get_title() for axes in drawn] == [f"p{n}" for n in range(count)]
    assert len(canvas.legends) == 1
    assert all(axes.get_legend() is None for axes in drawn)
