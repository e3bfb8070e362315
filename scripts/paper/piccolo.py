"""Figures of the Piccolo paper.

Worked examples, and planners against each other on stand-in profiles.

    .venv/bin/python scripts/paper/piccolo.py --data DIR [--workloads 120] [--only study|pools]
        [--out figures.json]

DIR holds `piccolo/` (the paper's tables and numbers) and `ppipe/` (measured latencies). The
profiles, rates and SLOs of the paper's applications were never published: its DAG shapes run on
models of `ppipe/` here, drawn at random with a fixed seed, on V100, L4, T4 and P4 at the prices
below. Its percentages stand beside ours; only their order and signs can be compared. `--only
pools`: applications of five modules on 100 GPUs of three classes, of whole models and of models
split in two, by the planner `pool`.
"""

import argparse
import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, inf, isfinite
from pathlib import Path
from statistics import mean, median
from time import process_time
from typing import Any, NamedTuple

import numpy as np

from flows.clock import Stopwatch
from flows.planning import PlanOptions, make_plan
from flows.planning.applications.division import Separate, divide
from flows.planning.applications.heuristics import (
    ABLATIONS,
    PICCOLO,
    Served,
    solve,
)
from flows.planning.applications.lines import Lines, lines_to_plan
from flows.planning.applications.machines import (
    Group,
    Machine,
    begun,
    cheapest,
    even,
    padded,
    ranked,
)
from flows.planning.papers.piccolo.rules import RULES
from flows.planning.pool.applications.exact import line_steps
from flows.preparation.profiling.csv_tables import read_tables
from scripts.benchmarks.figures import Figure, add_destinations, store
from triton_backend.contract.applications import ApplicationPlan
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import (
    ModelPlan,
    Objective,
    Pipeline,
    PlacementRun,
    Plan,
    Pool,
    Stage,
)
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.shares import WHOLE_GPU, divisor_of, share_of_divisor
from triton_backend.contract.workload import Workload
from triton_backend.simulator.offered import Deterministic
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions
from triton_backend.simulator.world import SERVED

# Assumed, per GPU and hour: near the on-demand list prices of one public cloud.
PRICES = {"V100": 2.48, "L4": 0.56, "T4": 0.35, "P4": 0.60}
BATCHES = (1, 2, 4, 8, 16, 32)
SHAPES: Mapping[str, tuple[tuple[str, float, tuple[str, ...]], ...]] = {
    "traffic": (("a", 1, ()), ("b", 2.4, ("a",)), ("c", 0.7, ("a",))),
    "face": (("a", 1, ()), ("b", 1.5, ("a",))),
    "pose": (("a", 1, ()), ("b", 1, ("a",))),
    "caption": (("a", 1, ()), ("b", 1, ("a",)), ("c", 0.5, ("b",))),
    "actdet": (("a", 1, ()), ("b", 2, ("a",)), ("c", 1.3, ("a",)), ("d", 1, ("b", "c"))),
}
FIVE = (
    *SHAPES["actdet"],
    ("e", 0.5, ("d",)),
)  # ours: as many modules as the paper's largest, and one
PAPER = {
    "without batching": 89.6,
    "without lc": 39.2,
    "quantum 0.1": 25.5,
    "without hetero": 23.2,
    "without tc": 18.5,
    "max-configs 1": 14.4,
    "without spatial": 14.0,
    "without reassign": 2.9,
    "max-configs 2": 1.4,
    "quantum 0.01": 0.8,
    "reassign once": 0.5,
    "without dummies": 0.3,
}
VARIANTS = {
    **{f"without {name}": replace(PICCOLO, **change) for name, change in ABLATIONS.items()},
    "max-configs 1": replace(PICCOLO, most_configurations=1),
    "max-configs 2": replace(PICCOLO, most_configurations=2),
    "reassign once": replace(PICCOLO, reassign=1),
    "quantum 0.1": replace(PICCOLO, quantum_us=100_000),
    "quantum 0.01": replace(PICCOLO, quantum_us=10_000),
    **RULES,
}
_SAME = 1e-4
JOBS = 2_000  # simulated of every workload
POOLS_SECONDS = 10.0  # limit of a plan on pools


def main() -> None:
    """Print the figures, and keep them where asked."""
    parser = argparse.ArgumentParser(description="Figures of the Piccolo paper.")
    parser.add_argument("--data", type=Path, required=True, help="folder of piccolo/ and ppipe/")
    parser.add_argument("--workloads", type=int, default=120, help="of every shape")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("study", "pools"))
    add_destinations(parser)
    asked = parser.parse_args()
    figures: dict[str, Any] = {}
    try:
        if asked.only != "pools":
            figures["examples"] = examples(asked.data / "piccolo")
            figures |= study(asked.data / "ppipe", asked.workloads, asked.seed)
        if asked.only != "study":
            figures |= {"pools": pools(asked.data / "ppipe", asked.workloads, asked.seed)}
    except InputError as error:
        parser.exit(2, f"{error}\n")
    store(asked, "piccolo", figures_of(figures), figures)


def figures_of(found: Mapping[str, Any]) -> list[Figure]:
    """Figures of the parts that were run."""
    figures: list[Figure] = []
    if "workloads" in found:
        exact, piccolo = found["seconds"]["exact"], found["seconds"]["piccolo"]
        worst = found["worst_case"]
        figures += [
            Figure(name="workloads", value=found["workloads"]),
            Figure(name="exact: not proven", value=found["unproven"], most=0),
            Figure(name="exact: CPU seconds, median", value=exact[0], unit="s", most=0.3),
            Figure(name="exact: CPU seconds, worst", value=exact[1], unit="s", most=5),
            Figure(name="piccolo: CPU seconds, median", value=piccolo[0], unit="s", most=0.01),
            Figure(name="piccolo: CPU seconds, worst", value=piccolo[1], unit="s", most=0.01),
            Figure(name="piccolo: at the optimum", value=100 * found["piccolo_optimal"], unit="%"),
            Figure(name="piccolo: mean extra", value=100 * found["piccolo_mean"], unit="%"),
            Figure(name="piccolo: worst extra", value=100 * found["piccolo_worst"], unit="%"),
            Figure(name="simulated plans", value=worst["simulated"]),
            Figure(name="simulated plans within the SLO", value=worst["within_slo"]),
        ]
        for row in found["extra"]:
            name = f"{row['planner']}: mean extra over piccolo"
            figures.append(Figure(name=name, value=100 * row["mean"], unit="%"))
    if "pools" in found:
        for stages, gaps in found["pools"]["gaps"].items():
            proven, label = sum(gap <= _SAME for gap in gaps), f"pools, {stages} stages"
            seconds = found["pools"]["seconds"][stages]
            figures += [
                Figure(name=f"{label}: plans", value=len(gaps)),
                Figure(name=f"{label}: proven", value=proven),
                Figure(name=f"{label}: worst gap", value=100 * max(gaps), unit="%"),
                Figure(name=f"{label}: worst", value=max(seconds), unit="s"),
            ]
    return figures


def examples(folder: Path) -> list[dict[str, Any]]:
    """The worked examples of section II and III, recomputed from table I."""
    file = folder / "table1_profiles.csv"
    if not file.exists():
        raise InputError(str(file), "is not there; --data is the folder that holds piccolo/")
    tables: dict[str, list[Machine]] = {}
    with file.open() as rows:
        for row in csv.DictReader(rows):
            batch, duration_us = int(row["batch"]), float(row["duration_s"]) * 1e6
            tables.setdefault(row["module"], []).append(
                Machine(
                    batch=batch,
                    duration_us=duration_us,
                    rate_rps=batch * 1e6 / duration_us,
                    price=1.0,
                )
            )
    one = ranked(tables["M1"])
    several, _ = begun(one, 285, 2e6)
    sets = {
        "M1 at 285/s in 2 s, two configurations, 2d (3.7)": begun(one, 285, 2e6, "2d", 2)[0],
        "the same, Algorithm 1 (3.1)": several,
        "the same, with dummies (3.0)": padded(one, several, 285, 2e6),
        "the same, tc-even (2.85, ours)": even(one, 285, 2e6, dummies=True),
        "the same, tc-padded (3 GPUs, ours)": cheapest(one, 285, 2e6, dummies=True, whole=True),
    }
    shown = [
        {"what": name, "cost": None if found is None else round(found.cost, 4)}
        for name, found in sets.items()
    ]
    for line in shown:
        print(f"{line['cost']!s:>8}  {line['what']}")
    return shown


def study(folder: Path, workloads: int, seed: int) -> dict[str, Any]:
    """Every planner on every workload, against the exact one."""
    profiles, _ = read_tables(folder)
    draw = np.random.default_rng(seed)
    extra: dict[str, list[float]] = {name: [] for name in ("piccolo", *VARIANTS)}
    seconds: dict[str, list[float]] = {"exact": [], "piccolo": []}
    missing = dict.fromkeys(extra, 0)
    worst: list[WorstCase] = []
    unproven = planned = 0
    for shape in SHAPES:
        done = 0
        while done < workloads:
            lines, tables, rates = drawn(shape, profiles, draw)
            begun = process_time()
            piccolo = solve(lines, tables, rates, PICCOLO)
            seconds["piccolo"].append(process_time() - begun)
            if piccolo is None:
                continue
            begun = process_time()
            exact = exactly(lines, tables, rates, piccolo)
            seconds["exact"].append(process_time() - begun)
            done, planned = done + 1, planned + 1
            worst.append(worst_case(lines, piccolo, rates, profiles))
            unproven += exact[0] - exact[1] > _SAME * exact[0] * (1 + 1e-6)
            extra["piccolo"].append(piccolo.cost / exact[0] - 1)
            for name, rules in VARIANTS.items():
                other = solve(lines, tables, rates, rules)
                if other is None:
                    missing[name] += 1
                else:
                    extra[name].append(other.cost / piccolo.cost - 1)
    return summary(planned, unproven, extra, missing, seconds) | simulated(worst)


def pools(folder: Path, workloads: int, seed: int) -> dict[str, Any]:
    """Cost of whole and of split models on 100 GPUs, and how long the exact planner takes."""
    profiles, _ = read_tables(folder)
    draw, cluster = np.random.default_rng(seed), _limited()
    seconds: dict[int, list[float]] = {1: [], 2: []}
    gaps: dict[int, list[float]] = {1: [], 2: []}
    ratios: list[float] = []
    refused = 0
    while len(ratios) < workloads:
        workload = drawn_workload("five", FIVE, profiles, draw)
        costs: list[float] = []
        for stages in (1, 2):
            options = PlanOptions(
                objective="cost",
                max_partitions=stages,
                slo_margin=0.2,
                time_limit_s=POOLS_SECONDS,
                own={"gathering": "fixed"},
            )
            clock = Stopwatch()
            try:
                plan = make_plan(profiles, cluster, workload, options)
            except InfeasibleError:
                costs.append(inf)
                continue
            seconds[stages].append(clock.seconds())
            gaps[stages].append(plan.objective.gap)
            costs.append(plan.objective.value)
        if isfinite(costs[-1]):
            ratios.append(costs[-1] / costs[0])
        else:
            refused += 1
    for stages, took in seconds.items():
        proven = sum(gap <= _SAME for gap in gaps[stages])
        print(
            f"five modules, 100 GPUs, at most {stages} stages: {len(took)} plans, seconds median"
            f" {median(took):.2f}, worst {max(took):.2f}; {proven} proven at {_SAME:g},"
            f" gap mean {mean(gaps[stages]):.2%}, worst {max(gaps[stages]):.2%}"
        )
    both = [ratio for ratio in ratios if ratio]
    print(
        f"split / whole cost: mean {mean(both):.3f}, least {min(both):.3f}, most {max(both):.4f};"
        f" {ratios.count(0.0)} have a plan only when split; {refused} drawn have none"
    )
    return {"seconds": seconds, "gaps": gaps, "split_over_whole": ratios, "refused": refused}


def _limited() -> Cluster:
    """100 GPUs of three classes; prices as above, halves and quarters of GPUs where measured."""
    counts = {"V100": 20, "L4": 40, "T4": 40}
    return Cluster(
        name="limited",
        gpu_classes=tuple(
            GpuClass(name=name, vgpu_divisors=(1, 2, 4), hourly_cost=PRICES[name])
            for name in counts
        ),
        nodes=tuple(
            NodeGroup(count=gpus // 4, gpu_class=name, gpus=4, nic_gbps=50.0)
            for name, gpus in counts.items()
        ),
    )


class WorstCase(NamedTuple):
    """Of a plan by `piccolo` under equal gaps between jobs, in µs.

    Attributes:
        planned: longest path of its modules' worst cases (theorem 1).
        limit: the SLO.
        most: greatest latency simulated of a job that was served.
        dropped: jobs that were not, of all.
    """

    planned: float
    limit: int
    most: int
    dropped: float


def worst_case(
    lines: Lines,
    served: Served,
    rates: Sequence[float],
    profiles: Mapping[str, ModelProfile],
) -> WorstCase:
    """Simulate a plan under `throughput-cost`, deterministic arrivals and rows."""
    plan = plan_of(lines, served, rates, profiles)
    (application,) = plan.applications
    rate_rps = application.application.rate_rps or 1.0
    options = SimOptions(
        arrivals=Deterministic(), rows="fixed", duration_s=JOBS / rate_rps, keep_uses=False
    )
    rows = simulate(plan, options).requests
    latency_us = (rows["finish_us"] - rows["arrival_us"])[rows["outcome"] == SERVED]
    return WorstCase(
        planned=lines.graphs[0].longest(served.times),
        limit=lines.graphs[0].limit_us,
        most=int(latency_us.max(initial=0)),
        dropped=1 - len(latency_us) / len(rows),
    )


def plan_of(
    lines: Lines,
    served: Served,
    rates: Sequence[float],
    profiles: Mapping[str, ModelProfile],
) -> Plan:
    """The machines of a workload as a plan; every group has GPUs of its own."""
    nodes: list[NodeGroup] = []
    pools: list[Pool] = []
    models: list[ModelPlan] = []
    budgets = lines.filled(served.times)
    for number, (demand, line) in enumerate(zip(lines.demands, served.sets, strict=True)):
        pipelines: list[Pipeline] = []
        left = rates[number]
        for group in line.groups:
            first = sum(node.count for node in nodes)
            node, pool = _machines(group, f"pool-{len(pools)}", first)
            nodes.append(node)
            pools.append(pool)
            stage = _whole_model(profiles[demand.name], group.machine, pool)
            rate = min(left, group.rate_rps)
            left -= rate
            pipelines.append(
                Pipeline(
                    batch=group.machine.batch,
                    throughput_rps=rate,
                    latency_us=stage.latency_us,
                    stages=(stage,),
                )
            )
        models.append(
            ModelPlan(
                name=demand.name,
                slo_us=budgets[number],
                throughput_rps=rates[number],
                policy="throughput-cost",
                pipelines=tuple(pipelines),
            )
        )
    graph = lines.graphs[0]
    modules = graph.application.ordered()
    return Plan(
        plan_id="study",
        planner="piccolo",
        objective=Objective(name="cost", value=served.cost, upper_bound=served.cost, gap=0.0),
        cluster=Cluster(
            name="study",
            gpu_classes=tuple(
                GpuClass(name=name, vgpu_divisors=(1, 2, 3, 4), hourly_cost=price)
                for name, price in PRICES.items()
            ),
            nodes=tuple(nodes),
        ),
        workload=Workload(applications=(graph.application,)),
        gpus_used={},
        pools=tuple(pools),
        models=tuple(models),
        applications=(
            ApplicationPlan(
                application=graph.application,
                budgets_us={m.name: budgets[n] for m, n in zip(modules, graph.lines, strict=True)},
            ),
        ),
    )


def _machines(group: Group, name: str, first: int) -> tuple[NodeGroup, Pool]:
    """The GPUs of a group, from node `first` on, and the pool of its parts of them."""
    machine = group.machine
    vgpus = ceil(group.machines * machine.divisor * (1 - 1e-9))
    whole, rest = divmod(vgpus, machine.divisor)
    count = whole + (rest > 0)
    node = NodeGroup(count=count, gpu_class=machine.gpu_class, gpus=1, nic_gbps=10.0)
    runs = [
        PlacementRun(node=first, gpu=0, slot=0, nodes=whole, gpus=1, slots=machine.divisor),
        PlacementRun(node=first + whole, gpu=0, slot=0, nodes=1, gpus=1, slots=rest),
    ]
    pool = Pool(
        name=name,
        gpu_class=machine.gpu_class,
        share=share_of_divisor(machine.divisor),
        vgpus=vgpus,
        placement=tuple(run for run in runs if run.nodes * run.slots),
    )
    return node, pool


def _whole_model(profile: ModelProfile, machine: Machine, pool: Pool) -> Stage:
    """All blocks of a model in a pool, timed at every batch up to the machine's."""
    table = profile.table(machine.gpu_class, pool.share)
    assert table is not None  # the machine is one of its rows
    took_us = table.stage_latency_us((0, profile.blocks))[: machine.batch]
    return Stage(
        blocks=(0, profile.blocks),
        pool=pool.name,
        latency_us=ceil(took_us[-1]),
        transfer_us=0,
        latency_us_by_batch=tuple(ceil(took) for took in took_us),
        boundary_bytes_per_sample=0,
    )


def simulated(worst: Sequence[WorstCase]) -> dict[str, Any]:
    """Print and return how the simulated worst cases stand to the planned ones."""
    whole = [case for case in worst if not case.dropped]
    over = [case.most / case.planned for case in whole]
    figures = {
        "simulated": len(worst),
        "within_slo": len(whole),
        "within_planned": sum(ratio <= 1 for ratio in over),
        "ratio_median": median(over),
        "ratio_worst": max(over),
        "dropped_worst": max(case.dropped for case in worst),
    }
    print(
        f"simulated under throughput-cost, equal gaps: {len(whole)} of {len(worst)} plans "
        "serve every"
        f" job within the SLO (else up to {figures['dropped_worst']:.2%} dropped);"
        f" worst case at most the planned in {figures['within_planned']},"
        f" {figures['ratio_median']:.3f} of it in the median, {figures['ratio_worst']:.3f} at worst"
    )
    return {"worst_case": figures}


def drawn(
    shape: str, profiles: Mapping[str, ModelProfile], draw: np.random.Generator
) -> tuple[Lines, list[tuple[Machine, ...]], list[float]]:
    """A workload of a shape: its lines, their machines and rates."""
    workload = drawn_workload(shape, SHAPES[shape], profiles, draw)
    lines = lines_to_plan(workload, "cost", {shape: 0.0})
    rates = [demand.rate_rps or 0.0 for demand in lines.demands]
    return lines, [machines_of(profiles[demand.name]) for demand in lines.demands], rates


def drawn_workload(
    name: str,
    shape: Sequence[tuple[str, float, tuple[str, ...]]],
    profiles: Mapping[str, ModelProfile],
    draw: np.random.Generator,
) -> Workload:
    """Models at random, a rate from 10 to 1,000/s, an SLO of 1.5 to 8 least latencies."""
    models = draw.choice(sorted(profiles), len(shape), replace=False).tolist()
    modules: list[dict[str, Any]] = [
        {
            "name": name,
            "model": model,
            "after": list(after),
            "rows_per_request": rows,
            "max_rows": 16,
        }
        for (name, rows, after), model in zip(shape, models, strict=True)
    ]
    rate, factor = float(10 ** draw.uniform(1, 3)), float(draw.uniform(1.5, 8))
    least = {m: min(machine.duration_us for machine in machines_of(profiles[m])) for m in models}
    asked: dict[str, Any] = {"name": name, "slo_ms": 1e6, "rate_rps": rate, "modules": modules}
    application = Workload.from_dict({"applications": [asked]}).applications[0]
    way = application.longest({m["name"]: least[m["model"]] for m in modules})
    return Workload.from_dict({"applications": [asked | {"slo_ms": factor * way / 1e3}]})


def machines_of(profile: ModelProfile) -> tuple[Machine, ...]:
    """Every class, divisor and power of two that is measured, whole models."""
    machines: list[Machine] = []
    for (gpu_class, share, _), table in profile.tables.items():
        latency = table.stage_latency_us((0, profile.blocks))
        for batch in BATCHES:
            if batch <= len(latency) and np.isfinite(latency[batch - 1]):
                duration_us = float(latency[batch - 1])
                machines.append(
                    Machine(
                        batch=batch,
                        duration_us=duration_us,
                        rate_rps=WHOLE_GPU / share * batch * 1e6 / duration_us,
                        price=PRICES[gpu_class],
                        gpu_class=gpu_class,
                        divisor=divisor_of(share) or 1,
                    )
                )
    return ranked(machines)


def exactly(
    lines: Lines, tables: Sequence[tuple[Machine, ...]], rates: Sequence[float], start: Served
) -> tuple[float, float]:
    """Least cost under `tc-tail` with dummies, and its bound."""
    steps = [
        line_steps("tc-tail", table, rate, dummies=True)
        for table, rate in zip(tables, rates, strict=True)
    ]
    found = divide(lines, Separate(steps), _SAME, start=start.times)
    if found is None:
        return start.cost, 0.0
    return min(found.cost, start.cost), found.bound


def summary(
    planned: int,
    unproven: int,
    extra: Mapping[str, list[float]],
    missing: Mapping[str, int],
    seconds: Mapping[str, list[float]],
) -> dict[str, Any]:
    """Print and return what was found."""
    over = extra["piccolo"]
    optimal = sum(value <= _SAME * 2 for value in over) / len(over)
    print(f"\n{planned} workloads; the exact planner left {unproven} unproven at {_SAME:g}")
    print(
        f"piccolo at the optimum: {optimal:.2%} (paper 97.13 %),"
        f" mean extra {mean(over):.2%}, worst {max(over):.2%} (paper 7.69 %)"
    )
    for name, taken in seconds.items():
        print(f"seconds of {name}: median {median(taken):.4f}, worst {max(taken):.3f}")
    print(f"{'extra cost over piccolo':24} {'mean':>8} {'worst':>8} {'paper':>7}  no plan")
    rows: list[dict[str, Any]] = []
    for name, values in extra.items():
        if name == "piccolo" or not values:
            continue
        paper = PAPER.get(name)
        rows.append(
            {
                "planner": name,
                "mean": mean(values),
                "worst": max(values),
                "paper_percent": paper,
                "no_plan": missing[name],
            }
        )
        shown = "" if paper is None else f"{paper:.1f} %"
        worst = f"{max(values):8.1%}"
        print(f"{name:24} {mean(values):8.1%} {worst} {shown:>7}  {missing[name]}")
    return {
        "workloads": planned,
        "unproven": unproven,
        "piccolo_optimal": optimal,
        "piccolo_mean": mean(over),
        "piccolo_worst": max(over),
        "piccolo_over_optimum": [round(value, 6) for value in sorted(over)],
        "seconds": {name: [median(taken), max(taken)] for name, taken in seconds.items()},
        "extra": rows,
    }


if __name__ == "__main__":
    main()
