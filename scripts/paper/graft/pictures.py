"""Pictures of the Graft study, from what `study.py --out FILE` stored.

Ours beside the paper's numbers and the aims.

    .venv/bin/python scripts/paper/graft/study.py --data DIR
        --only reduction,shared-batches,throughput,scale --out study.json
    .venv/bin/python scripts/paper/graft/pictures.py study.json [MORE.json] -o DIR

Several files are read one after the other; a later figure of the same name replaces an earlier one.
A picture whose figures are in none of them is not drawn.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from scripts.paper.graft.fleets import FLEETS, MODELS

EXACT, GRAFT, OTHERS, AIM = "#1f6feb", "#8bb8f5", "#57606a", "#cf222e"
WIDE, HIGH, DPI = 5.6, 3.8, 120
KINDS = {"homogeneous": "20 equal clients", "mixed": "15 and 5 clients of two kinds"}
LOADS = {"planned rates": 99.5, "Poisson at 0.9": 99.0}
THROUGHPUT = 1.18
AIMS_S = {50: 1.0, 2_000: 10.0}  # seconds of exact plans, by entries
AIMS_GAP = {20: 0.0, 50: 1.0, 2_000: 3.0}  # percent

Known = Mapping[str, Mapping[str, Any]]
Bars = Sequence[tuple[str, str, Sequence[float]]]
"""Label, colour and a value for each model; NaN: not known."""


def main() -> int:
    """Draw what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    asked = parser.parse_args()
    known: dict[str, dict[str, Any]] = {}
    for path in asked.files:
        known |= {row["name"]: row for row in json.loads(path.read_text())["figures"]}
    asked.output.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        figure = draw(known)
        if figure is not None:
            figure.tight_layout()
            figure.savefig(asked.output / f"{name}.png", dpi=DPI)
            print(asked.output / f"{name}.png")
    return 0


def value(known: Known, name: str) -> float:
    """Of a figure; NaN where it was not measured."""
    found = known.get(name, {}).get("value")
    return float("nan") if found is None else float(found)


def noted(known: Known, name: str, before: str) -> float:
    """A number that its note says after some words."""
    found = re.search(rf"{before} ([\d.]+)", known.get(name, {}).get("note", ""))
    return float(found[1]) if found else float("nan")


def reductions(known: Known) -> Figure | None:
    """Percents of GPUs saved against `gslice-plus` (table III)."""
    figure, panels = _panels(len(FLEETS), "shares below gslice-plus (%)")
    for axes, fleet in zip(panels, FLEETS, strict=True):
        names = [f"{model}, {fleet}" for model in MODELS]
        exact = [f"{name}: exact below gslice-plus" for name in names]
        _bars(axes, KINDS[fleet], [
            ("exact", EXACT, [value(known, name) for name in exact]),
            ("graft here", GRAFT, [value(known, f"{n}: graft below gslice-plus") for n in names]),
            ("graft, paper", OTHERS, [noted(known, name, "paper's Graft") for name in exact]),
        ])  # fmt: skip
    return _if_any(figure, known, "exact below gslice-plus")


def spread(known: Known) -> Figure | None:
    """The same where cuts really differ, and each plan has the least headroom for 99 %."""
    figure, panels = _panels(len(FLEETS), "shares below gslice-plus (%)")
    part = "with headroom, spread cuts"
    for axes, fleet in zip(panels, FLEETS, strict=True):
        bars: list[tuple[str, str, list[float]]] = []
        for row, colour in (("pool", EXACT), ("graft", GRAFT)):
            names = [f"{model}, {fleet}, {part}: {row} below gslice-plus" for model in MODELS]
            bars.append((f"{row} by default", colour, [value(known, name) for name in names]))
        _bars(axes, KINDS[fleet], bars)
    return _if_any(figure, known, part)


def attained(known: Known) -> Figure | None:
    """Attainment of fleets in shared batches, beside a server that takes what waits by deadline."""
    figure, panels = _panels(len(LOADS), "requests in time (%)")
    for axes, (load, aim) in zip(panels, LOADS.items(), strict=True):
        bars: list[tuple[str, str, list[float]]] = []
        for planner, colour in (("graft", GRAFT), ("pool", EXACT)):
            names = [f"{model}, {planner}, {load}: attainment" for model in MODELS]
            label = "exact plans" if planner == "pool" else "graft's plans"
            bars.append((label, colour, [value(known, name) for name in names]))
            ideal = [noted(known, name, "by deadline") for name in names]
            bars.append((f"{label}, by deadline", OTHERS, ideal))
        _bars(axes, load, bars)
        axes.axhline(aim, color=AIM, linewidth=1, linestyle="--")
        known_ones = [v for _, _, values in bars for v in values if not np.isnan(v)]
        axes.set_ylim(np.floor(min(known_ones, default=90.0) - 2), 100.4)
    return _if_any(figure, known, "planned rates: attainment")


def throughputs(known: Known) -> Figure | None:
    """Throughput on given GPUs over that of `gslice-plus` (section 5.7)."""
    figure, (axes,) = _panels(1, "throughput over gslice-plus")
    names = [f"{model}: exact throughput over gslice-plus" for model in MODELS]
    rates, clients = ([f"{name}, by {by}" for name in names] for by in ("rates", "clients"))
    paper = [noted(known, name, "paper's Graft") for name in clients]
    _bars(axes, "the same GPUs", [
        ("exact, by rates", GRAFT, [value(known, name) for name in rates]),
        ("exact, by clients", EXACT, [value(known, name) for name in clients]),
        ("graft, paper (by clients)", OTHERS, paper),
    ])  # fmt: skip
    axes.axhline(THROUGHPUT, color=AIM, linewidth=1, linestyle="--")
    return _if_any(figure, known, "exact throughput over gslice-plus")


def scales(known: Known) -> Figure | None:
    """Seconds and gaps by the number of entries."""
    counts = (20, 50, 2_000)
    figure, (left, right) = _panels(2, "seconds to plan")
    left.set_title("median time, exact (solid) and graft (dashed)")
    right.set_title("largest gap to the proven bound")
    right.set_ylabel("%")
    for number, model in enumerate(MODELS):
        where = [f"{model}, {count} entries" for count in counts]
        exact = [value(known, f"{name}: exact") for name in where]
        if np.isnan(exact).all():
            continue
        colour = f"C{number}"
        left.loglog(counts, exact, "o-", color=colour, label=model)
        graft = [value(known, f"{name}: graft") for name in where]
        left.loglog(counts, graft, "s--", color=colour)
        gaps = [value(known, f"{name}: largest gap") for name in where]
        right.semilogx(counts, gaps, "o-", color=colour, label=model)
    left.loglog(*zip(*AIMS_S.items(), strict=True), "x", color=AIM, label="aim of exact")
    right.semilogx(*zip(*AIMS_GAP.items(), strict=True), "x", color=AIM, label="aim")
    for axes in (left, right):
        axes.set_xlabel("entries")
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.minorticks_off()
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=6)
    return _if_any(figure, known, "entries: exact")


def loops(known: Known) -> Figure | None:
    """The closed loop: what clients that follow their links get, and what is held for them."""
    figure, (left, right) = _panels(2, "requests in time (%)")
    served = [f"{model}, closed loop: served of what was possible" for model in MODELS]
    offered = [f"{model}, closed loop: served of all offered" for model in MODELS]
    _bars(left, "20 clients on 5G traces", [
        ("of what was possible", EXACT, [value(known, name) for name in served]),
        ("of all", GRAFT, [value(known, name) for name in offered]),
        ("of all, with foresight", OTHERS, [noted(known, name, "the oracle") for name in offered]),
    ])  # fmt: skip
    left.axhline(LOADS["Poisson at 0.9"], color=AIM, linewidth=1, linestyle="--")
    shares = [value(known, f"{model}, closed loop: shares over static-plus") for model in MODELS]
    _bars(right, "shares held over static-plus", [("steered", EXACT, shares)])
    right.set_ylabel("ratio")
    right.axhline(0.9, color=AIM, linewidth=1, linestyle="--")
    return _if_any(figure, known, "closed loop: served of what was possible")


def _panels(count: int, title: str) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(WIDE * count, HIGH))
    FigureCanvasAgg(figure)
    panels = [figure.add_subplot(1, count, number + 1) for number in range(count)]
    panels[0].set_ylabel(title)
    return figure, panels


def _bars(axes: Axes, title: str, bars: Bars) -> None:
    """Bars of every model that has one, side by side."""
    width = 0.8 / len(bars)
    shown = [n for n in range(len(MODELS)) if not all(np.isnan(own[n]) for _, _, own in bars)]
    for number, (label, colour, values) in enumerate(bars):
        places = np.arange(len(shown)) + (number - (len(bars) - 1) / 2) * width
        axes.bar(places, [values[n] for n in shown], width * 0.92, label=label, color=colour)
    axes.set_xticks(range(len(shown)), [MODELS[n] for n in shown])
    axes.set_xlim(-0.6, max(len(shown), 3) - 0.4)
    axes.set_title(title)
    if len(bars) > 1:
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=len(bars))


def _if_any(figure: Figure, known: Known, part: str) -> Figure | None:
    return figure if any(part in name for name in known) else None


PICTURES: dict[str, Callable[[Known], Figure | None]] = {
    "reduction": reductions,
    "spread-cuts": spread,
    "shared_batches": attained,
    "throughput": throughputs,
    "scale": scales,
    "closed-loop": loops,
}


if __name__ == "__main__":
    sys.exit(main())
