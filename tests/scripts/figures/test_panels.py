"""Panels of a run become one picture, with the legend once where one panel has the lines of all."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from scripts.figures.panels import picture
from scripts.figures.plots import Plot
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


def drawn_of(plot: Plot) -> Canvas:
    canvas = Canvas(figsize=plot.size, layout="constrained")
    FigureCanvasAgg(canvas)
    plot.draw(canvas, None)  # pyright: ignore[reportArgumentType] - panels need no claims
    return canvas


def test_a_label_has_one_colour_and_one_entry_in_panels_with_other_lines() -> None:
    both = [*panels(LINES, 1, ("a", "b", "c")), *panels(LINES, 1, ("a", "c"))]
    canvas = drawn_of(picture("Paper 1", both))
    (legend,) = canvas.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "c"]
    colours = [{line.get_label(): line.get_color() for line in a.lines} for a in canvas.axes]
    assert colours[0]["c"] == colours[1]["c"] != colours[0]["b"]


def test_titles_of_axes_stay_within_their_panel_and_levels_have_numbers() -> None:
    panel = Panel(
        title="p",
        x="time on the server over the client's budget",
        y="GPU share over that of classes, median",
        series={"a": [(1.0, 24.0), (10.0, 270.0)]},
        log="xy",
    )
    canvas = drawn_of(picture("Paper 1", [panel.to_dict()] * 3))
    canvas.canvas.draw()
    for axes in canvas.axes:
        for label, side in ((axes.xaxis.label, "width"), (axes.yaxis.label, "height")):
            assert getattr(label.get_window_extent(), side) <= getattr(axes.bbox, side)
        low, high = axes.get_ylim()
        numbers = [
            t.get_text() for t in axes.get_yticklabels() if low <= t.get_position()[1] <= high
        ]
        assert numbers == ["50", "100", "200"]


def test_a_panels_own_legend_stands_below_its_title() -> None:
    own = [*panels(LINES, 1, ("a", "b")), *panels(LINES, 1, ("c", "d"))]
    own[0]["x"] = "time until the batch begins, over the SLO"
    canvas = drawn_of(picture("Paper 1", own))
    canvas.canvas.draw()
    for axes in canvas.axes:
        legend = axes.get_legend()
        assert legend is not None
        assert legend.get_window_extent().y1 <= axes.xaxis.label.get_window_extent().y0
