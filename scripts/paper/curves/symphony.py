"""Curves of the Symphony paper, by simulation of the policies that are served.

Figures 6, 7, 9, 11, 12, 13 (right) and 14. Everyone is judged alike: a goodput is the highest rate
at which the worst model answers 99 % in time, searched for every seed by itself on the same
arrivals. `eager` runs with both rules for heads, `clockwork` is `eager` that drops one head at a
time, `nexus` runs on plans of its own. No policy is tuned but `timeout`, whose time is swept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from scripts.paper.curves.panels import (
    BARS,
    LINES,
    STEPS,
    Asked,
    Found,
    Panel,
    distribution,
    over_seeds,
)
from scripts.paper.symphony.study import (
    EAGER_GPUS,
    EAGER_MODELS,
    Row,
    highest,
    plan_of,
    rows_of,
    table_2_rows,
    worst,
)
from triton_backend.contract.plan import Plan
from triton_backend.simulator.goodput import ATTAINMENT
from triton_backend.simulator.offered import POISSON, Arrivals, Gamma
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

DEFERRED = "deferred"
SYSTEMS: Mapping[str, tuple[str, str | None]] = {
    DEFERRED: ("deferred", None),
    "eager": ("eager", "window"),
    "clockwork": ("clockwork", None),
    "nexus": ("nexus", None),
    "shepherd": ("shepherd", None),
}
FAST = (DEFERRED, "eager", "clockwork", "nexus")  # shepherd takes ten times as long to simulate
TIMEOUTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)  # of each SLO
BETAS_6A_MS = (1, 3, 5, 10, 15)
ALIKE = 20  # models of one profile in figures 11, 13 and 14
SLOS_11_MS, SLOS_14_MS = (15, 25, 50), (20, 25, 50, 100)
GPUS_13, SLO_13_MS = (8, 16, 32, 64, 128), 100
LEADS_US = (0, 33, 100, 300, 1_000, 3_000, 10_000)
GRID_7 = {
    "model": ("DenseNet121", "InceptionV3", "ResNet50V2", "VGG16", "Xception", "BERT"),
    "models": (8, 16, 24, 32, 48, 64),
    "gpus_per_model": (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0),
    "slo_ms": (20, 25, 30, 40, 50),
    "shape": (0.1, 0.2, 0.3, 0.5, 0.7, 1.0),
}
MOST_GPUS_7 = 64  # of a draw, which is repeated above it
HALVINGS = 5  # of the interval in which a goodput is searched: below 0.7 % of the rate
SLOS_A_RUN = 40  # at least, where all models have one SLO: what runs over the end weighs little
MIXED_7 = 0.2  # of the draws are of all models at once
SIDES = {"mixed": "all models", "strong": "beta / alpha > 2", "weak": "beta / alpha < 2"}


def within_slo_rps(rows: Sequence[Row], gpus: int, shares: Sequence[float] | None = None) -> float:
    """A rate that no scheduler exceeds: every batch the largest that ends within its SLO."""
    weights = np.ones(len(rows)) if shares is None else np.array(shares)
    each_us = [float(row.latency_us[-1]) / len(row.latency_us) for row in rows]
    return gpus * 1e6 / float(np.average(each_us, weights=weights))


def goodputs(
    plan: Plan,
    system: str,
    below_rps: float,
    asked: Asked,
    arrivals: Arrivals = POISSON,
    **rules: float,
) -> list[float]:
    """The highest rate that holds, of every seed."""
    policy, heads = SYSTEMS.get(system, (system, None))
    base = SimOptions(
        policy=policy,
        heads=heads,
        arrivals=arrivals,
        duration_s=asked.seconds,
        keep_uses=False,
        give_up_below=ATTAINMENT,
        **rules,  # pyright: ignore[reportArgumentType] - numbers of late binding by name
    )

    def holds(seed: int, rate_rps: float) -> bool:
        return worst(simulate(plan, replace(base, rate_rps=rate_rps, seed=seed))) >= ATTAINMENT

    return [highest(partial(holds, seed), below_rps, HALVINGS) for seed in range(asked.seeds)]


def plans_of(
    rows: Sequence[Row],
    gpus: int,
    systems: Sequence[str],
    weights: Sequence[float] | None = None,
) -> dict[str, Plan]:
    """The plan of every system: `nexus` has its own, all others that of `subclusters`."""
    shared = plan_of(rows, gpus, weights=weights)
    own = plan_of(rows, gpus, planner="nexus", weights=weights) if "nexus" in systems else shared
    return {system: own if system == "nexus" else shared for system in systems}


def alike(row: Row, slo_ms: float, count: int) -> list[Row]:
    """Models of one profile and one SLO."""
    return [Row(f"m{n:02}", row.alpha_us, row.beta_us, round(slo_ms * 1e3)) for n in range(count)]


def long_enough(asked: Asked, slo_ms: float) -> Asked:
    """The same with runs of at least so many SLOs."""
    return replace(asked, seconds=max(asked.seconds, SLOS_A_RUN * slo_ms / 1e3))


def resnet(asked: Asked) -> Row:
    """ResNet50 of table 2."""
    return table_2_rows(asked.data / "symphony")["ResNet50"]


def a100(asked: Asked) -> list[Row]:
    """The 37 models of table 4."""
    return rows_of(asked.data / "symphony" / "profiles_A100.csv")


def gain_by_batches(asked: Asked) -> Found:
    """Figure 6a: eager over `deferred` by beta, ten equal models on 32 GPUs, alpha 1 ms."""
    found = Found()
    curves: dict[str, list[tuple[float, float]]] = {"eager": [], "clockwork": []}
    for beta_ms in BETAS_6A_MS:
        rows = alike(Row("m", 1e3, 1e3 * beta_ms, 0), 2 * (8 + beta_ms), EAGER_MODELS)
        plan, below = plan_of(rows, EAGER_GPUS), within_slo_rps(rows, EAGER_GPUS)
        base = goodputs(plan, DEFERRED, below, asked)
        for name, curve in curves.items():
            rates = goodputs(plan, name, below, asked)
            ratios = [rate / own for rate, own in zip(rates, base, strict=True)]
            curve.append((beta_ms, float(np.median(ratios))))
            note = f"deferred {np.median(base):.0f} rps"
            where = f"figure 6a, beta {beta_ms} ms: {name} / deferred"
            found.figures += over_seeds(where, ratios, worst="most", note=note)
    found.panels.append(
        Panel(
            title=f"{EAGER_MODELS} models, {EAGER_GPUS} GPUs, alpha 1 ms, SLO 2 l(8)",
            x="beta, ms",
            y="goodput over that of deferred",
            series=curves,
            mark=1.0,
        )
    )
    return found


def timeouts(asked: Asked) -> Found:
    """Figure 6b: a fixed timeout, swept, beside `deferred`, which has none."""
    found = Found()
    curves: dict[str, list[tuple[float, float]]] = {}
    for label, rows, gpus in (
        ("ResNet50, 50 ms, 8 GPUs", alike(resnet(asked), 50, 1), 8),
        ("37 models, 64 A100", a100(asked), 64),
    ):
        plan, below = plan_of(rows, gpus), within_slo_rps(rows, gpus)
        base = np.array(goodputs(plan, DEFERRED, below, asked))
        curve: list[tuple[float, float]] = []
        best = np.zeros(asked.seeds)
        for share in TIMEOUTS:
            rates = goodputs(plan, "timeout", below, asked, batch_timeout_share=share)
            ratios = np.array(rates) / base
            curve.append((share, float(np.median(ratios))))
            best = np.maximum(best, ratios)
        curves[label] = curve
        found.figures += over_seeds(
            f"figure 6b, {label}: the best timeout / deferred",
            best.tolist(),
            worst="most",
            note=f"deferred {np.median(base):.0f} rps",
        )
        at_worst = min(value for _, value in curve)
        found.figures += over_seeds(f"figure 6b, {label}: the worst timeout / deferred", [at_worst])
    found.panels.append(
        Panel(
            title="timeout over deferred",
            x="timeout as a share of the SLO",
            y="goodput over that of deferred",
            series=curves,
            mark=1.0,
        )
    )
    return found


def drawn_7(asked: Asked, random: np.random.Generator) -> tuple[str, list[Row], int, float]:
    """One workload of table 1: its label, models, GPUs and the shape of its arrivals.

    Every dimension is drawn evenly; a fifth are of all models of the 1080Ti at their own SLOs. A
    draw of more than `MOST_GPUS_7` GPUs, or of a model that takes longer than its SLO, is repeated.
    """
    rows = {row.name.lower(): row for row in rows_of(asked.data / "symphony/profiles_1080Ti.csv")}
    while True:
        pick = {name: options[random.integers(len(options))] for name, options in GRID_7.items()}
        shape, per_model = float(pick["shape"]), float(pick["gpus_per_model"])
        if random.random() < MIXED_7:
            gpus = round(per_model * len(rows))
            if gpus <= 2 * MOST_GPUS_7:
                return "mixed", list(rows.values()), gpus, shape
            continue
        name, count, slo_ms = str(pick["model"]), int(pick["models"]), float(pick["slo_ms"])
        row, gpus = rows.get(name.lower()), round(per_model * int(pick["models"]))
        if row is None or gpus > MOST_GPUS_7 or row.alpha_us + row.beta_us > slo_ms * 1e3 / 2:
            continue
        return f"{name}, {slo_ms:g} ms", alike(row, slo_ms, count), gpus, shape


def synthetic(asked: Asked) -> Found:
    """Figure 7: workloads of table 1, drawn; `deferred` over `eager` with either rule for heads."""
    random = np.random.default_rng(0)
    ratios: dict[str, list[float]] = {"eager": [], "clockwork": []}
    mixed: list[float] = []
    for _ in range(asked.draws):
        label, rows, gpus, shape = drawn_7(asked, random)
        plan, below = plan_of(rows, gpus), within_slo_rps(rows, gpus)
        arrivals = Gamma(shape=shape)
        one = replace(asked, seeds=1)
        rates = {
            name: goodputs(plan, name, below, one, arrivals)[0] for name in (DEFERRED, *ratios)
        }
        if rates[DEFERRED] == 0 or min(rates.values()) == 0:
            continue  # nothing holds 99 % there, under at least one of them
        for name, own in ratios.items():
            own.append(rates[DEFERRED] / rates[name])
        if label == "mixed":
            mixed.append(rates[DEFERRED] / rates["clockwork"])
    found = Found()
    for name, own in ratios.items():
        where = f"figure 7, {len(own)} of {asked.draws} drawn workloads, deferred / {name}"
        found.figures += over_seeds(where, own)
        for what, share in (
            ("at least 0.95", np.mean(np.array(own) >= 0.95)),  # noqa: PLR2004 - as in the paper
            ("at least 1.5", np.mean(np.array(own) >= 1.5)),  # noqa: PLR2004 - as in the paper
        ):
            value = 100 * float(share)
            found.figures += over_seeds(f"{where}, share of {what}", [value], "%")
    if mixed:
        where = f"figure 7, {len(mixed)} mixed workloads, deferred / clockwork"
        found.figures += over_seeds(where, mixed)
    found.panels.append(
        Panel(
            title="workloads of table 1, drawn",
            x="goodput of deferred over that of eager",
            y="% of workloads",
            series={
                "eager that drops as deferred does": distribution(ratios["eager"]),
                "eager that drops one head (Clockwork)": distribution(ratios["clockwork"]),
            },
            kind=STEPS,
            mark=1.0,
        )
    )
    return found


def model_zoos(asked: Asked) -> Found:
    """Figure 9: all models, those that gain by batches and those that do not, on both GPUs."""
    found = Found()
    for gpu in ("A100", "1080Ti"):
        every = rows_of(asked.data / "symphony" / f"profiles_{gpu}.csv")
        bars: dict[str, list[tuple[str, float]]] = {name: [] for name in FAST}
        for side in SIDES:
            rows = [
                row
                for row in every
                if side == "mixed" or (row.beta_us > 2 * row.alpha_us) == (side == "strong")
            ]
            below = within_slo_rps(rows, 64)
            medians: dict[str, float] = {}
            for name, plan in plans_of(rows, 64, FAST).items():
                rates = goodputs(plan, name, below, asked)
                where = f"figure 9, {gpu}, {len(rows)} {side} models, {name}: goodput"
                found.figures += over_seeds(where, rates, "rps")
                medians[name] = float(np.median(rates))
                bars[name].append((f"{side}, {len(rows)}", medians[name]))
            others = max(rate for name, rate in medians.items() if name != DEFERRED)
            found.figures += over_seeds(
                f"figure 9, {gpu}, {side}: deferred / the best other",
                [medians[DEFERRED] / max(others, 1e-9)],
            )
        found.panels.append(
            Panel(title=f"64 {gpu}", x="", y="goodput, requests/s", series=bars, kind=BARS)
        )
    return found


def workload_kinds(asked: Asked) -> Found:
    """Figure 11: SLO, popularity and burstiness, 20 models of one profile on 32 GPUs."""
    found = Found()
    base = resnet(asked)
    zipf = (1 / np.arange(1, ALIKE + 1) ** 0.9).tolist()
    for popularity, weights in (("equal", None), ("Zipf 0.9", zipf)):
        for kind, arrivals in (("Poisson", POISSON), ("gamma 0.05", Gamma(shape=0.05))):
            curves: dict[str, list[tuple[float, float]]] = {name: [] for name in FAST}
            for slo_ms in SLOS_11_MS:
                rows = alike(base, slo_ms, ALIKE)
                below = within_slo_rps(rows, 32)
                for name, plan in plans_of(rows, 32, FAST, weights).items():
                    rates = goodputs(plan, name, below, long_enough(asked, slo_ms), arrivals)
                    curves[name].append((slo_ms, float(np.median(rates))))
                    where = f"figure 11, {popularity}, {kind}, {slo_ms} ms, {name}: goodput"
                    found.figures += over_seeds(where, rates, "rps")
            found.panels.append(
                Panel(
                    title=f"{popularity}, {kind}",
                    x="SLO, ms",
                    y="goodput, requests/s",
                    series=curves,
                    log="x",
                )
            )
    return found


def queueing(asked: Asked) -> Found:
    """Figure 12: time until a GPU begins a request's batch, every system at its own goodput."""
    found = Found()
    for name, row in table_2_rows(asked.data / "symphony").items():
        if name not in ("ResNet50", "InceptionResNetV2"):
            continue
        curves: dict[str, list[tuple[float, float]]] = {}
        for system, plan in plans_of([row], 8, tuple(SYSTEMS)).items():
            one = replace(asked, seeds=1)
            (rate,) = goodputs(plan, system, within_slo_rps([row], 8), one)
            if not rate:
                continue
            policy, heads = SYSTEMS[system]
            options = SimOptions(
                policy=policy, heads=heads, rate_rps=rate, duration_s=asked.seconds
            )
            run = simulate(plan, options)
            ran = run.requests[run.requests["dispatch_us"] >= 0]
            waits = (ran["dispatch_us"] - ran["arrival_us"]) / row.slo_us
            curves[f"{system}, {rate:,.0f} rps"] = distribution(waits.tolist())
            where = f"figure 12, {name}, {system} at its goodput: wait over the SLO"
            for what, percent in (("median request", 50), ("99 % of requests", 99)):
                value = float(np.percentile(waits, percent))
                found.figures += over_seeds(f"{where}, {what}", [value], worst="most")
        found.panels.append(
            Panel(
                title=f"{name}, SLO {row.slo_us / 1e3:g} ms, 8 GPUs",
                x="time until the batch begins, over the SLO",
                y="% of requests",
                series=curves,
                kind=STEPS,
            )
        )
    return found


def more_gpus(asked: Asked) -> Found:
    """Figure 13, right: goodput by number of GPUs, 20 models of one profile, 100 ms."""
    found = Found()
    rows = alike(resnet(asked), SLO_13_MS, ALIKE)
    long = long_enough(asked, SLO_13_MS)
    curves: dict[str, list[tuple[float, float]]] = {name: [] for name in (DEFERRED, "clockwork")}
    for gpus in GPUS_13:
        plan = plan_of(rows, gpus)
        for name, curve in curves.items():
            rates = goodputs(plan, name, within_slo_rps(rows, gpus), long)
            curve.append((gpus, float(np.median(rates))))
            found.figures += over_seeds(
                f"figure 13, {gpus} GPUs, {name}: goodput of a GPU",
                [rate / gpus for rate in rates],
                "rps",
            )
    found.panels.append(
        Panel(
            title=f"{ALIKE} models, {SLO_13_MS} ms",
            x="GPUs",
            y="goodput, requests/s",
            series=curves,
            log="xy",
        )
    )
    return found


def network(asked: Asked) -> Found:
    """Figure 14: goodput where every batch is sent so much earlier, by SLO."""
    found = Found()
    curves: dict[str, list[tuple[float, float]]] = {}
    for slo_ms in SLOS_14_MS:
        rows = alike(resnet(asked), slo_ms, ALIKE)
        plan, below = plan_of(rows, 32), within_slo_rps(rows, 32)
        base = 0.0
        curve: list[tuple[float, float]] = []
        for lead_us in LEADS_US:
            rates = goodputs(plan, DEFERRED, below, long_enough(asked, slo_ms), lead_us=lead_us)
            base = base or float(np.median(rates))
            shares = [rate / base for rate in rates]
            curve.append((max(lead_us, 10) / 1e3, float(np.median(shares))))
            where = f"figure 14, SLO {slo_ms} ms, network {lead_us} us: goodput kept"
            found.figures += over_seeds(where, shares)
        curves[f"SLO {slo_ms} ms"] = curve
    found.panels.append(
        Panel(
            title="20 models, 32 GPUs",
            x="network latency kept free, ms (0 drawn at 0.01)",
            y="goodput over that at 0",
            series=curves,
            kind=LINES,
            log="x",
        )
    )
    return found


FIGURES = {
    "symphony-6a": gain_by_batches,
    "symphony-6b": timeouts,
    "symphony-7": synthetic,
    "symphony-9": model_zoos,
    "symphony-11": workload_kinds,
    "symphony-12": queueing,
    "symphony-13": more_gpus,
    "symphony-14": network,
}
