"""Small charts inside pages: latency against the SLO, attainment of several runs, of loads.

Inline SVG that needs no script. Charts for files (PNG, SVG) are in `plots`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flows.reporting import words
from flows.reporting.data import BesideTriton, LoadPoint, Outcomes, VariantCurve
from flows.reporting.svg import (
    BAD,
    FAINT,
    INK,
    SOFT,
    drawing,
    element,
    fits,
    model_colour,
    rect,
    straight_line,
    text,
    title,
)

GOAL = 0.99
BINS = 80
NARROW = 100  # left of this the SLO's label stands right of its line
RUN_COLOURS = ("#1f2933", "#d9822b", "#2a9fb0", "#7d5ba6", "#b5495b")
MARK_ROOM = 17  # above a dashed line for its name; where less is left, it stands below
LOAD_STEP = 0.5  # between two ticks of loads
AXIS_STARTS = (0.99, 0.95, 0.9, 0.8, 0.5)


def latency_svg(number: int, slo_ms: float, runs: Sequence[tuple[str, NDArray[np.float64]]]) -> str:
    """Histogram of the first run's latencies as bars, of the others as outlines, and the SLO.

    Latencies beyond the axis are counted in the last bin, so that nothing late is hidden.
    """
    width, height, left, bottom, top = 560.0, 200.0, 8.0, 30.0, 40.0
    most_ms = max([slo_ms * 1.15, *(_reach(values) for _, values in runs)])
    step_ms = slo_ms / max(round(BINS * slo_ms / most_ms), 1)  # the SLO lies between two bins
    most_ms = step_ms * np.ceil(most_ms / step_ms)
    scale = (width - 2 * left) / most_ms
    floor, room = height - bottom, height - bottom - top
    edges = np.arange(round(most_ms / step_ms) + 1) * step_ms
    shares = [np.histogram(np.minimum(v, edges[-1]), edges)[0] / max(len(v), 1) for _, v in runs]
    tallest = max((float(share.max()) for share in shares), default=0) or 1
    parts = [straight_line(left, floor, width - left, floor, stroke=FAINT)]
    parts += _ticks(most_ms, left, scale, floor)
    for i, share in enumerate(shares):
        heights = share / tallest * room
        if i == 0:
            parts += _bars(edges, heights, (left, scale, floor), (number, slo_ms, len(runs[0][1])))
        else:
            parts.append(_outline(edges, heights, left, scale, floor))
    x = left + slo_ms * scale
    parts += [
        straight_line(x, 24, x, floor, stroke=BAD, stroke_dasharray="4 3", stroke_width=1.5),
        text(
            x - 5 if x > NARROW else x + 5,
            34,
            f"SLO {words.milliseconds(slo_ms)}",
            size=11,
            fill=BAD,
            text_anchor="end" if x > NARROW else "start",
        ),
    ]
    for i, (label, _) in enumerate(runs):
        x = left + i * 110
        if i == 0:
            parts.append(rect(x, 5, 12, 10, fill=model_colour(number), fill_opacity=0.75))
        else:
            parts.append(straight_line(x, 10, x + 12, 10, stroke=INK, stroke_width=1.6))
        parts.append(text(x + 17, 14, label, size=11, fill=SOFT))
    return drawing(width, height, parts, "latency distribution against the SLO")


def attainment_svg(names: Sequence[str], runs: Sequence[Outcomes], width: float = 1160.0) -> str:
    """One row per model, one dot per run, on an axis that starts where the worst one allows."""
    row, left, right, top = 30.0, min(330.0, 0.36 * width), 90.0, 40.0
    found = [
        outcome.attainment
        for run in runs
        for name in names
        if (outcome := run.models.get(name)) and outcome.attainment is not None
    ]
    start = _axis_start(min(found, default=1.0))
    scale = (width - left - right) / (1 - start)
    height = top + row * len(names) + 24
    parts: list[str] = []
    for i, run in enumerate(runs):
        x = left + i * 150
        parts += [_dot(x + 6, 12, i), text(x + 18, 16, run.label, size=12, fill=SOFT)]
    for value in np.linspace(start, 1, 6):
        x = left + (value - start) * scale
        parts += [
            straight_line(x, top - 8, x, height - 22, stroke="#e9edf2"),
            text(x, height - 6, words.percent(value), size=10.5, fill=SOFT, text_anchor="middle"),
        ]
    if start <= GOAL:
        x = left + (GOAL - start) * scale
        parts.append(straight_line(x, top - 12, x, height - 22, stroke=BAD, stroke_dasharray="4 3"))
    for i, name in enumerate(names):
        y = top + i * row + row / 2 - 4
        short = words.shorten(name, fits(left - 24, 12))
        parts += [
            rect(0, y - 6, 4, 12, fill=model_colour(i)),
            text(12, y + 4, short, size=12),
            straight_line(left, y, width - right, y),
        ]
        for j, run in reversed(list(enumerate(runs))):
            outcome = run.models.get(name)
            if outcome is None or outcome.attainment is None:
                continue
            x = left + (outcome.attainment - start) * scale
            tip = f"{name}, {run.label}: {words.percent(outcome.attainment, 2)}"
            parts.append(_dot(x, y, j, tip))
            if j == 0:
                label = words.percent(outcome.attainment, 2)
                parts.append(text(width - right + 16, y + 4, label, size=12, font_weight=600))
    return drawing(width, height, parts, "attainment of the runs per model")


def accuracy_svg(number: int, curve: VariantCurve) -> str:
    """Mean accuracy of the answers to a name over its load, between those of its variants."""
    values = curve.accuracies.values()
    low, high = min(values), max(values)
    margin = 0.15 * (high - low) or 0.01
    marks = [
        (value, f"{words.shorten(name, 40)} {words.number(value, 4)}", SOFT)
        for name, value in curve.accuracies.items()
    ]
    points = [(point.load, point.accuracy) for point in curve.points if point.accuracy is not None]
    frame = _LoadFrame(low=low - margin, high=high + margin, loads=_loads(curve.points))
    label = f"mean accuracy of {curve.name} against load"
    lines = [_Line(colour=model_colour(number), points=points)]
    return _load_svg(frame, (lines, marks), (words.number, _precisely), label)


def in_time_svg(number: int, curve: VariantCurve) -> str:
    """Share of a name's requests that are answered in time over its load, and the goal."""
    lines = [_Line(colour=model_colour(number), points=_in_time(curve.points))]
    return _shares_svg(lines, f"share of {curve.name} in time against load")


def beside_triton_svg(found: BesideTriton) -> str:
    """Shares in time of a plan and of Triton alone against load, and the goal."""
    sides = (("this plan", found.plan), ("Triton alone", found.triton))
    lines = [
        _Line(name=name, colour=colour, points=_in_time(points))
        for (name, points), colour in zip(sides, RUN_COLOURS, strict=False)
    ]
    return _shares_svg(lines, "share in time against load, of the plan and of Triton alone")


def _in_time(points: Sequence[LoadPoint]) -> list[tuple[float, float]]:
    return [(point.load, point.in_time) for point in points]


def _shares_svg(lines: "Sequence[_Line]", label: str) -> str:
    worst = min(share for line in lines for _, share in line.points)
    loads = [load for line in lines for load, _ in line.points]
    first = min(loads)
    frame = _LoadFrame(
        low=min(_axis_start(worst), 0.9),
        high=1.0,
        loads=(first if first >= LOAD_STEP else 0.0, max(loads)),
        top=34.0 if any(line.name for line in lines) else 16.0,
    )
    marks = [(GOAL, f"goal {words.percent(GOAL, 0)}", BAD)]
    return _load_svg(frame, (lines, marks), (_whole_percent, words.percent), label)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoadFrame:
    """Axes of a chart over loads: `low` to `high`, first to last load."""

    low: float
    high: float
    loads: tuple[float, float]
    width: float = 560.0
    height: float = 220.0
    left: float = 52.0
    right: float = 14.0
    top: float = 16.0
    bottom: float = 40.0

    def x(self, load: float) -> float:
        """Where a load stands."""
        first, last = self.loads
        return self.left + (load - first) / (last - first) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        """Where a value stands."""
        room = self.height - self.top - self.bottom
        return self.top + (self.high - value) / (self.high - self.low) * room


def _precisely(accuracy: float) -> str:
    return words.number(accuracy, 4)


def _whole_percent(share: float) -> str:
    return words.percent(share, 0)


def _loads(points: Sequence[LoadPoint]) -> tuple[float, float]:
    return points[0].load, points[-1].load


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """Values by load; a name stands in a legend."""

    colour: str
    points: Sequence[tuple[float, float]]
    name: str = ""


def _load_svg(
    frame: _LoadFrame,
    content: tuple[Sequence[_Line], Sequence[tuple[float, str, str]]],
    in_words: tuple[Callable[[float], str], Callable[[float], str]],
    label: str,
) -> str:
    """Lines over loads.

    Args:
        frame: its axes.
        content: the lines, and values with a name and colour, drawn as dashes.
        in_words: values at the axis, and of points.
        label: what the picture is.
    """
    (lines, marks), (ticks, tips) = content, in_words
    ends = frame.left, frame.width - frame.right
    floor = frame.height - frame.bottom
    parts: list[str] = []
    step = _tick_step(frame.high - frame.low)
    for value in step * np.arange(np.ceil(frame.low / step - 1e-6), frame.high / step + 1e-6):
        y = frame.y(float(value))
        parts += [
            straight_line(ends[0], y, ends[1], y, stroke="#e9edf2"),
            text(ends[0] - 8, y + 4, ticks(float(value)), size=10.5, fill=SOFT, text_anchor="end"),
        ]
    for load in np.arange(frame.loads[0], frame.loads[1] + 0.01, LOAD_STEP):
        x = frame.x(float(load))
        parts += [
            straight_line(x, floor, x, floor + 4, stroke=FAINT),
            text(x, floor + 17, f"{load:g} ×", size=10.5, fill=SOFT, text_anchor="middle"),
        ]
    for value, name, colour in marks:
        y = frame.y(value)
        left = 2 * value < frame.low + frame.high or y < frame.top + MARK_ROOM
        x, anchor = (ends[0] + 4, "start") if left else (ends[1], "end")  # clear of a falling line
        below = 13 if y < frame.top + MARK_ROOM else -5
        parts += [
            straight_line(ends[0], y, ends[1], y, stroke=colour, stroke_dasharray="4 3"),
            text(x, y + below, name, size=10.5, fill=colour, text_anchor=anchor),
        ]
    for number, line in enumerate(lines):
        parts += _drawn(line, frame, number, tips)
    return drawing(frame.width, frame.height, parts, label)


def _drawn(
    line: _Line, frame: _LoadFrame, number: int, in_words: Callable[[float], str]
) -> list[str]:
    """A line with its points, and its name in the legend, if it has one."""
    corners = " ".join(f"{frame.x(load):.1f},{frame.y(value):.1f}" for load, value in line.points)
    parts = [element("polyline", points=corners, fill="none", stroke=line.colour, stroke_width=2)]
    for load, value in line.points:
        tip = title(f"{load:g} times the planned rate: {in_words(value)}")
        place = {"cx": frame.x(load), "cy": frame.y(value), "r": 4}
        parts.append(element("circle", tip, fill=line.colour, **place))
    if line.name:
        x = frame.left + number * 130
        parts += [
            straight_line(x, 10, x + 14, 10, stroke=line.colour, stroke_width=2),
            text(x + 20, 14, line.name, size=11, fill=SOFT),
        ]
    return parts


def _axis_start(worst: float) -> float:
    """Where an axis of shares starts that shows the worst one."""
    return next((s for s in AXIS_STARTS if worst >= s + (1 - s) * 0.05), 0.0)


def _reach(values: NDArray[np.float64]) -> float:
    """The axis holds all but the slowest 0.2 %."""
    return float(np.percentile(values, 99.8)) * 1.05 if len(values) else 0.0


def _tick_step(span: float) -> float:
    """A round distance between ticks, of which a span has 6 at most."""
    step = 10 ** float(np.floor(np.log10(span / 4)))
    return step * next(m for m in (1, 2, 5, 10) if span / (step * m) <= 6)  # noqa: PLR2004 - ticks


def _ticks(most_ms: float, left: float, scale: float, floor: float) -> list[str]:
    parts: list[str] = []
    for value in np.arange(0, most_ms * 0.98, _tick_step(most_ms)):
        x = left + float(value) * scale
        anchor = "start" if value == 0 else "middle"
        label = words.number(float(value)) if value else "0 ms"
        parts += [
            straight_line(x, floor, x, floor + 4, stroke=FAINT),
            text(x, floor + 17, label, size=10.5, fill=SOFT, text_anchor=anchor),
        ]
    return parts


def _bars(
    edges: NDArray[np.float64],
    heights: NDArray[np.float64],
    axis: tuple[float, float, float],
    whose: tuple[int, float, int],
) -> list[str]:
    left, scale, floor = axis
    number, slo_ms, _ = whose
    width = float(edges[1] - edges[0]) * scale
    return [
        rect(
            left + float(edge) * scale,
            floor - float(height),
            width - 0.6,
            float(height),
            fill=model_colour(number) if edge < slo_ms * 0.999 else BAD,
            fill_opacity=0.75,
        )
        for edge, height in zip(edges[:-1], heights, strict=True)
        if height > 0
    ]


def _outline(
    edges: NDArray[np.float64],
    heights: NDArray[np.float64],
    left: float,
    scale: float,
    floor: float,
) -> str:
    xs = np.repeat(left + edges * scale, 2)[1:-1]
    ys = np.repeat(floor - heights, 2)
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
    return element("polyline", points=points, fill="none", stroke=INK, stroke_width=1.3)


def _dot(x: float, y: float, run: int, tip: str = "") -> str:
    colour = RUN_COLOURS[run % len(RUN_COLOURS)]
    inner = title(tip) if tip else ""
    hollow = run > 0
    return element(
        "circle",
        inner,
        cx=x,
        cy=y,
        r=5.5,
        fill="#fff" if hollow else colour,
        stroke=colour,
        stroke_width=2,
    )
