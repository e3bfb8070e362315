"""Figures of the Graft paper from tables of others, beside what it states.

    .venv/bin/python scripts/paper/graft/study.py --data DIR
        [--only reduction,headroom,scale,throughput,shared-batches,closed-loop]
        [--draws 50] [--gpus 4] [--by rates,clients] [--headroom 1] [--phases even] [--cuts least]
        [--seconds 600] [--models Inc,ViT] [--out FILE] [--warehouse FILE]

`fleets.py` says what `--data` holds and how fleets are drawn; `clients.py` simulates `shared
batches` and `closed-loop`.
"""

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.clock import Stopwatch
from flows.planning import PlanOptions, make_plan
from flows.planning.entries import AS_LISTED
from flows.planning.entries.plan import Rule, exactly, graft, in_any_phase
from flows.planning.entries.tables import read_tables
from flows.planning.papers.graft.rules import gslice
from flows.planning.registry import Inputs
from scripts.benchmarks.figures import Figure, add_destinations, exit_code, show, store
from scripts.paper.graft.clients import Loop, closed_loop, planned, shared_batches
from scripts.paper.graft.fleets import FLEETS, MODELS, fleet, inputs_of, spread_fleet
from triton_backend.contract.errors import InfeasibleError

if TYPE_CHECKING:
    from triton_backend.contract.entries import Entry

FRAMES_S = 20.0  # of every fleet in shared batches
_CLOSE = 0.02  # gap of plans that are made to see whether they fit
_LOOSE = 3.0  # percent: gap of thousands of entries, where the paper merges to a threshold of 0.01
# entries, draws, seconds of the exact plan, seconds of graft, gap in percent
SCALES: tuple[tuple[int, int, float | None, float | None, float | None], ...] = (
    (20, 5, None, None, None),
    (50, 5, 1.0, 0.3, 1.0),
    (2_000, 1, 10.0, None, _LOOSE),
)
LEAST, SPREAD = "least", "spread"  # cuts of clients: of least latency, or spread
_PLUS = "gslice-plus"
THROUGHPUT = ("pool", _PLUS)
RULES: dict[str, Rule] = {
    "pool": exactly,
    "graft": graft,
    "gslice": partial(gslice, merge=False),
    "gslice-plus": partial(gslice, merge=True),
    "static-plus": partial(gslice, merge=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A planner's answer: percents, their lower bound, seconds."""

    value: float
    bound: float
    seconds: float


def run(rule: Rule, planner: str, inputs: Inputs, **more: Any) -> Run:
    """A planner's percents, without placing them."""
    options = PlanOptions(planner=planner, objective="share", slo_margin=0.5, own=AS_LISTED | more)
    watch, inputs = Stopwatch(), replace(inputs, options=options)
    solved = in_any_phase(rule, read_tables(inputs)[0], inputs)
    seconds = watch.seconds()
    bound = solved.pooled.cost if solved.bound is None else solved.bound
    return Run(value=solved.pooled.cost, bound=bound, seconds=seconds)


def reductions(data: Path, draws: int, phases: str) -> tuple[list[Figure], dict[str, Any]]:
    """Percents held by exact and `graft` plans against `gslice-plus`, beside table III."""
    paper = published(data)
    figures: list[Figure] = []
    raw: dict[str, Any] = {}
    means: list[float] = []
    for fleet_name, (row, devices) in FLEETS.items():
        for name in MODELS:
            random = np.random.default_rng(0)
            kept: dict[str, list[float]] = {}
            cuts: Counter[int] = Counter()
            budgets: list[float] = []
            for _ in range(draws):
                entries, fixed = fleet(data, name, devices, random)
                cuts.update(e.block for e in entries)
                budgets += [e.budget_us / 1e3 for e in entries]
                for planner, rule in RULES.items():
                    mine = fixed if planner.startswith("static") else entries
                    more = {"phases": phases} if planner == "pool" else {}
                    found = run(rule, planner, inputs_of(data, name, mine), **more)
                    kept.setdefault(planner, []).append(found.value)
                    if planner == "pool":
                        kept.setdefault("gap", []).append(1 - found.bound / found.value)
            base = np.array(kept["gslice-plus"])
            saved = {
                p: float(np.mean(1 - np.array(v) / base)) for p, v in kept.items() if p != "gap"
            }
            means.append(saved["pool"])
            worst = max(e / min(kept[p][n] for p in RULES if not p.startswith("static"))
                        for n, e in enumerate(kept["pool"]))  # fmt: skip
            where = f"{name}, {fleet_name}"
            figures += [
                Figure(
                    name=f"{where}: exact below gslice-plus",
                    value=100 * saved["pool"],
                    unit="%",
                    note=f"paper's Graft {paper[row, name]:g} %",
                ),
                Figure(
                    name=f"{where}: graft below gslice-plus", value=100 * saved["graft"], unit="%"
                ),
                Figure(
                    name=f"{where}: exact over the best of all",
                    value=worst,
                    most=1 + 1e-9 if phases == "even" else None,
                ),
                Figure(
                    name=f"{where}: mean gap", value=100 * float(np.mean(kept["gap"])), unit="%"
                ),
            ]
            raw[where] = {
                "cuts": dict(sorted(cuts.items())),
                "budgets_ms": np.percentile(budgets, [0, 25, 50, 75, 100]).round(1).tolist(),
                "percents": {p: float(np.mean(v)) for p, v in kept.items() if p != "gap"},
            }
    mean = 100 * float(np.mean(means))
    figures.append(Figure(name="mean of exact below gslice-plus", value=mean, unit="%", least=20.0))
    return figures, raw


def with_headroom(
    data: Path, draws: int, names: Sequence[str], cuts: str
) -> tuple[list[Figure], dict[str, Any]]:
    """Percents held where every plan has the least headroom for 99 % of Poisson arrivals at 0.9.

    `gslice-plus` plans by rates, `pool` for clients of any phases, as by default, and by rates.
    Clients cut where latency is least, or their cuts are spread (`fleets.py`).
    """
    rows = {"pool": ("pool", "any"), "graft": ("graft", "any")}
    if cuts == LEAST:
        rows["pool by rates"] = ("pool", "even")
    figures: list[Figure] = []
    raw: dict[str, Any] = {}
    saved: dict[str, list[float]] = {}
    short, suffix = 0, "" if cuts == LEAST else f", {cuts} cuts"
    lost = dict.fromkeys(rows, 0)
    for fleet_name, (_, devices) in FLEETS.items():
        for name in names:
            random = np.random.default_rng(0)
            kept: dict[str, list[float]] = {}
            blocks: Counter[int] = Counter()
            for _ in range(draws):
                drawn = spread_fleet if cuts == SPREAD else _least_latency
                entries = drawn(data, name, devices, random)
                blocks.update(entry.block for entry in entries)
                inputs = inputs_of(data, name, entries)
                for row, (planner, phases) in {**rows, "gslice-plus": (_PLUS, "even")}.items():
                    plan = planned(inputs, planner, phases=phases, headroom="poisson99")
                    kept.setdefault(row, []).append(plan.objective.value)
                    short += any(n.startswith("headroom:") for n in plan.certificate["notes"])
            where = f"{name}, {fleet_name}, with headroom{suffix}"
            base = np.array(kept["gslice-plus"])
            for row in rows:
                below = 100 * float(np.mean(1 - np.array(kept[row]) / base))
                saved.setdefault(row, []).append(below)
                figures.append(Figure(name=f"{where}: {row} below {_PLUS}", value=below, unit="%"))
                lost[row] += int(np.count_nonzero(np.array(kept[row]) > base))
            raw[where] = {
                "percents": {row: float(np.mean(v)) for row, v in kept.items()},
                "draws": kept,
                "blocks": dict(sorted(blocks.items())),
            }
    for row, each in saved.items():
        figures.append(
            Figure(
                name=f"with headroom{suffix}, mean of {row} below {_PLUS}",
                value=float(np.mean(each)),
                unit="%",
                least=20.0 if row == "pool" else None,
                note=f"{_PLUS} holds less in {lost[row]} of {draws * len(each)} draws",
            )
        )
    what = f"with headroom{suffix}, plans that fall short"
    figures.append(Figure(name=what, value=short, most=0))
    return figures, raw


def _least_latency(
    data: Path, name: str, devices: Sequence[str], random: np.random.Generator
) -> "tuple[Entry, ...]":
    return fleet(data, name, devices, random)[0]


def scale(data: Path, names: Sequence[str]) -> tuple[list[Figure], dict[str, Any]]:
    """Seconds and gaps for 20, 50 and 2,000 entries.

    Every run after one that compiles and caches.
    """
    figures: list[Figure] = []
    for count, draws, most_s, most_graft_s, most_gap in SCALES:
        for name in names:
            random = np.random.default_rng(1)
            devices = ("nano", "nano", "nano", "tx2") * (count // 4 + 1)
            runs: dict[str, list[Run]] = {}
            for _ in range(draws):
                entries, _ = fleet(data, name, devices[:count], random)
                inputs = inputs_of(data, name, entries)
                for planner in ("graft", "pool"):
                    more = (
                        {"merge_threshold": 0.01}
                        if planner == "graft" and most_gap == _LOOSE
                        else {}
                    )
                    run(RULES[planner], planner, inputs, **more)
                    runs.setdefault(planner, []).append(
                        run(RULES[planner], planner, inputs, **more)
                    )
            gaps = [100 * (1 - r.bound / r.value) for r in runs["pool"]]
            where = f"{name}, {count} entries"
            seconds = {p: float(np.median([r.seconds for r in r_])) for p, r_ in runs.items()}
            figures += [
                Figure(name=f"{where}: exact", value=seconds["pool"], unit="s", most=most_s),
                Figure(
                    name=f"{where}: graft",
                    value=seconds["graft"],
                    unit="s",
                    most=most_graft_s,
                ),
                Figure(name=f"{where}: largest gap", value=max(gaps), unit="%", most=most_gap),
            ]
    return figures, {}


def throughput(
    data: Path, draws: int, gpus: int, by: str, names: Sequence[str]
) -> tuple[list[Figure], dict[str, Any]]:
    """Rates of exact plans on given GPUs over those of `gslice-plus`, beside section 5.7.

    By `rates`: the largest multiple of all rates of a fleet; a fleet that cannot be planned at any
    rate is said, and left out of the mean. By `clients`, as in the paper: the most clients of a row
    of them that are planned together.
    """
    paper = published(data)
    measure = MEASURES[by]
    figures: list[Figure] = []
    ratios: list[float] = []
    without: list[str] = []
    for name in names:
        random = np.random.default_rng(2)
        served = [measure(data, name, gpus, random) for _ in range(draws)]
        both = [own for own in served if all(own.values())]
        note = f"paper's Graft {paper['throughput_vs_gslice_plus', name]:g}"
        note += "".join(
            f"; {planner} serves {lost} of {draws} fleets at no rate"
            for planner in THROUGHPUT
            if (lost := sum(not own[planner] for own in served))
        )
        if both:
            note += "; " + _means(both)
            if all("most" in own for own in both):
                most = float(np.mean([own["most"] / own["gslice-plus"] for own in both]))
                note += f"; none above {most:.3f}"
            ratios.append(float(np.mean([own["pool"] / own["gslice-plus"] for own in both])))
        else:
            without.append(name)
        figures.append(
            Figure(
                name=f"{name}: exact throughput over gslice-plus, by {by}",
                value=ratios[-1] if both else None,
                unit="x",
                note=note,
            )
        )
    figures.append(
        Figure(
            name=f"mean throughput over gslice-plus, by {by}",
            value=float(np.mean(ratios)) if ratios else None,
            unit="x",
            least=1.18,
            note=f"without {', '.join(without)}: no fleet is served" if without else "",
        )
    )
    return figures, {}


def throughputs(
    asked: argparse.Namespace, names: Sequence[str]
) -> tuple[list[Figure], dict[str, Any]]:
    """`throughput` by each measure that is asked for."""
    draws = max(1, asked.draws // 10)
    figures = [
        figure
        for by in asked.by.split(",")
        for figure in throughput(asked.data, draws, asked.gpus, by, names)[0]
    ]
    return figures, {}


def _means(served: Sequence[Mapping[str, float]]) -> str:
    return " over ".join(f"{np.mean([own[p] for own in served]):.3g}" for p in THROUGHPUT)


def _by_rates(data: Path, name: str, gpus: int, random: np.random.Generator) -> dict[str, float]:
    """By planner the largest multiple of all rates of a fleet, and what none exceeds.

    0 where it is served at none.
    """
    entries, _ = fleet(data, name, FLEETS["homogeneous"][1], random)
    inputs = inputs_of(data, name, entries, gpus)
    found = {planner: largest_multiple(inputs, planner) for planner in THROUGHPUT}
    return {planner: value for planner, (value, _) in found.items()} | {"most": found["pool"][1]}


def largest_multiple(inputs: Inputs, planner: str) -> tuple[float, float]:
    """Of all rates, on the GPUs that there are, and what none exceeds.

    0 where these serve the entries at none.
    """
    options = PlanOptions(planner=planner, objective="throughput", own=AS_LISTED)
    try:
        plan = make_plan(inputs.profiles, inputs.cluster, inputs.workload, options)
    except InfeasibleError:
        return 0.0, 0.0
    return plan.objective.value, plan.objective.upper_bound


def _by_clients(data: Path, name: str, gpus: int, random: np.random.Generator) -> dict[str, float]:
    """How many clients of a row each planner plans together, found by bisection."""
    row: list[Entry] = []

    def planned(planner: str, count: int) -> bool:
        while len(row) < count:
            first = len(row)
            more, _ = fleet(data, name, FLEETS["homogeneous"][1], random)
            row.extend(replace(e, name=f"c{first + n}") for n, e in enumerate(more))
        inputs = inputs_of(data, name, row[:count], gpus)
        options = PlanOptions(planner=planner, objective="share", gap=_CLOSE, own=AS_LISTED)
        try:
            make_plan(inputs.profiles, inputs.cluster, inputs.workload, options)
        except InfeasibleError:
            return False
        return True

    plus = most_able(partial(planned, "gslice-plus"))
    return {"pool": most_able(partial(planned, "pool"), plus), "gslice-plus": plus}


def most_able(able: Callable[[int], bool], known: int = 0) -> int:
    """The largest number that is able, by larger steps and halves; at least what is known to be."""
    low, step = known, max(1, known // 8)
    while able(low + step):
        low, step = low + step, 2 * step
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if able(middle) else (low, middle)
    return low


MEASURES = {"rates": _by_rates, "clients": _by_clients}


def published(data: Path) -> dict[tuple[str, str], float]:
    """The paper's numbers by key and model."""
    with (data / "graft/paper_tables.csv").open() as lines:
        return {(row["key"], row["model"]): float(row["value"]) for row in csv.DictReader(lines)}


def _require_known(
    parser: argparse.ArgumentParser, option: str, given: Sequence[str], known: Sequence[str]
) -> None:
    for name in given:
        if name not in known:
            parser.error(f"{option}: {name!r} is none of {', '.join(known)}")


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only", default="reduction,scale,throughput", metavar="LIST")
    parser.add_argument("--draws", type=int, default=50, metavar="N")
    parser.add_argument("--gpus", type=int, default=4, metavar="N", help="of the throughput")
    parser.add_argument(
        "--by", default="rates,clients", metavar="LIST", help="of the throughput: rates, clients"
    )
    parser.add_argument(
        "--headroom", type=float, default=1.0, metavar="X", help="of shared_batches"
    )
    parser.add_argument(
        "--phases",
        default="even",
        choices=("any", "even"),
        help="of exact plans, but of throughput",
    )
    parser.add_argument(
        "--cuts", default=LEAST, choices=(LEAST, SPREAD), help="of the clients of headroom"
    )
    parser.add_argument("--seconds", type=float, default=600.0, metavar="S", help="of the loop")
    parser.add_argument(
        "--models", default=",".join(MODELS), metavar="LIST", help="of all but reduction"
    )
    add_destinations(parser)
    asked = parser.parse_args()
    names = asked.models.split(",")
    parts: dict[str, Callable[[], tuple[list[Figure], dict[str, Any]]]] = {
        "reduction": lambda: reductions(asked.data, asked.draws, asked.phases),
        "headroom": lambda: with_headroom(asked.data, asked.draws, names, asked.cuts),
        "scale": lambda: scale(asked.data, names),
        "throughput": lambda: throughputs(asked, names),
        "shared-batches": lambda: shared_batches(
            asked.data,
            max(1, asked.draws // 10),
            FRAMES_S,
            names,
            headroom=asked.headroom,
            phases=asked.phases,
        ),
        "closed-loop": lambda: closed_loop(asked.data, Loop(seconds=asked.seconds), names),
    }
    _require_known(parser, "--models", names, MODELS)
    _require_known(parser, "--by", asked.by.split(","), tuple(MEASURES))
    _require_known(parser, "--only", asked.only.split(","), tuple(parts))
    figures: list[Figure] = []
    raw: dict[str, Any] = {}
    for part in asked.only.split(","):
        made, more = parts[part]()
        show(made)
        figures += made
        raw |= more
    store(asked, "graft", figures, raw)
    for where, row in raw.items():
        if "cuts" in row:
            print(
                f"{where}: cuts {row['cuts']}, budgets {row['budgets_ms']} ms, percents "
                f"{row['percents']}"
            )
    return exit_code(figures)


if __name__ == "__main__":
    sys.exit(main())
