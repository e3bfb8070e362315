"""Benchmark of the scheduler and the simulator: promises, goodput, speed, cost of decisions.

    .venv/bin/python scripts/bench_simulator.py --data DIR [--traces DIR] [--seeds 3] [--out FILE]
        [--only goodput,bursty,...]

DIR holds the published tables (`block_latency_us.csv`, `boundary_bytes.csv`, `slo_us.csv`,
`clusters/`, `workloads/`), `--traces` the file `azure_llm_2023_arrivals.csv.gz`. Plans are ours. Prints
one line per figure with its target beside it; `--out` keeps them with machine and versions.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
from paper_cells import Cell, PaperData, at_objective, ideal_attainment

from flows.planning import PlanOptions
from triton_backend.core.errors import InputError
from triton_backend.core.plan import Plan
from triton_backend.core.topology import build_topology
from triton_backend.sim.arrivals import POISSON, Arrivals, Gamma, Replay, TraceFormat, read_arrivals
from triton_backend.sim.goodput import GRID, find_goodput
from triton_backend.sim.options import REACTIVE, SimOptions
from triton_backend.sim.run import simulate

PLAIN, BEST = "reservation", "reservation-ahead"
SPEED_MODEL = "efficientnet-b8_3rdparty_8xb32-aa-advprop_in1k"
BASELINE_TARGETS = {"dart-r": 0.750, "no-partitioning": 0.668}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure; `least` or `most` is its target, None where it is only reported."""

    what: str
    value: float
    spread: tuple[float, float] | None = None
    least: float | None = None
    most: float | None = None

    @property
    def verdict(self) -> str:
        """Whether the target is met, in a word."""
        if self.least is None and self.most is None:
            return "reported"
        met = (self.least is None or self.value >= self.least) and (
            self.most is None or self.value <= self.most
        )
        return "met" if met else "MISSED"

    def line(self) -> str:
        """One line of the table."""
        target = "" if self.least is None else f">= {self.least:g}"
        target = target if self.most is None else f"<= {self.most:g}"
        spread = "" if self.spread is None else f"{self.spread[0]:.4g} .. {self.spread[1]:.4g}"
        return f"{self.what:<78} {self.value:>12.6g} {spread:>18} {target:>12}  {self.verdict}"


@dataclass(slots=True, kw_only=True)
class Bench:
    """What all families need, and the count of late requests over every exact run."""

    data: PaperData
    traces: Path | None
    seeds: int
    late: int = 0
    offered: int = 0

    def load_factor(self, cell: Cell, options: SimOptions) -> float:
        """Highest load factor of a cell on the grid, each model alone; counts late requests."""
        for load_factor in GRID:
            at = replace(
                options,
                load_factor=load_factor,
                reference=cell.reference,
                models=(cell.model,),
                keep_uses=False,
            )
            result = simulate(cell.plan, at)
            self.offered += len(result.requests)
            if options.policy != REACTIVE:
                self.late += sum(model.late for model in result.models)
            if result.attainment >= 0.99:  # noqa: PLR2004 - the definition of goodput
                return load_factor
        return 0.0

    def mean_load_factor(
        self,
        what: str,
        options: SimOptions,
        *,
        planner: str = "pool",
        least: float | None = None,
        published_rates: bool = False,
    ) -> Figure:
        """Mean over the 72 cells, with the spread over seeds."""
        cells = list(self.data.cells(planner))
        if published_rates:
            cells = [replace(cell, reference=at_objective(cell.reference)) for cell in cells]
        means = [
            float(np.mean([self.load_factor(cell, replace(options, seed=seed)) for cell in cells]))
            for seed in range(self.seeds)
        ]
        value = float(np.mean(means))
        return Figure(what=what, value=value, spread=(min(means), max(means)), least=least)


def goodput(bench: Bench) -> Iterator[Figure]:
    """Mean highest load factor of every model alone, NICs isolated as published."""
    for policy, least in ((PLAIN, 0.965), (BEST, 0.98)):
        options = SimOptions(policy=policy, nic="isolated")
        yield bench.mean_load_factor(f"pool, {policy}, isolated", options, least=least)
        yield bench.mean_load_factor(
            f"pool, {policy}, isolated, load 1 = weight x objective",
            options,
            least=least,
            published_rates=True,
        )
    yield ideal(bench)
    for planner, least in BASELINE_TARGETS.items():
        for policy in (PLAIN, BEST):
            options = SimOptions(policy=policy, nic="isolated")
            yield bench.mean_load_factor(
                f"{planner}, {policy}, isolated", options, planner=planner, least=least
            )
            yield bench.mean_load_factor(
                f"{planner}, {policy}, isolated, load 1 = weight x objective",
                options,
                planner=planner,
                least=least,
                published_rates=True,
            )


def ideal(bench: Bench) -> Figure:
    """The same mean for a server that loses no time: no policy can do better on these plans."""
    found: list[float] = []
    for cell in bench.data.cells("pool"):
        number = [model.name for model in cell.plan.models].index(cell.model)
        model = cell.plan.models[number]
        topology = build_topology(cell.plan, "isolated")
        pipelines = range(topology.model_pipelines[number], topology.model_pipelines[number + 1])
        slack_us = model.slo_us - min(int(topology.path_us[p, 1]) for p in pipelines)
        for load_factor in (*GRID, 0.0):
            options = SimOptions(load_factor=load_factor, models=(cell.model,), keep_uses=False)
            arrivals_us = simulate(cell.plan, options).requests["arrival_us"]
            if ideal_attainment(model, slack_us, arrivals_us) >= 0.99:  # noqa: PLR2004 - as above
                found.append(load_factor)
                break
    return Figure(
        what="pool, a server of the planned rate that loses no time", value=float(np.mean(found))
    )


def shared(bench: Bench) -> Iterator[Figure]:
    """One NIC per node for all that runs there; each model alone, and all at once."""
    for policy in (PLAIN, BEST):
        options = SimOptions(policy=policy)
        yield bench.mean_load_factor(f"pool, {policy}, shared, alone", options, least=0.95)
        for nic in ("shared", "isolated"):
            yield joint(bench, replace(options, nic=nic))


def joint(bench: Bench, options: SimOptions) -> Figure:
    """All three models at once; a load factor holds only if every model attains."""
    plans = {id(cell.plan): cell.plan for cell in bench.data.cells("pool")}.values()
    means = [
        float(np.mean([find_goodput(p, replace(options, seed=seed)).load_factor for p in plans]))
        for seed in range(bench.seeds)
    ]
    return Figure(
        what=f"pool, {options.policy}, {options.nic}, all models at once",
        value=float(np.mean(means)),
        spread=(min(means), max(means)),
        least=0.95 if options.nic == "shared" else None,
    )


def ratios(bench: Bench) -> Iterator[Figure]:
    """Goodput of `pool` over the baselines: mean over cells of the ratio of load factors."""
    for name, arrivals in bursts(bench, POISSON):
        for policy in (PLAIN, BEST):
            options = SimOptions(policy=policy, nic="isolated", arrivals=arrivals)
            factors = {
                planner: [bench.load_factor(cell, options) for cell in bench.data.cells(planner)]
                for planner in ("pool", *BASELINE_TARGETS)
            }
            for planner in BASELINE_TARGETS:
                pairs = zip(factors["pool"], factors[planner], strict=True)
                both = [pool / other for pool, other in pairs if other > 0]
                yield Figure(
                    what=f"goodput of pool / {planner}, {policy}, {name}",
                    value=float(np.mean(both)),
                )


def bursts(bench: Bench, *more: Arrivals) -> Iterator[tuple[str, Arrivals]]:
    """Poisson where asked for, gamma 0.3, and the bursty service of the trace."""
    for arrivals in more:
        yield "Poisson", arrivals
    yield "gamma 0.3", Gamma(shape=0.3)
    if bench.traces is not None:
        trace = read_arrivals(
            bench.traces / "azure_llm_2023_arrivals.csv.gz",
            TraceFormat(time_column="t_s", model_column="service", names={"code": ""}),
        )
        yield "trace `code`", trace


def bursty(bench: Bench) -> Iterator[Figure]:
    """Bursty arrivals."""
    for name, arrivals in bursts(bench):
        for policy in (PLAIN, BEST):
            options = SimOptions(policy=policy, nic="isolated", arrivals=arrivals)
            least = 0.90 if isinstance(arrivals, Gamma) else None
            yield bench.mean_load_factor(f"pool, {policy}, {name}", options, least=least)
            if isinstance(arrivals, Replay):
                yield at_full_load(bench, name, options)


def at_full_load(bench: Bench, name: str, options: SimOptions) -> Figure:
    """Mean attainment at load factor 1, where bursts leave no load factor that attains 99 %."""
    attained = [
        simulate(cell.plan, replace(options, models=(cell.model,), keep_uses=False)).attainment
        for cell in bench.data.cells("pool")
    ]
    return Figure(
        what=f"pool, {options.policy}, {name}: attainment at load factor 1",
        value=float(np.mean(attained)),
    )


def three_stages(bench: Bench) -> Iterator[Figure]:
    """One model alone with at most 3 stages, HC2-L, margin 0.1."""
    options = PlanOptions(slo_margin=0.1, max_partitions=3)
    cluster, slos_us = bench.data.cluster("HC2-L"), bench.data.slos_us()
    plans = [
        bench.data.single_plan(model, cluster, slos_us[model], options)
        for model in bench.data.profiles
    ]
    cells = [
        Cell(group="", cluster="HC2-L", model=plan.models[0].name, plan=plan, reference=plan)
        for plan in plans
    ]
    for policy, least in ((PLAIN, 0.92), (BEST, 0.92), (REACTIVE, None)):
        for nic in ("isolated", "shared"):
            at = SimOptions(policy=policy, nic=nic)
            means = [
                float(np.mean([bench.load_factor(c, replace(at, seed=seed)) for c in cells]))
                for seed in range(bench.seeds)
            ]
            yield Figure(
                what=f"3 stages, 18 models, margin 0.1, {policy}, {nic}",
                value=float(np.mean(means)),
                spread=(min(means), max(means)),
                least=least if nic == "isolated" else None,
            )


def noise(bench: Bench) -> Iterator[Figure]:
    """Latency noise of 5 % at load factor 0.9: attainment lost, in points."""
    for policy in (PLAIN, BEST):
        lost: list[float] = []
        for cell in bench.data.cells("pool"):
            exact = SimOptions(
                policy=policy, models=(cell.model,), load_factor=0.9, keep_uses=False
            )
            noisy = replace(exact, latency_noise_cv=0.05)
            fall = simulate(cell.plan, exact).attainment - simulate(cell.plan, noisy).attainment
            lost.append(100 * fall)
        yield Figure(
            what=f"5 % noise, {policy}: points of attainment lost (spread over cells)",
            value=float(np.mean(lost)),
            spread=(min(lost), max(lost)),
            most=1.0,
        )


def speed(bench: Bench) -> Iterator[Figure]:
    """Simulated requests per wall second, cost of a decision, repeatability."""
    for times, most in ((1, 3.0), (10, 10.0)):
        plan = scaled_plan(bench.data, times)
        for policy in (PLAIN, BEST):
            options = SimOptions(
                policy=policy, load_factor=0.95, duration_s=120 / times, keep_uses=False
            )
            result = simulate(plan, options, clock_ns=time.perf_counter_ns)
            rate = len(result.requests) / (result.wall_seconds or 1.0)
            cost = result.decisions
            name = f"{100 * times} GPUs, {policy}"
            least = 400_000 if times == 1 else None
            yield Figure(what=f"{name}: requests per wall second", value=rate, least=least)
            yield Figure(what=f"{name}: mean decision, µs", value=cost.mean_us or 0.0, most=most)
            yield Figure(
                what=f"{name}: 99th percentile of decisions, µs",
                value=cost.p99_us or 0.0,
                most=20.0 if times == 1 else None,
            )
            yield Figure(what=f"{name}: probes per dispatch", value=cost.probes_per_dispatch or 0.0)
            again = simulate(plan, options)
            same = again.requests.tobytes() == result.requests.tobytes()
            yield Figure(what=f"{name}: same seed, same bytes", value=float(same), least=1.0)


def scaled_plan(data: PaperData, times: int) -> Plan:
    """One model alone on a cluster of 100 x `times` GPUs."""
    cluster = data.cluster("HC1-L")
    cluster = replace(
        cluster,
        nodes=tuple(replace(group, count=group.count * times) for group in cluster.nodes),
    )
    return data.single_plan(SPEED_MODEL, cluster, data.slos_us()[SPEED_MODEL], PlanOptions())


FAMILIES: dict[str, Callable[[Bench], Iterator[Figure]]] = {
    "speed": speed,
    "goodput": goodput,
    "shared": shared,
    "ratios": ratios,
    "bursty": bursty,
    "three-stages": three_stages,
    "noise": noise,
}


def main(arguments: list[str]) -> int:
    """Measure; 0 where every target is met, 1 where one is missed, 2 on wrong input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of published tables")
    parser.add_argument("--traces", type=Path, help="folder of traces")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("--only", default=",".join(FAMILIES), help=f"of {', '.join(FAMILIES)}")
    chosen = parser.parse_args(arguments)
    try:
        data = PaperData.read(chosen.data)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    bench = Bench(data=data, traces=chosen.traces, seeds=chosen.seeds)
    figures: list[Figure] = []
    for name in chosen.only.split(","):
        print(f"\n{name}: {(FAMILIES[name].__doc__ or '').splitlines()[0]}", flush=True)
        for figure in FAMILIES[name](bench):
            figures.append(figure)
            print(figure.line(), flush=True)
    if bench.offered:
        late = Figure(
            what=f"accepted requests late, of {bench.offered:,} offered in exact runs",
            value=bench.late,
            most=0.0,
        )
        figures.append(late)
        print("\n" + late.line())
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(report(figures, bench), indent=2), encoding="utf-8")
    return int(any(figure.verdict == "MISSED" for figure in figures))


def report(figures: list[Figure], bench: Bench) -> dict[str, object]:
    """Figures with the machine and versions they were measured on."""
    return {
        "machine": {"processor": platform.processor(), "cores": os.cpu_count()},
        "versions": {name: version(name) for name in ("numba", "numpy", "highspy")},
        "seeds": bench.seeds,
        "figures": [asdict(figure) | {"verdict": figure.verdict} for figure in figures],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
