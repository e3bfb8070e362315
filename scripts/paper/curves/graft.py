"""Curves of the Graft paper on clients whose cuts really differ: figures 7 to 16, 18 and 20.

Clients are drawn by the rule of spread cuts that `graft/fleets.py` states; every draw counts. Plans
carry the rates as they are listed and no more, as the papers' systems plan, by rates alone (`even`)
and without placing them on GPUs; `exact` is the planner `pool`. `alone` is `gslice`, `classes` is
`gslice-plus`. Figures 8 to 10 then serve such plans, simulated.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from flows.planning.entries import AS_LISTED
from flows.planning.papers.graft.rules import every_grouping
from flows.planning.solver.arrays import Floats
from scripts.paper.curves.panels import (
    BARS,
    STEPS,
    Asked,
    Found,
    Panel,
    Points,
    distribution,
    over_seeds,
)
from scripts.paper.graft.clients import at_equal_gaps, planned
from scripts.paper.graft.fleets import FRAMES, MODELS, inputs_of, models, spread_fleet
from scripts.paper.graft.study import RULES, run
from triton_backend.contract.entries import Entry
from triton_backend.contract.errors import PoolPipeError
from triton_backend.simulator.offered import Stated
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions
from triton_backend.simulator.world import SERVED

NANO, TX2 = "nano", "tx2"
FLEETS: Mapping[str, tuple[str, ...]] = {
    "4 Nano": (NANO,) * 4,
    "4 Nano, 2 TX2": (NANO,) * 4 + (TX2,) * 2,
    "20 Nano": (NANO,) * 20,
}
PLANNERS = {
    "exact": "pool",
    "graft": "graft",
    "optimal": "graft-optimal",
    "classes": "gslice-plus",
    "alone": "gslice",
}
ALL_RULES = {**RULES, "graft-optimal": every_grouping}
FEW, USUAL = 6, 5  # clients that are grouped in every way; of a group that others are compared with
NO_MERGING, ALL_UNIFORM = 1e9, -1e9  # thresholds of spare rate
COUNTS_14 = (10, 20, 30, 40, 50)
THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.6)
SIZES = (2, 3, 4, 5, 6, 8)
WEIGHTS = ("1,1,1", "2,1,1", "1,2,1", "1,1,2", "4,1,1", "1,4,1", "1,1,4")
COUNTS_18 = (100, 500, 1_000, 2_000)
SLO_RATIOS = (0.5, 0.6, 0.7, 0.8, 0.9)
LINKS_MBPS, RATES_RPS = (20, 50, 100, 200, 400), (5, 10, 20, 30, 45, 60)


def percents_of(
    data: Path, name: str, entries: Sequence[Entry], label: str, **own: object
) -> float:
    """Percents of a GPU that a planner holds for clients of a model; infinite without a plan."""
    planner = PLANNERS[label]
    more = {"phases": "even", **own} if planner == "pool" else own
    try:
        return run(ALL_RULES[planner], planner, inputs_of(data, name, entries), **more).value
    except PoolPipeError:
        return math.inf


def shares_by_way(
    asked: Asked,
    name: str,
    drawn: Sequence[Sequence[Entry]],
    ways: Mapping[str, tuple[str, Mapping[str, object]]],
) -> dict[str, Floats]:
    """Percents of a GPU of every draw of clients of a model, by way: a planner and its options."""
    return {
        way: np.array([percents_of(asked.data, name, e, label, **own) for e in drawn])
        for way, (label, own) in ways.items()
    }


def plainly(*labels: str) -> dict[str, tuple[str, Mapping[str, object]]]:
    """Planners without options, as `shares_by_way` takes them."""
    return {label: (label, {}) for label in labels}


def by_option(
    option: str, values: Mapping[str, object]
) -> dict[str, tuple[str, Mapping[str, object]]]:
    """`graft` with every value of an option, as `shares_by_way` takes them."""
    return {way: ("graft", {option: value}) for way, value in values.items()}


def ratios_by_model(title: str, y: str, bars: Mapping[str, Points]) -> Panel:
    """Bars of ratios, a group for each model."""
    return Panel(title=title, x="", y=y, series=bars, kind=BARS, mark=1.0)


def fleets(
    asked: Asked, name: str, devices: Sequence[str], *, slo: float | None = None
) -> list[tuple[Entry, ...]]:
    """So many draws, of which the first are the same whatever their number."""
    random = np.random.default_rng(0)
    more = {} if slo is None else {"slo": slo}
    return [spread_fleet(asked.data, name, devices, random, **more) for _ in range(asked.draws)]


def resources(asked: Asked) -> Found:
    """Figure 7: GPU share held by every planner, three fleets, five models."""
    found = Found()
    for fleet_name, devices in FLEETS.items():
        large = len(devices) > FEW  # every grouping is tried of few clients
        labels = [label for label in PLANNERS if not (large and label == "optimal")]
        bars: dict[str, list[tuple[str, float]]] = {label: [] for label in labels}
        for name in MODELS:
            shares = shares_by_way(asked, name, fleets(asked, name, devices), plainly(*labels))
            base = "classes" if large else "alone"
            for label, values in shares.items():
                bars[label].append((name, float(np.median(values / shares[base]))))
            for label in ("exact", "graft"):
                saved = 100 * (1 - shares[label] / shares[base])
                where = f"figure 7, {fleet_name}, {name}: {label} below {base}"
                found.figures += over_seeds(where, saved.tolist(), "%")
        y = f"GPU share over that of {'classes' if large else 'alone'}, median"
        found.panels.append(ratios_by_model(fleet_name, y, bars))
    return found


def latencies(asked: Asked) -> Found:
    """Figures 8 to 10: what clients get of these plans, each sending at equal gaps of any phase."""
    found = Found()
    for fleet_name, devices in FLEETS.items():
        curves: dict[str, list[tuple[float, float]]] = {}
        for label in ("exact", "graft", "classes", "alone"):
            used: list[float] = []
            attained: list[float] = []
            for name in MODELS:
                for seed, entries in enumerate(fleets(asked, name, devices)):
                    own = {**AS_LISTED}
                    plan = planned(inputs_of(asked.data, name, entries), PLANNERS[label], **own)
                    frames = at_equal_gaps(
                        entries,
                        asked.seconds if name not in FRAMES else 10 * asked.seconds,
                        np.random.default_rng(seed),
                    )
                    options = SimOptions(
                        arrivals=Stated(requests=frames),
                        duration_s=asked.seconds if name not in FRAMES else 10 * asked.seconds,
                        keep_uses=False,
                    )
                    rows = simulate(plan, options).requests
                    budget = rows["deadline_us"] - rows["arrival_us"]
                    share = (rows["finish_us"] - rows["arrival_us"]) / budget
                    served = rows["outcome"] == SERVED
                    used += np.where(served, share, np.inf).tolist()
                    attained.append(100 * float(np.mean(served & (share <= 1))))
            where = f"figures 8 to 10, {fleet_name}, {label}: in time"
            found.figures += over_seeds(where, attained, "%")
            kept = [share for share in used if share < math.inf]
            part = len(kept) / len(used)
            curves[label] = [(x, part * y) for x, y in distribution(kept)]
        found.panels.append(
            Panel(
                title=fleet_name,
                x="time on the server over the client's budget",
                y="% of requests",
                series=curves,
                kind=STEPS,
                mark=1.0,
            )
        )
    return found


def repartition(asked: Asked) -> Found:
    """Figure 11: five clients, with re-partitioning and without, none merged."""
    found = Found()
    bars: dict[str, list[tuple[str, float]]] = {"median": [], "least": []}
    ways = by_option("merge_threshold", {"again": NO_MERGING}) | plainly("alone")
    for name in MODELS:
        shares = shares_by_way(asked, name, fleets(asked, name, (NANO,) * 5), ways)
        ratios = (shares["again"] / shares["alone"]).tolist()
        bars["median"].append((name, float(np.median(ratios))))
        bars["least"].append((name, float(min(ratios))))
        where = f"figure 11, {name}: share saved by re-partitioning"
        found.figures += over_seeds(where, [100 * (1 - ratio) for ratio in ratios], "%")
    found.panels.append(ratios_by_model("5 clients", "GPU share over that without", bars))
    return found


def fifth_client(asked: Asked) -> Found:
    """Figure 12: four clients of Inc stay, the fifth has another link or another rate."""
    found = Found()
    model = models(asked.data)["Inc"]
    own, block = model.device_us[NANO], model.blocks // 3
    size = model.profile.boundary_bytes[block - 1] // 4
    four = [entries[:4] for entries in fleets(asked, "Inc", (NANO,) * 4)]

    def fifth(mbps: float, rate_rps: float) -> Entry | None:
        budget = int(0.95 * sum(own) - sum(own[:block]) - 8 * size / mbps)
        if budget <= 0:  # the link alone takes more than the SLO leaves
            return None
        return Entry(name="fifth", block=block, budget_us=budget, rate_rps=rate_rps)

    for x, label, values in (
        ("link of the fifth client, Mbit/s", "bandwidth", LINKS_MBPS),
        ("rate of the fifth client, requests/s", "rate", RATES_RPS),
    ):
        curves: dict[str, list[tuple[float, float]]] = {"exact": [], "graft": [], "alone": []}
        for value in values:
            last = fifth(value, 30.0) if label == "bandwidth" else fifth(100.0, value)
            if last is None:
                continue
            shares = {
                planner: [percents_of(asked.data, "Inc", (*own_, last), planner) for own_ in four]
                for planner in curves
            }
            if not np.isfinite(list(shares.values())).all():  # out of the fifth's reach
                continue
            for planner, curve in curves.items():
                curve.append((value, float(np.median(shares[planner]))))
        for planner, curve in curves.items():
            (first, at_first), (_, at_last) = curve[0], curve[-1]
            ends = f"{at_first:.3g} % at {first:g}, {at_last:.3g} % at the last"
            where = f"figure 12, {label}, {planner}: share at the last over that at the first"
            found.figures += over_seeds(where, [at_last / at_first], note=ends)
        found.panels.append(
            Panel(title=f"Inc, by {label}", x=x, y="% of a GPU, median", series=curves, log="x")
        )
    return found


def merging(asked: Asked) -> Found:
    """Figure 13: 50 clients, none merged, all uniform ones merged, or up to a spare rate of 0.2."""
    found = Found()
    merged = {"none": NO_MERGING, "uniform": ALL_UNIFORM, "uniform, to 0.2": 0.2}
    ways = by_option("merge_threshold", merged) | plainly("exact")
    bars: dict[str, list[tuple[str, float]]] = {label: [] for label in ways}
    for name in MODELS:
        shares = shares_by_way(asked, name, fleets(asked, name, (NANO,) * 50), ways)
        base = shares["uniform, to 0.2"]
        for label, values in shares.items():
            bars[label].append((name, float(np.median(values / base))))
            if label != "uniform, to 0.2":
                where = f"figure 13, {name}: {label} over merging to 0.2"
                found.figures += over_seeds(where, (values / base).tolist(), worst="most")
    y = "GPU share over merging to 0.2, median"
    found.panels.append(ratios_by_model("50 clients", y, bars))
    return found


def timed(data: Path, name: str, entries: Sequence[Entry], **own: object) -> tuple[float, float]:
    """Percents and seconds of `graft`."""
    found = run(ALL_RULES["graft"], "graft", inputs_of(data, name, entries), **own)
    return found.value, found.seconds


def merged_counts(asked: Asked) -> Found:
    """Figure 14: merging to 0.2 over no merging, by number of clients of Res."""
    found = Found()
    curves: dict[str, list[tuple[float, float]]] = {"GPU share": [], "time to plan": []}
    timed(asked.data, "Res", fleets(asked, "Res", (NANO,) * 10)[0])  # compiles
    for count in COUNTS_14:
        pairs = [
            (
                timed(asked.data, "Res", entries, merge_threshold=0.2),
                timed(asked.data, "Res", entries, merge_threshold=NO_MERGING),
            )
            for entries in fleets(asked, "Res", (NANO,) * count)
        ]
        for at, label in enumerate(curves):
            ratios = [merged[at] / none[at] for merged, none in pairs]
            curves[label].append((count, float(np.median(ratios))))
            where = f"figure 14, {count} clients of Res: {label} over that without merging"
            found.figures += over_seeds(where, ratios, worst="most")
    found.panels.append(
        Panel(
            title="Res, merging to 0.2",
            x="clients",
            y="over no merging, median",
            series=curves,
            mark=1.0,
        )
    )
    return found


def thresholds(asked: Asked) -> Found:
    """Figure 15: GPU share by merging threshold, 25 clients."""
    found = Found()
    curves: dict[str, list[tuple[float, float]]] = {}
    ways = by_option("merge_threshold", {f"{at:g}": at for at in THRESHOLDS})
    for name in MODELS:
        shares = shares_by_way(asked, name, fleets(asked, name, (NANO,) * 25), ways)
        ratios = {float(at): values / shares["0.1"] for at, values in shares.items()}
        curves[name] = [(at, float(np.median(values))) for at, values in ratios.items()]
        highest = np.max(list(ratios.values()), axis=0)
        where = f"figure 15, {name}: the worst threshold over 0.1"
        found.figures += over_seeds(where, highest.tolist(), worst="most")
    found.panels.append(
        Panel(
            title="25 clients",
            x="merging threshold",
            y="GPU share over that at 0.1, median",
            series=curves,
            mark=1.0,
        )
    )
    return found


def grouping(asked: Asked) -> Found:
    """Figure 16: group sizes of Inc, and equal weights beside the best of several."""
    found = Found()
    drawn = fleets(asked, "Inc", (NANO,) * 25)
    timed(asked.data, "Inc", drawn[0])  # compiles
    curves: dict[str, list[tuple[float, float]]] = {"GPU share": [], "time to plan": []}
    runs = {n: [timed(asked.data, "Inc", e, group_size=n) for e in drawn] for n in SIZES}
    for size, own in runs.items():
        for at, label in enumerate(curves):
            ratios = [one[at] / five[at] for one, five in zip(own, runs[5], strict=True)]
            curves[label].append((size, float(np.median(ratios))))
            where = f"figure 16, groups of {size}, Inc: {label} over groups of 5"
            if size != USUAL:
                found.figures += over_seeds(where, ratios, worst="most")
    bars: dict[str, list[tuple[str, float]]] = {"median": [], "most": []}
    ways = by_option("factor_weights", {weights: weights for weights in WEIGHTS})
    for name in MODELS:
        shares = shares_by_way(asked, name, fleets(asked, name, (NANO,) * 25), ways)
        ratios = (shares[WEIGHTS[0]] / np.min(list(shares.values()), axis=0)).tolist()
        bars["median"].append((name, float(np.median(ratios))))
        bars["most"].append((name, max(ratios)))
        where = f"figure 16, {name}: equal weights over the best of {len(WEIGHTS)}"
        found.figures += over_seeds(where, ratios, worst="most")
    found.panels += [
        Panel(
            title="Inc, 25 clients",
            x="clients of a group",
            y="over groups of 5, median",
            series=curves,
            mark=1.0,
        ),
        ratios_by_model(f"equal weights over the best of {len(WEIGHTS)}", "GPU share", bars),
    ]
    return found


def many(asked: Asked) -> Found:
    """Figure 18: up to 2,000 clients; `graft` merges to 0.01, as in the paper."""
    found = Found()
    one = replace(asked, draws=1)
    ways = {"graft": {"merge_threshold": 0.01}, "classes": {}, "alone": {}}
    for name in MODELS:
        (drawn,) = fleets(one, name, (NANO,) * max(COUNTS_18))
        curves: dict[str, list[tuple[float, float]]] = {label: [] for label in ways}
        for count in COUNTS_18:
            for label, own in ways.items():
                value = percents_of(asked.data, name, drawn[:count], label, **own)
                curves[label].append((count, value / 100))
        last = {label: curve[-1][1] for label, curve in curves.items()}
        for label in ("classes", "alone"):
            where = f"figure 18, {max(COUNTS_18):,} clients of {name}: graft over {label}"
            found.figures += over_seeds(where, [last["graft"] / last[label]])
        found.panels.append(
            Panel(title=name, x="clients", y="GPUs", series=curves, log="xy"),
        )
    return found


def slo_ratios(asked: Asked) -> Found:
    """Figure 20: `graft` and exact plans over the best of all groupings, by SLO ratio."""
    found = Found()
    curves: dict[str, list[tuple[float, float]]] = {}
    for name in MODELS:
        labels = ("graft", "exact") if name == "ViT" else ("graft",)
        for ratio in SLO_RATIOS:
            drawn = fleets(asked, name, (NANO,) * 6, slo=ratio)
            shares = shares_by_way(asked, name, drawn, plainly(*labels, "optimal"))
            for label in labels:
                ratios = shares[label] / shares["optimal"]
                curves.setdefault(f"{label}, {name}", []).append((ratio, float(np.median(ratios))))
                where = f"figure 20, {name}, SLO ratio {ratio:g}: {label} over optimal"
                found.figures += over_seeds(where, ratios.tolist(), worst="most")
    found.panels.append(
        Panel(
            title="6 clients",
            x="SLO over the latency on the device",
            y="GPU share over optimal, median",
            series=curves,
            mark=1.0,
        )
    )
    return found


FIGURES = {
    "graft-7": resources,
    "graft-8": latencies,
    "graft-11": repartition,
    "graft-12": fifth_client,
    "graft-13": merging,
    "graft-14": merged_counts,
    "graft-15": thresholds,
    "graft-16": grouping,
    "graft-18": many,
    "graft-20": slo_ratios,
}
