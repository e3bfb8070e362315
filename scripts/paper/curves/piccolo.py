"""Curves of the Piccolo paper on the stand-in profiles of `piccolo.py`: figures 4b and 5 to 11.

Workloads are drawn as in `piccolo.py`, `--draws` of each of its five shapes. A planner that has no
plan for a workload never reaches 100 % of them in a distribution; means are over the workloads that
it plans, and how many it does not stands beside them.

Two optima: the cheapest machines of all, which our exact planner finds, and the best division of
the latency when every module is filled by Algorithm 1, which is what the paper's search by brute
force can find.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from pathlib import Path

import numpy as np

from flows.planning.applications.heuristics import PICCOLO, Rules, Served, solve
from flows.planning.applications.lines import Lines
from flows.planning.applications.machines import Machine, MachineSet
from flows.planning.papers.piccolo.rules import RULES
from flows.preparation.profiling.csv_tables import read_tables
from scripts.paper.curves.panels import BARS, STEPS, Asked, Found, Panel, over_seeds
from scripts.paper.piccolo import PAPER, SHAPES, VARIANTS, drawn, exactly, plan_of
from triton_backend.contract.plan import ModelPlan
from triton_backend.contract.workload import ModelDemand, Workload
from triton_backend.simulator.offered import Deterministic
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

SAME = 2e-4  # two costs that count as equal
GRID_US = 1_000  # budgets of the search over all divisions
DIVIDED = replace(PICCOLO, quantum_us=GRID_US)
ONCE, NEVER = "reassign once", "without reassign"
ROUND_ROBIN = "without tc"
FIRST = ("without spatial", "without batching", "without hetero")  # of figure 6
CONFIGURATIONS, BY_THROUGHPUT = ("max-configs 1", "max-configs 2"), "without lc"
QUANTA = ("quantum 0.01", "quantum 0.1")
JOBS, ATTAINED = 500, 99.5
POINTS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One workload, and what `piccolo` and the exact planner make of it."""

    lines: Lines
    tables: tuple[tuple[Machine, ...], ...]
    rates: tuple[float, ...]
    piccolo: Served
    exact: float

    def other(self, rules: Rules) -> Served | None:
        """The plan of other rules."""
        return solve(self.lines, self.tables, self.rates, rules)


@cache
def cases(data: Path, draws: int) -> tuple[Case, ...]:
    """Workloads that `piccolo` has a plan for, so many of every shape."""
    profiles, _ = read_tables(data / "ppipe")
    random = np.random.default_rng(0)
    found: list[Case] = []
    for shape in SHAPES:
        done = 0
        while done < draws:
            lines, tables, rates = drawn(shape, profiles, random)
            piccolo = solve(lines, tables, rates, PICCOLO)
            if piccolo is None:
                continue
            exact, _ = exactly(lines, tables, rates, piccolo)
            found.append(
                Case(
                    lines=lines,
                    tables=tuple(tables),
                    rates=tuple(rates),
                    piccolo=piccolo,
                    exact=exact,
                )
            )
            done += 1
    return tuple(found)


def reached(values: Sequence[float]) -> list[tuple[float, float]]:
    """Percent of all values that are at most so large; those without one are infinite."""
    ordered = np.sort(np.array(values))
    shares = 100 * np.arange(1, len(ordered) + 1) / len(ordered)
    kept = np.isfinite(ordered)
    points = list(zip(ordered[kept].tolist(), shares[kept].tolist(), strict=True))
    return points[:: max(1, len(points) // POINTS)] + points[-1:]


def costs(asked: Asked) -> Found:
    """Figure 4b: costs of four systems and of both optima over that of `piccolo`."""
    found = Found()
    own = cases(asked.data, asked.draws)
    over = {
        name: [
            inf if (other := case.other(rules)) is None else other.cost / case.piccolo.cost
            for case in own
        ]
        for name, rules in RULES.items()
    }
    optima = {
        "cheapest machines of all": [case.exact for case in own],
        "best division, Algorithm 1": [
            min(case.piccolo.cost, inf if (best := case.other(DIVIDED)) is None else best.cost)
            for case in own
        ],
    }
    for name, ratios in over.items():
        planned = [ratio for ratio in ratios if ratio < inf]
        where = f"figure 4b, {name}: cost over piccolo"
        note = f"{len(ratios) - len(planned)} of {len(ratios)} without a plan"
        found.figures += over_seeds(where, planned, worst="most", note=note)
    for name, best in optima.items():
        extra = [case.piccolo.cost / cost - 1 for case, cost in zip(own, best, strict=True)]
        share = 100 * float(np.mean([value <= SAME for value in extra]))
        where = f"figure 4b, piccolo against {name}"
        found.figures += over_seeds(f"{where}, workloads at it", [share], "%")
        extra_percent = [100 * value for value in extra]
        found.figures += over_seeds(f"{where}, extra cost", extra_percent, "%", worst="most")
        for count in sorted({len(case.rates) for case in own}):
            of_count = [v for v, case in zip(extra, own, strict=True) if len(case.rates) == count]
            share = 100 * float(np.mean([value <= SAME for value in of_count]))
            found.figures += over_seeds(f"{where}, workloads of {count} modules", [share], "%")
    series = {name: reached(ratios) for name, ratios in over.items()}
    for name, best in optima.items():
        series[name] = reached(
            [cost / case.piccolo.cost for case, cost in zip(own, best, strict=True)]
        )
    found.panels.append(
        Panel(
            title=f"{len(own)} workloads",
            x="cost over that of piccolo",
            y="% of workloads",
            series=series,
            kind=STEPS,
            log="x",
            mark=1.0,
        )
    )
    return found


def ablations(asked: Asked) -> Found:
    """Figure 5: mean extra cost without each part of `piccolo`, beside the paper's."""
    found = Found()
    own = cases(asked.data, asked.draws)
    ours: list[tuple[str, float]] = []
    for name in PAPER:
        plans = [(case, case.other(VARIANTS[name])) for case in own]
        extra = [100 * (p.cost / case.piccolo.cost - 1) for case, p in plans if p is not None]
        missing = len(plans) - len(extra)
        ours.append((name, float(np.mean(extra))))
        where = f"figure 5, {name}: mean extra cost"
        note = f"paper {PAPER[name]:g} %; {missing} of {len(plans)} without a plan"
        found.figures += over_seeds(where, [ours[-1][1]], "%", worst="most", note=note)
    order = [name for name, _ in sorted(ours, key=lambda one: -one[1])]
    agreed = sum(
        (PAPER[a] > PAPER[b]) == (order.index(a) < order.index(b))
        for at, a in enumerate(PAPER)
        for b in list(PAPER)[at + 1 :]
    )
    pairs = len(PAPER) * (len(PAPER) - 1) / 2
    found.figures += over_seeds(
        "figure 5, pairs of ablations in the paper's order", [100 * agreed / pairs], "%"
    )
    found.panels.append(
        Panel(
            title=f"{len(own)} workloads",
            x="",
            y="mean extra cost, %",
            series={"here": ours, "paper, its own profiles": list(PAPER.items())},
            kind=BARS,
        )
    )
    return found


def distributions(asked: Asked) -> Found:
    """Figures 6, 7, 9 and 10: distributions behind figure 5, without parts of `piccolo`."""
    found = Found()
    own = cases(asked.data, asked.draws)
    first = {name: [_of_first(case, name) for case in own] for name in FIRST}
    for name, shares in first.items():
        note = f"{shares.count(0.0)} of {len(shares)} without a plan"
        where = f"figure 6, {name}: throughput of the first module at equal cost"
        found.figures += over_seeds(where, shares, note=note)
    over = {name: [_over(case, name) for case in own] for name in (*CONFIGURATIONS, *QUANTA)}
    split: dict[str, list[float]] = {}
    for case in own:
        label = f"{BY_THROUGHPUT}, {len(case.rates)} modules"
        split.setdefault(label, []).append(_over(case, BY_THROUGHPUT))
    split = {label: split[label] for label in sorted(split)}
    for label, ratios in (over | split).items():
        number = 7 if label in CONFIGURATIONS else 10 if label in QUANTA else 9
        planned = [ratio for ratio in ratios if ratio < inf]
        where = f"figure {number}, {label}: cost over piccolo"
        note = f"{len(ratios) - len(planned)} of {len(ratios)} without a plan"
        found.figures += over_seeds(where, planned, worst="most", note=note)
        same = 100 * float(np.mean([abs(ratio - 1) <= SAME for ratio in ratios]))
        found.figures += over_seeds(f"{where}, workloads at equal cost", [same], "%")
    for title, x, series in (
        ("6: the first module", "throughput over piccolo's, equal cost", first),
        ("7: configurations", "cost over that of piccolo", {n: over[n] for n in CONFIGURATIONS}),
        ("9: latency split by throughput", "cost over that of piccolo", split),
        ("10: latency in steps", "cost over that of piccolo", {n: over[n] for n in QUANTA}),
    ):
        curves = {name: reached(values) for name, values in series.items()}
        found.panels.append(
            Panel(title=title, x=x, y="% of workloads", series=curves, kind=STEPS, mark=1.0)
        )
    return found


def _over(case: Case, name: str) -> float:
    """The cost of a variant over that of `piccolo`; infinite without a plan."""
    other = case.other(VARIANTS[name])
    return inf if other is None else other.cost / case.piccolo.cost


def _of_first(case: Case, name: str) -> float:
    """Requests/s that a price buys of the first module, over what `piccolo`'s buys; 0 without."""
    other = case.other(VARIANTS[name])
    return 0.0 if other is None else case.piccolo.sets[0].cost / other.sets[0].cost


def counted(served: MachineSet, rate_rps: float, rule: str) -> float:
    """The worst-case latency of a line's machines under another way to deal out rows (µs)."""
    left, worst = rate_rps + served.dummy_rps, 0.0
    for group in served.groups:
        one_rps = group.machine.rate_rps if group.machines >= 1 else group.rate_rps
        worst = max(worst, group.machine.latency_us(rule, left, one_rps))
        left -= group.rate_rps
    return worst


def worst_cases(asked: Asked) -> Found:
    """Figure 8: the worst-case latency of `piccolo`'s machines under `2d` and `dt`."""
    found = Found()
    own = cases(asked.data, asked.draws)
    series: dict[str, list[tuple[float, float]]] = {}
    for rule, paper in (("2d", 1.47), ("dt", 1.113)):
        ratios: list[float] = []
        for case in own:
            pairs = list(zip(case.piccolo.sets, case.rates, strict=True))
            times = {
                name: [round(counted(served, rate, name)) for served, rate in pairs]
                for name in ("tc", rule)
            }
            (graph,) = case.lines.graphs
            ratios.append(graph.longest(times[rule]) / graph.longest(times["tc"]))
        where = f"figure 8, worst case under {rule} over that under tc"
        found.figures += over_seeds(where, ratios, worst="most", note=f"paper's mean {paper:g}")
        mean = float(np.mean(ratios))
        found.figures += over_seeds(f"{where}, mean", [mean], worst="most")
        series[f"{rule}, mean {mean:.2f} (paper {paper:.2f})"] = reached(ratios)
    _attained(found, asked, own)
    found.panels.append(
        Panel(
            title=f"piccolo's machines of {len(own)} workloads",
            x="worst-case latency over that of tc",
            y="% of workloads",
            series=series,
            kind=STEPS,
            mark=1.0,
        )
    )
    return found


def _attained(found: Found, asked: Asked, own: Sequence[Case]) -> None:
    """Attainment of modules within their planned budgets, at equal gaps, when machines run.

    By the dispatch that `piccolo` counts with, and by `round-robin`, on its machines and on those
    that `2d` chooses: each module by itself, its worst machine judged by its workload's worst.
    """
    profiles, _ = read_tables(asked.data / "ppipe")
    ways = {
        "piccolo's machines, throughput-cost": (PICCOLO, "throughput-cost"),
        "piccolo's machines, round-robin": (PICCOLO, "round-robin"),
        "machines chosen by 2d, round-robin": (VARIANTS[ROUND_ROBIN], "round-robin"),
    }
    series: dict[str, list[tuple[float, float]]] = {}
    for label, (rules, policy) in ways.items():
        shares: list[float] = []
        for case in own:
            served = case.other(rules)
            if served is None:
                continue
            plan = plan_of(case.lines, served, case.rates, profiles)
            models = tuple(replace(model, policy=policy) for model in plan.models)
            plan = replace(plan, models=models, applications=(), workload=_alone(models))
            seconds = JOBS / min(model.throughput_rps for model in models)
            options = SimOptions(
                policy=policy,
                arrivals=Deterministic(),
                duration_s=min(seconds, asked.seconds),
                keep_uses=False,
            )
            run = simulate(plan, options)
            shares.append(100 * min(model.attainment for model in run.models))
        found.figures += over_seeds(f"figure 8, {label}: in time, worst module", shares, "%")
        full = 100 * float(np.mean([share >= ATTAINED for share in shares]))
        where = f"figure 8, {label}: workloads with {ATTAINED:g} % in time"
        found.figures += over_seeds(where, [full], "%")
        series[label] = reached(shares)
    found.panels.append(
        Panel(
            title="run at equal gaps",
            x="% in time of the worst module",
            y="% of workloads",
            series=series,
            kind=STEPS,
        )
    )


def _alone(models: Sequence[ModelPlan]) -> Workload:
    """Models by themselves at their planned rates."""
    return Workload(
        models=tuple(
            ModelDemand(name=model.name, slo_us=model.slo_us, rate_rps=model.throughput_rps)
            for model in models
        )
    )


def remaining(asked: Asked) -> Found:
    """Figure 11: latency that a plan leaves unused, with fewer turns of handing it out again."""
    found = Found()
    own = cases(asked.data, asked.draws)
    series: dict[str, list[tuple[float, float]]] = {}
    left: dict[str, list[float]] = {}
    for name, rules in (("piccolo", PICCOLO), (ONCE, VARIANTS[ONCE]), (NEVER, VARIANTS[NEVER])):
        shares: list[float] = []
        for case in own:
            plan = case.other(rules)
            (graph,) = case.lines.graphs
            if plan is not None:
                shares.append(100 * (1 - graph.longest(plan.times) / graph.limit_us))
        left[name] = shares
        where = f"figure 11, {name}: latency left, of the SLO"
        found.figures += over_seeds(where, shares, "%", worst="most")
        series[f"{name}, mean {np.mean(shares):.1f} %"] = reached(shares)
    for name, paper in ((ONCE, 2.11), (NEVER, 6.23)):
        value = float(np.mean(left[name]) / max(np.mean(left["piccolo"]), 1e-9))
        where = f"figure 11, {name}: mean latency left over piccolo's"
        found.figures += over_seeds(where, [value], worst="most", note=f"paper {paper:g}")
    found.panels.append(
        Panel(
            title=f"{len(own)} workloads",
            x="latency left, % of the SLO",
            y="% of workloads",
            series=series,
            kind=STEPS,
        )
    )
    return found


FIGURES = {
    "piccolo-4b": costs,
    "piccolo-5": ablations,
    "piccolo-6": distributions,
    "piccolo-8": worst_cases,
    "piccolo-11": remaining,
}
