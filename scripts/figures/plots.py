"""The plots of the figure pages.

SVG files drawn from claims and runs, the same bytes every time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from scripts.figures.claims import Figures, number
from triton_backend.contract.errors import InputError

OURS, THEIRS, PAPER, TARGET = "#3b6fb6", "#d9822b", "#9aa5b1", "#c0392b"
_STYLE: dict[str, Any] = {
    "svg.hashsalt": "figures",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
MIXES = ("scen1", "scen2", "scen3", "scen4", "scen5", "game", "traffic")
DARK = 1.8  # cells above it have white text
SIMULATED_RIVALS = ("against triton", "tuned triton")
RIVAL_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "two classes, three models": ("HC1-L", "HC2-L", "HC3-L", "HC4-L"),
    "one class, three models": ("one class",),
    "one class, 37 models": ("64 A100",),
    "parts of 4 GPUs, 3 to 9 models": ("4 parts",),
}
SERVED_RIVALS = ("triton served", "triton emulated")
SHOWN = {"attainment": "served", "simulated": "simulated"}
GRAFT_MODELS = ("Inc", "Res", "VGG", "Mob", "ViT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One plot: its page, its alternative text, its size in inches, how it is drawn."""

    area: str
    text: str
    draw: Callable[[Canvas, Figures], None]
    size: tuple[float, float] = (8.0, 3.2)


def draw(plot: Plot, figures: Figures) -> str:
    """The plot as the text of an SVG file."""
    with mpl.rc_context(_STYLE):  # pyright: ignore[reportArgumentType] - its stubs list every key
        canvas = Canvas(figsize=plot.size, layout="constrained", facecolor="white")
        FigureCanvasAgg(canvas)
        plot.draw(canvas, figures)
        out = StringIO()
        canvas.savefig(out, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def details_of(
    figures: Figures, benchmark: str, key: str, serves: Callable[[Any], object] = bool
) -> Any:
    """The value of `key` in the newest stored run of a benchmark whose value serves."""
    runs = [
        run
        for run in figures.runs
        if run.benchmark == benchmark and not run.transcribed and serves(run.details.get(key))
    ]
    if not runs:
        raise InputError(benchmark, f"no kept run has {key!r}")
    return max(runs, key=lambda run: run.at).details[key]


def _bars(
    axes: Axes, names: Sequence[str], series: Mapping[str, Sequence[float]], colours: Sequence[str]
) -> None:
    """Groups of bars, a colour a series, with the values on top."""
    width = 0.8 / len(series)
    for k, ((label, values), colour) in enumerate(zip(series.items(), colours, strict=True)):
        places = np.arange(len(names)) + width * (k - (len(series) - 1) / 2)
        bars = axes.bar(places, values, 0.92 * width, color=colour, label=label)
        axes.bar_label(bars, [number(value, 3) for value in values], fontsize=7, padding=1)
    axes.set_xticks(range(len(names)), names)


def _plans_of(family: str, plans: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
    return [plan for plan in plans or () if plan["family"] == family]


def gaps(canvas: Canvas, figures: Figures) -> None:
    """Gap against seconds of every published problem."""
    axes = canvas.subplots()
    for family, colour, label in (
        ("pool", OURS, "two stages"),
        ("three-stage", THEIRS, "three stages"),
    ):
        of_family = partial(_plans_of, family)
        chosen = of_family(details_of(figures, "planner", "plans", of_family))
        seconds = [one["seconds"] for one in chosen]
        axes.scatter(
            seconds, [max(one["gap"], 1e-7) for one in chosen], c=colour, s=16, label=label
        )
    axes.axvline(5.2, color=PAPER, linestyle="--", label="published, two stages: mean time")
    axes.axvline(33, color=PAPER, linestyle=":", label="published, two stages: worst time")
    axes.set(xscale="log", yscale="log", xlabel="seconds to plan", ylabel="gap to the bound")
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def growth(canvas: Canvas, figures: Figures) -> None:
    """CPU seconds of planning against models, GPUs and classes."""
    left, middle, right = canvas.subplots(1, 3, sharey=True)
    for stages, counts, colour in (
        ("two", (18, 36, 72, 144, 288, 396), OURS),
        ("three", (18, 36, 72, 144), THEIRS),
    ):
        values = [figures.value(f"planning.growth.{stages}{n}") for n in counts]
        left.plot(counts, values, "o-", color=colour, label=f"{stages} stages")
    for axes, name, counts in (
        (middle, "gpus", (700, 1400, 2800, 5600)),
        (right, "classes", (2, 3, 4)),
    ):
        values = [figures.value(f"planning.growth.{name}{n}") for n in counts]
        axes.plot(counts, values, "o-", color=OURS)
    left.set(xscale="log", yscale="log", xlabel="models", ylabel="CPU seconds, gap 1 %")
    middle.set(xscale="log", xlabel="GPUs, 72 models")
    right.set(xlabel="GPU classes, 72 models")
    left.legend(frameon=False, loc="lower right")
    for axes in (left, middle):
        axes.minorticks_off()
    left.set_xticks((18, 72, 396), ("18", "72", "396"))
    middle.set_xticks((700, 1400, 2800, 5600), ("700", "1,400", "2,800", "5,600"), fontsize=7)
    right.set_xticks((2, 3, 4))


def load_factors(canvas: Canvas, figures: Figures) -> None:
    """Highest load factor at 99 % by planner, beside the published ones and an ideal server."""
    axes = canvas.subplots()
    planners = ("load.pool", "load.dart", "load.whole")
    ours = [figures.value(name) for name in planners]
    paper = [figures.claim(name).target or 0.0 for name in planners]
    _bars(
        axes,
        ("pool", "dart-r", "no-partitioning"),
        {"here": ours, "published": paper},
        (OURS, PAPER),
    )
    axes.axhline(
        figures.value("load.ideal"),
        color=TARGET,
        linestyle="--",
        label="ideal server of the pool plans",
    )
    axes.set_ylabel("highest load factor at 99 %,\nmean of 72 cells")
    axes.set_ylim(0, 1.25)
    axes.legend(frameon=False, ncols=3, loc="upper center")


def answer_times(canvas: Canvas, figures: Figures) -> None:
    """Median answer times and busy vGPUs against load, of two rules of when a batch is sent."""
    levels: list[dict[str, Any]] = details_of(figures, "latency over load", "levels")
    left, right = canvas.subplots(1, 2)
    for policy, colour in (("reservation-ahead", OURS), ("reservation", THEIRS)):
        mine = [level for level in levels if level["policy"] == policy]
        loads = [level["load"] for level in mine]
        for axes, key in ((left, "median"), (right, "busy")):
            axes.plot(loads, [level[key] for level in mine], "o-", color=colour, label=policy)
    left.set(ylabel="median answer time over SLO")
    right.set(ylabel="share of time in which vGPUs run")
    for axes in (left, right):
        axes.set(xlabel="load, of the planned rate", xlim=(0, 1), ylim=(0, 1))
    left.legend(frameon=False, loc="upper right")


def reality(canvas: Canvas, figures: Figures) -> None:
    """Measured against simulated attainment of every run that notes both."""
    axes = canvas.subplots()
    pairs: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for run in figures.runs:
        for name, value in run.figures.items():
            other = name.removesuffix(": attained") + ": simulated"
            if name.endswith(": attained") and other in run.figures:
                pairs[run.quiet is not False].append((run.figures[other], value))
    for quiet, colour, label in (
        (True, OURS, "quiet, or load not noted"),
        (False, THEIRS, "other work beside it"),
    ):
        chosen = pairs[quiet]
        axes.scatter([x for x, _ in chosen], [y for _, y in chosen], s=16, c=colour, label=label)
    ends = np.array([82.0, 100.5])
    axes.fill_between(ends, ends - 2, ends + 2, color=PAPER, alpha=0.3, label="2 points")
    axes.set(xlabel="simulated attainment, %", ylabel="measured attainment, %", xlim=ends)
    axes.legend(frameon=False, loc="lower right", fontsize=8)


def fault_times(canvas: Canvas, figures: Figures) -> None:
    """Time without a dispatch by kind of fault, every run, with the target."""
    axes = canvas.subplots()
    kinds = (
        ("faults.scheduler.killed", "scheduler killed"),
        ("faults.deferred.scheduler", "scheduler killed,\npolicy deferred"),
        ("faults.application.scheduler", "scheduler killed,\nan application"),
        ("faults.scheduler.hung", "scheduler hung"),
    )
    for k, (name, _) in enumerate(kinds):
        claim = figures.claim(name)
        for run, value in figures.of(claim):
            axes.plot(value, k, "o", color=THEIRS if run.quiet is False else OURS, alpha=0.8)
        if claim.target is not None:
            axes.plot((claim.target,) * 2, (k - 0.35, k + 0.35), color=TARGET, linewidth=2)
    axes.plot([], [], "o", color=OURS, label="quiet machine")
    axes.plot([], [], "o", color=THEIRS, label="other work beside it")
    axes.plot([], [], color=TARGET, label="target, at most")
    axes.set_yticks(range(len(kinds)), [label for _, label in kinds])
    axes.set(xlabel="longest time without a dispatch, s", xlim=(0, 1.7))
    axes.invert_yaxis()
    axes.legend(frameon=False, loc="upper right")


def small_model(canvas: Canvas, figures: Figures) -> None:
    """Attainment of a model with an SLO of 5 ms in seconds with a plan change, against load."""
    axes = canvas.subplots()
    points = [
        (run.load, value)
        for run, value in figures.of(figures.claim("soak.small"))
        if run.load is not None
    ]
    axes.scatter([x for x, _ in points], [y for _, y in points], c=OURS, s=20)
    axes.axhline(99, color=TARGET, linestyle="--", label="target")
    axes.set(xlabel="load average of the machine (two cores)", ylabel="attained, %", ylim=(0, 103))
    axes.legend(frameon=False, loc="lower left")


def symphony(canvas: Canvas, figures: Figures) -> None:
    """Goodput by policy, and how busy each of eight GPUs is."""
    left, right = canvas.subplots(1, 2, width_ratios=(3, 2))
    policies = ("deferred", "shepherd", "nexus", "triton")
    goodput = {
        label: [
            figures.value(f"symphony.{model}" if p == "deferred" else f"symphony.{p}.{model}")
            for p in policies
        ]
        for label, model in (
            ("ResNet50, 25 ms", "resnet"),
            ("InceptionResNetV2, 70 ms", "inception"),
        )
    }
    names = ("deferred", "shepherd", "nexus", "triton,\nuntuned")
    _bars(left, names, goodput, (OURS, THEIRS))
    left.set_ylabel("goodput on 8 GPUs, requests/s")
    left.legend(frameon=False, fontsize=8, loc="upper right")
    busy = [figures.value(f"symphony.busy{k}") for k in range(6)]
    right.bar(range(1, 9), [*busy, 0, 0], color=OURS)
    right.set(xlabel="GPU", ylabel="busy share, deferred,\n3,000 requests/s", ylim=(0, 1))


def gpulets(canvas: Canvas, figures: Figures) -> None:
    """Exact plan over four others on seven mixes, and rates with MIG."""
    left, right = canvas.subplots(1, 2, width_ratios=(3, 2))
    others = (
        ("ideal", "ideal-static"),
        ("greedy", "gpulets-greedy"),
        ("sbp", "sbp"),
        ("best_fit", "best-fit"),
    )
    table = np.array(
        [[figures.value(f"gpulets.{other}.{mix}") for mix in MIXES] for other, _ in others]
    )
    left.imshow(table, cmap="Blues", vmin=1, vmax=2.5, aspect="auto")
    for (y, x), value in np.ndenumerate(table):
        colour = "white" if value > DARK else "black"
        left.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=8, color=colour)
    left.set_xticks(range(len(MIXES)), MIXES)
    left.set_yticks(range(len(others)), [f"over {name}" for _, name in others])
    left.set_title("highest rate of the exact plan", fontsize=9)
    rates = [figures.value(f"mig.16{kind}") for kind in (".whole", ".mps", ".one", "")]
    bars = right.barh(("whole", "MPS", "MIG", "MIG + MPS"), rates, color=OURS)
    right.bar_label(bars, fmt="{:,.0f}", fontsize=8, padding=2)
    right.set_title("16 A100: highest rate, requests/s", fontsize=9)
    right.margins(x=0.2)


def piccolo(canvas: Canvas, figures: Figures) -> None:
    """Share of workloads within an extra cost of the heuristic over the optimum."""
    axes = canvas.subplots()
    over = 100 * np.sort(np.array(details_of(figures, "piccolo", "piccolo_over_optimum")))
    axes.step(
        np.maximum(over, 0), 100 * np.arange(1, len(over) + 1) / len(over), color=OURS, where="post"
    )
    axes.set(
        xlabel="cost above the optimum, %",
        ylabel=f"% of {len(over)} workloads",
        xscale="symlog",
        xlim=(0, None),
        ylim=(0, 102),
    )
    axes.set_xticks((0, 1, 10, 100), ("0", "1", "10", "100"))
    axes.axvline(7.69, color=PAPER, linestyle="--", label="published worst, on other workloads")
    axes.legend(frameon=False, loc="lower right")


def graft(canvas: Canvas, figures: Figures) -> None:
    """Shares saved by model, beside the paper's, and headroom against attainment."""
    left, right = canvas.subplots(1, 2)
    saved = {
        "here": [figures.value(f"graft.equal.{model}") for model in GRAFT_MODELS],
        "published, other profiles": [
            figures.claim(f"graft.equal.{model}").target or 0.0 for model in GRAFT_MODELS
        ],
    }
    _bars(left, GRAFT_MODELS, saved, (OURS, PAPER))
    left.set_ylabel("GPU share saved, %")
    left.legend(frameon=False, fontsize=8, loc="upper left")
    for model in GRAFT_MODELS:
        kinds = ("any", "headroom1_25", "headroom1_5")
        attained = [figures.value(f"graft.{kind}.{model}") for kind in kinds]
        right.plot((1, 1.25, 1.5), attained, "o-", label=model)
    right.axhline(99, color=TARGET, linestyle="--")
    right.set(xlabel="headroom", ylabel="in time, Poisson, %")
    right.set_xticks((1, 1.25, 1.5))
    right.legend(frameon=False, fontsize=8, loc="lower right")


def against_triton(canvas: Canvas, figures: Figures) -> None:
    """Goodput of PoolPipe in times that of a tuned Triton, a mark for each simulated problem."""
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for run in sorted(figures.runs, key=lambda each: each.at):
        if run.benchmark in SIMULATED_RIVALS:
            rows: list[dict[str, Any]] = run.details.get("rows", [])
            newest |= {(row["cluster"], row["group"]): row for row in rows}
    settings = {
        name: [row for row in newest.values() if row["cluster"] in clusters]
        for name, clusters in RIVAL_SETTINGS.items()
    }
    axes = canvas.subplots()
    for key, above, colour, marker, label in (
        ("ours_rps", 0.12, OURS, "o", "searched, as Triton is"),
        ("auto_rps", -0.12, PAPER, "D", "--planner auto, nothing searched"),
    ):
        marks = [
            (row[key] / row["triton_rps"], above - place)
            for place, rows in enumerate(settings.values())
            for row in rows
            if row.get(key) is not None
        ]
        ratios, heights = zip(*marks, strict=True)
        axes.scatter(ratios, heights, c=colour, marker=marker, s=18, alpha=0.7, label=label)
    axes.axvline(1, color=TARGET, linestyle="--", linewidth=0.8)
    counts = [f"{len(rows)} problem{'s'[: len(rows) != 1]}" for rows in settings.values()]
    names = [f"{name}\n{count}" for name, count in zip(settings, counts, strict=True)]
    axes.set_yticks([-place for place in range(len(names))], names)
    axes.set(xlabel="goodput in times that of a tuned Triton (1: equal)", xlim=(0.95, None))
    axes.set_ylim(0.5 - len(names), 0.5)
    axes.legend(frameon=False, fontsize=8, loc="center right")


def rival(canvas: Canvas, figures: Figures) -> None:
    """Attainment against rate of a tuned Triton and of PoolPipe, each served and simulated."""
    newest: dict[str, list[dict[str, Any]]] = {}
    for run in sorted(figures.runs, key=lambda each: each.at):
        if run.benchmark in SERVED_RIVALS:
            rows: list[dict[str, Any]] = run.details["rows"]
            newest |= {row["problem"]: [] for row in rows}
            for row in rows:
                newest[row["problem"]].append(row)
    problems = sorted(newest)
    panels = np.atleast_1d(canvas.subplots(1, len(problems), sharey=True))
    for axes, problem in zip(panels, problems, strict=True):
        for side, colour in (("triton", THEIRS), ("PoolPipe", OURS)):
            mine = [row for row in newest[problem] if row["side"] == side]
            rates = [row["rate_rps"] for row in mine]
            for what, line in (("attainment", "o-"), ("simulated", ":")):
                shares = [100 * row[what] for row in mine]
                label = f"{side.capitalize() if side.islower() else side}, {SHOWN[what]}"
                axes.plot(rates, shares, line, color=colour, label=label, markersize=3)
        axes.axhline(99, color=TARGET, linestyle="--", linewidth=0.8)
        axes.set_title(problem, fontsize=8)
        axes.set_xlabel("requests/s")
        axes.set_xlim(0, None)
    panels[0].set(ylabel="in time, %, worst model", ylim=(60, 101))
    handles, labels = panels[0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)


PLOTS: Mapping[str, Plot] = {
    "planning-gaps": Plot(
        area="planning",
        text="Scatter: gap to the bound against seconds to plan, one point per published problem",
        draw=gaps,
    ),
    "planning-growth": Plot(
        area="planning",
        text="Lines: CPU seconds of planning against models, GPUs and GPU classes",
        draw=growth,
        size=(8.5, 3.0),
    ),
    "load-factors": Plot(
        area="scheduling",
        text="Bars: highest load factor at 99 % for three planners, here and published",
        draw=load_factors,
    ),
    "answer-times": Plot(
        area="scheduling",
        text="Lines: median answer time over SLO, and share of time in which vGPUs run, against "
        "load, by policy",
        draw=answer_times,
        size=(8.0, 3.0),
    ),
    "against-triton": Plot(
        area="scheduling",
        text="Marks: goodput of PoolPipe in times that of a tuned Triton, one per simulated "
        "problem, by setting",
        draw=against_triton,
        size=(8.0, 3.0),
    ),
    "rival": Plot(
        area="scheduling",
        text="Lines: share of requests in time against rate, tuned Triton and PoolPipe, both "
        "served here, each beside its simulation, whose runs last 10 % longer",
        draw=rival,
        size=(10.0, 3.0),
    ),
    "reality": Plot(
        area="simulator",
        text="Scatter: measured against simulated attainment, with a band of two points",
        draw=reality,
        size=(6.0, 4.0),
    ),
    "faults": Plot(
        area="faults",
        text="Dots: longest time without a dispatch after each kind of fault, with its target",
        draw=fault_times,
    ),
    "small-model": Plot(
        area="changes",
        text="Scatter: what a model with an SLO of 5 ms attains during plan changes, against "
        "machine load",
        draw=small_model,
        size=(6.0, 3.2),
    ),
    "symphony": Plot(
        area="symphony",
        text="Bars: goodput on eight GPUs by policy, and the busy share of each GPU under policy "
        "deferred",
        draw=symphony,
    ),
    "gpulets": Plot(
        area="gpulets",
        text="Heat map: exact plan over four other planners on seven mixes; bars: 16 A100 with "
        "MIG and MPS",
        draw=gpulets,
        size=(9.0, 3.0),
    ),
    "piccolo": Plot(
        area="piccolo",
        text="Curve: share of workloads within an extra cost of the heuristic over the optimum",
        draw=piccolo,
        size=(6.0, 3.2),
    ),
    "graft": Plot(
        area="graft",
        text="Bars: GPU share saved by model, here and published; lines: headroom against "
        "attainment",
        draw=graft,
    ),
}
