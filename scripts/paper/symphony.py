"""Figures of the Symphony paper that a simulation can show, beside what it states.

    .venv/bin/python scripts/paper/symphony.py --data DIR [--seconds 60] [--seeds 3]
        [--only table2,others,overload,idle,mixed,gpus,eager,partitions] [--out FILE] [--warehouse FILE]

`--data` is the folder of the paper's published tables: `profiles_1080Ti.csv` and `profiles_A100.csv`
(latency alpha b + beta, SLO), `table2_theory_and_measured.csv`. Plans are made by `subclusters`,
arrivals are Poisson, latencies exact, no network. A rate holds where its worst model answers 99 % in
time with every seed. Every policy that drops heads is shown with both rules for them.
"""

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.clock import Stopwatch
from flows.planning import PlanOptions, make_plan
from flows.planning.subclusters.gathering import staggered, uncoordinated
from flows.planning.subclusters.partition import ToPart, divide, fits, imbalance, sums, value_of
from flows.planning.watch import Watch
from scripts.benchmarks.figures import Figure, add_destinations, exit_code, show, store
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile, loaded
from triton_backend.contract.workload import ModelDemand, Workload
from triton_backend.simulator.goodput import ATTAINMENT
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

GPU = "GPU"
MOST_BATCH = 256
TABLE_2 = (("ResNet50", 5_150, 14), ("InceptionResNetV2", 920, 8))  # goodput and batch wanted
OVERLOADS = (1.5, 2.3)  # of the analytic rate
MIXED_GPUS = 64
MIXED_RPS = 15_000
PARTITIONS = ((400, 4), (800, 20))
PARTITION_S = 10.0
EAGER_BETAS = (1, 5, 15)  # figure 6a: alpha 1 ms
EAGER_GPUS, EAGER_MODELS = 32, 10
VARIANTS = (("deferred", "window"), ("deferred", "head"), ("eager", "window"), ("eager", "head"))
OTHERS = {"nexus": "nexus", "shepherd": "subclusters", "triton": "subclusters"}  # and their plans
STEPS = 7  # halvings of the interval in which a goodput is searched: below 0.3 % of the rate


class Row(NamedTuple):
    """A published model: latency alpha b + beta, both in µs."""

    name: str
    alpha_us: float
    beta_us: float
    slo_us: int

    @property
    def latency_us(self) -> NDArray[np.float64]:
        """Of batches 1 .. as many as the SLO allows."""
        most = int((self.slo_us - self.beta_us) / self.alpha_us)
        return self.alpha_us * np.arange(1, max(2, min(most, MOST_BATCH)) + 1) + self.beta_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What all figures share."""

    data: Path
    seconds: float
    seeds: int

    def run(self, plan: Plan, policy: tuple[str, str], rate_rps: float, seed: int) -> SimResult:
        """One simulation of a policy with a rule for heads, "" where it has none."""
        name, heads = policy
        options = SimOptions(
            policy=name, heads=heads or None, rate_rps=rate_rps, duration_s=self.seconds, seed=seed
        )
        return simulate(plan, options)

    def runs(self, plan: Plan, policy: tuple[str, str], rate_rps: float) -> Iterable[SimResult]:
        """One per seed."""
        return (self.run(plan, policy, rate_rps, seed) for seed in range(self.seeds))

    def holds(self, plan: Plan, policy: tuple[str, str], rate_rps: float) -> bool:
        """Whether the worst model attains with every seed; ends at the first that does not."""
        return all(worst(run) >= ATTAINMENT for run in self.runs(plan, policy, rate_rps))

    def goodput(self, plan: Plan, policy: tuple[str, str], below_rps: float) -> float:
        """Highest rate that holds, to a fraction of a percent; `below_rps` does not."""
        low, high = 0.0, below_rps
        while low == 0.0 and high > 0.01 * below_rps:
            middle = 0.8 * high
            low, high = (middle, high) if self.holds(plan, policy, middle) else (0.0, middle)
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.holds(plan, policy, middle) else (low, middle)
        return low


def worst(result: SimResult) -> float:
    """Attainment of the worst model."""
    return min(model.attainment for model in result.models)


def rows_of(path: Path) -> list[Row]:
    """Published models of a file.

    Raises:
        InputError: there is no such file, or a column is missing.
    """
    if not path.is_file():
        raise InputError(str(path), "no such file; --data is the folder of the published tables")
    with path.open(newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    try:
        return [
            Row(
                row["model"],
                float(row["alpha_ms"]) * 1e3,
                float(row["beta_ms"]) * 1e3,
                round(float(row["slo_ms"]) * 1e3),
            )
            for row in read
        ]
    except (KeyError, ValueError) as error:
        raise InputError(str(path), f"is no table of profiles: {error}") from error


def plan_of(
    rows: Sequence[Row], gpus: int, rate_rps: float | None = None, planner: str = "subclusters"
) -> Plan:
    """Equally popular models on so many GPUs: all that they carry, or the batches of a rate."""
    each = None if rate_rps is None else rate_rps / len(rows)
    profiles = {
        row.name: ModelProfile(
            name=row.name, boundary_bytes=(), tables=loaded({(GPU, 1): row.latency_us[None, :]})
        )
        for row in rows
    }
    demands = tuple(
        ModelDemand(name=row.name, slo_us=row.slo_us, weight=1.0, rate_rps=each) for row in rows
    )
    cluster = Cluster(
        name="paper",
        gpu_classes=(GpuClass(name=GPU),),
        nodes=(NodeGroup(count=gpus, gpu_class=GPU, gpus=1, nic_gbps=10),),
    )
    return make_plan(profiles, cluster, Workload(models=demands), PlanOptions(planner=planner))


def analytic_gpus(rows: Sequence[Row], rate_rps: float) -> float:
    """GPUs at full use for equally popular models, with real batches."""
    each = rate_rps / len(rows) / 1e6
    return sum(
        (row.alpha_us * row.slo_us * each + row.beta_us) / (row.slo_us - row.beta_us)
        for row in rows
    )


@cache
def table_2_rows(data: Path) -> dict[str, Row]:
    """The two models of table 2, by name."""
    return {row.name: row for row in rows_of(data / "table2_theory_and_measured.csv")}


# Figures


def table2(study: Study) -> list[Figure]:
    """Analytic batches and rates, then goodput and median batch of both models on 8 GPUs."""
    with (study.data / "table2_theory_and_measured.csv").open(newline="", encoding="utf-8") as file:
        published = {row["model"]: row for row in csv.DictReader(file)}
    figures: list[Figure] = []
    for name, rps, batch in TABLE_2:
        row, paper = table_2_rows(study.data)[name], published[name]
        for found, kind in (
            (staggered(row.latency_us, row.slo_us, 8), "staggered"),
            (uncoordinated(row.latency_us, row.slo_us, 8), "nocoord"),
        ):
            for value, unit, stated in (
                (found.batch, "batch", paper[f"{kind}_batch"]),
                (round(found.rate_rps), "rps", paper[f"{kind}_rps"]),
            ):
                wanted = float(stated)
                label = f"{name}, analytic {kind}, {unit}"
                figures.append(Figure(name=label, value=value, least=wanted, most=wanted))
        plan = plan_of([row], 8)
        limit = staggered(row.latency_us, row.slo_us, 8).rate_rps
        for policy in VARIANTS:
            goodput = study.goodput(plan, policy, 1.02 * limit)
            label = f"{name}, 8 GPUs, {'/'.join(policy)}"
            ours = policy == VARIANTS[0]
            figures.append(
                Figure(
                    name=f"{label}: goodput",
                    value=goodput,
                    unit="rps",
                    least=rps if ours else None,
                    note=f"paper: {paper['symphony_rps']}" if ours else "",
                )
            )
            if goodput:
                figures.append(
                    Figure(
                        name=f"{label}: median batch there",
                        value=median_batch(study.run(plan, policy, goodput, 0)),
                        least=batch if ours else None,
                    )
                )
    return figures


def others(study: Study) -> list[Figure]:
    """Both models of table 2 under policies of others, as rebuilt here: goodput and median batch."""
    figures: list[Figure] = []
    for name, _, _ in TABLE_2:
        row = table_2_rows(study.data)[name]
        limit = staggered(row.latency_us, row.slo_us, 8).rate_rps
        for policy, planner in OTHERS.items():
            plan = plan_of([row], 8, planner=planner)
            goodput = study.goodput(plan, (policy, ""), 1.02 * limit)
            label = f"{name}, 8 GPUs, {policy} on a plan of {planner}"
            figures.append(Figure(name=f"{label}: goodput", value=goodput, unit="rps"))
            if goodput:
                size = median_batch(study.run(plan, (policy, ""), goodput, 0))
                figures.append(Figure(name=f"{label}: median batch there", value=size))
    return figures


def median_batch(result: SimResult) -> float:
    """Median size of the batches that ran."""
    return float(np.median(result.uses["samples"]))


def overload(study: Study) -> list[Figure]:
    """Good rate of ResNet50 on 8 GPUs when more is offered than they carry."""
    row = table_2_rows(study.data)["ResNet50"]
    limit = staggered(row.latency_us, row.slo_us, 8).rate_rps
    plan = plan_of([row], 8)
    figures: list[Figure] = []
    for times in OVERLOADS:
        for policy in VARIANTS:
            good = min(
                run.attainment * len(run.requests) / study.seconds
                for run in study.runs(plan, policy, times * limit)
            )
            figures.append(
                Figure(
                    name=f"ResNet50, {times:g} x analytic offered, {'/'.join(policy)}: good rate",
                    value=good / limit,
                    least=0.97 if policy == VARIANTS[0] else None,
                    note="of the analytic rate, worst seed",
                )
            )
    return figures


def idle(study: Study) -> list[Figure]:
    """Load-proportional use: 3,000 requests/s of ResNet50 on 8 GPUs."""
    row = table_2_rows(study.data)["ResNet50"]
    plan = plan_of([row], 8)
    figures: list[Figure] = []
    for policy in (("deferred", "window"), ("eager", "window")):
        busy = np.mean([busy_by_vgpu(run) for run in study.runs(plan, policy, 3_000)], axis=0)
        ours = policy[0] == "deferred"
        shown = ", ".join(f"{share:.2f}" for share in busy)
        name = f"ResNet50, 3,000 rps on 8 GPUs, {'/'.join(policy)}"
        figures += [
            Figure(
                name=f"{name}: idle fraction",
                value=float(1 - busy.mean()),
                least=0.45 if ours else None,
                most=0.49 if ours else None,
                note=f"busy by number: {shown}",
            ),
            Figure(
                name=f"{name}: GPUs idle",
                value=float((busy < 0.01).sum()),  # noqa: PLR2004 - a hundredth of the time
                least=2 if ours else None,
            ),
            Figure(
                name=f"{name}: largest rise of busy by number",
                value=float(max(0.0, np.diff(busy).max())),
                most=0.001 if ours else None,
            ),
        ]
    return figures


def busy_by_vgpu(result: SimResult) -> NDArray[np.float64]:
    """Share of the run that each vGPU was busy."""
    took = (result.uses["end_us"] - result.uses["start_us"]).astype(np.float64)
    count = len(result.plan.vgpus())
    return np.bincount(result.uses["vgpu"], took, count) / (result.duration_s * 1e6)


def mixed(study: Study) -> list[Figure]:
    """37 models on 64 A100: goodput by the worst model, and how busy they are at 15,000."""
    rows = rows_of(study.data / "profiles_A100.csv")
    plan = plan_of(rows, MIXED_GPUS)
    figures = [
        Figure(
            name=f"{len(rows)} models on {MIXED_GPUS} A100: planned at utilisation 0.9",
            value=plan.objective.value * len(rows),
            unit="rps",
        )
    ]
    for policy in VARIANTS:
        ours = policy == VARIANTS[0]
        label = f"{len(rows)} models on {MIXED_GPUS} A100, {'/'.join(policy)}"
        goodput = study.goodput(plan, policy, 18_447)
        busy = np.mean([run.utilisation[GPU] for run in study.runs(plan, policy, MIXED_RPS)])
        figures += [
            Figure(
                name=f"{label}: goodput of the worst model",
                value=goodput,
                unit="rps",
                least=16_500 if ours else None,
            ),
            Figure(
                name=f"{label}: busy at {MIXED_RPS:,} rps",
                value=float(busy),
                most=0.83 if ours else None,
            ),
        ]
    return figures


def gpus(study: Study) -> list[Figure]:
    """GPUs for 15,000 requests/s: in closed form, and the fewest that hold in simulation."""
    rows = rows_of(study.data / "profiles_A100.csv")
    resnet = [row._replace(slo_us=25_000) for row in rows if row.name == "ResNet50"]
    figures: list[Figure] = []
    for name, chosen, most in (("ResNet50", resnet, 6), (f"{len(rows)} models", rows, 61)):
        exact = analytic_gpus(chosen, MIXED_RPS)
        figures.append(Figure(name=f"A100 for 15,000 rps, {name}: analytic", value=exact))
        for policy in (("deferred", "window"), ("eager", "window"), ("eager", "head")):
            count = next(
                number
                for number in range(int(np.ceil(exact)), 4 * int(np.ceil(exact)))
                if study.holds(plan_of(chosen, number), policy, MIXED_RPS)
            )
            figures.append(
                Figure(
                    name=f"A100 for 15,000 rps, {name}, {'/'.join(policy)}",
                    value=count,
                    most=most if policy[0] == "deferred" else None,
                )
            )
    return figures


def eager(study: Study) -> list[Figure]:
    """Figure 6a: 10 equal models on 32 GPUs, alpha 1 ms, SLO 2 l(8); eager / deferred."""
    figures: list[Figure] = []
    for beta in EAGER_BETAS:
        slo_us = 2 * (8 + beta) * 1_000
        rows = [Row(f"m{i}", 1_000.0, beta * 1_000.0, slo_us) for i in range(EAGER_MODELS)]
        plan = plan_of(rows, EAGER_GPUS)
        above = 1.25 * plan.objective.value * EAGER_MODELS
        found = {policy: study.goodput(plan, policy, above) for policy in VARIANTS}
        base = found[VARIANTS[0]]
        figures.append(Figure(name=f"figure 6a, beta {beta}: deferred", value=base, unit="rps"))
        figures += [
            Figure(
                name=f"figure 6a, beta {beta}: {'/'.join(policy)} / deferred",
                value=rate / base if base else None,
            )
            for policy, rate in found.items()
            if policy != VARIANTS[0]
        ]
    return figures


def partitions(study: Study) -> list[Figure]:
    """Many models into sub-clusters within 10 s, beside random assignments for as long."""
    figures: list[Figure] = []
    for models, parts in PARTITIONS:
        found = [_partition(models, parts, seed) for seed in range(study.seeds)]
        label = f"{models} models in {parts} sub-clusters, worst of {study.seeds}"
        for number, (what, most) in enumerate(
            (
                ("imbalance of load", 0.01),
                ("imbalance of memory", 0.02),
                ("gap (absolute)", None),
                ("seconds", PARTITION_S),
                ("objective / that of random search", 0.5),
            )
        ):
            value = max(each[number] for each in found)
            figures.append(Figure(name=f"{label}: {what}", value=value, most=most))
    return figures


def _partition(models: int, parts: int, seed: int) -> tuple[float, ...]:
    """Imbalances, gap, seconds and the objective over that of random search, for one draw."""
    rng = np.random.default_rng(seed)
    load = rng.exponential(size=models)  # the paper draws rates so
    static = rng.uniform(5e6, 550e6, models)  # from MobileNet to VGG
    asked = ToPart(
        load=load,
        static_bytes=static,
        dynamic_bytes=static / 2,
        room_bytes=np.inf,
        parts=parts,
        gpus=parts * int(np.ceil(load.sum() / 0.9 / parts) + 1),
        utilisation=0.9,
        before=np.full(models, -1),
    )
    watch = Stopwatch()
    found = divide(asked, Watch(limit_s=PARTITION_S))
    seconds = watch.seconds()
    if found is None:
        return np.inf, np.inf, np.inf, seconds, np.inf
    even = np.full(parts, asked.gpus // parts)
    free = replace(asked, utilisation=np.inf)  # hardly any random one is even enough to fit
    best, watch = np.inf, Stopwatch()
    while watch.seconds() < PARTITION_S:
        part = rng.integers(parts, size=models)
        if fits(free, part, even):
            best = min(best, value_of(free, part, even))
    return (
        imbalance(sums(found.part, load, parts)),
        imbalance(sums(found.part, static, parts)),
        found.gap,
        seconds,
        found.value / best,
    )


FIGURES: dict[str, Callable[[Study], list[Figure]]] = {
    "table2": table2,
    "others": others,
    "overload": overload,
    "idle": idle,
    "mixed": mixed,
    "gpus": gpus,
    "eager": eager,
    "partitions": partitions,
}


def main(arguments: Sequence[str]) -> int:
    """Run what was chosen; 1 where a target was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seconds", type=float, default=60.0, help="simulated, per point")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default=",".join(FIGURES), metavar="NAME,NAME")
    add_destinations(parser)
    asked = parser.parse_args(arguments)
    study = Study(data=asked.data, seconds=asked.seconds, seeds=asked.seeds)
    unknown = sorted(set(asked.only.split(",")) - set(FIGURES))
    if unknown:
        parser.error(f"--only: {unknown[0]!r} is none of {', '.join(FIGURES)}")
    found: list[Figure] = []
    try:
        for name in asked.only.split(","):
            made = FIGURES[name](study)
            show(made)
            found += made
        store(asked, "symphony", found, {"seconds": asked.seconds, "seeds": asked.seeds})
    except InputError as error:
        parser.error(str(error))
    return exit_code(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
