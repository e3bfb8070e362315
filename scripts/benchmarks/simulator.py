"""Benchmark of the scheduler and the simulator: promises, goodput, speed, cost of decisions.

    .venv/bin/python scripts/benchmarks/simulator.py --data DIR [--traces DIR] [--seeds 3]
        [--only speed,poisson,shared,gamma,bursty,ratios,three-stages,noise]
        [--cells POLICY] [--processes N] [--out FILE.json] [--warehouse FILE]

DIR holds the published tables (`block_latency_us.csv`, `boundary_bytes.csv`, `slo_us.csv`,
`clusters/`, `workloads/`), `--traces` the file `azure_llm_2023_arrivals.csv.gz` (without it the
trace is left out). Plans are ours; load factor 1 is the `pool` plan's planned rate, for the
baselines too. Means are over 72 cells (6 groups x 4 clusters x 3 models), with the lowest and
highest seed beside. `--cells` lists instead where a policy loses: each cell below 1, beside a
server that loses no time.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from flows.planning import PlanOptions
from scripts.benchmarks.figures import Figure, add_destinations, exit_code, show, store
from scripts.paper.cells import OVERFLOW, PLANNERS, Cell, PaperData, ideal_load
from scripts.paper.runs import Run, Runner, attainment, highest_load
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.policies.registry import REACTIVE
from triton_backend.simulator.offered import POISSON, Arrivals, Gamma, TraceFormat, read_arrivals
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

PLAIN, BEST = "reservation", "reservation-ahead"
SPEED_MODEL = "efficientnet-b8_3rdparty_8xb32-aa-advprop_in1k"
BASELINE_TARGETS = {"dart-r": 0.750, "no-partitioning": 0.668}
PUBLISHED_RATIOS = {"dart-r": 1.32, "no-partitioning": 1.48}
TRACE = "azure_llm_2023_arrivals.csv.gz"


@dataclass(slots=True, kw_only=True)
class Bench:
    """Inputs of all families, and the count of late requests over exact runs."""

    data: PaperData
    runner: Runner
    arrivals: dict[str, Arrivals]
    seeds: int
    late: int = 0
    offered: int = 0
    known: dict[tuple[str, str, str, str], list[list[float]]] = field(
        default_factory=dict[tuple[str, str, str, str], list[list[float]]]
    )

    def loads(self, runs: list[Run]) -> list[list[float]]:
        """Highest load factor of every run, per seed; counts late requests."""
        seeded = [
            replace(run, options=replace(run.options, seed=seed))
            for seed in range(self.seeds)
            for run in runs
        ]
        found = self.runner.map(highest_load, seeded)
        self.offered += sum(f.offered for f in found)
        self.late += sum(f.late for f in found)
        return np.asarray([f.load_factor for f in found]).reshape(self.seeds, -1).tolist()

    def cells(
        self, planner: str, policy: str, arrivals: str = "Poisson", nic: str = "isolated"
    ) -> list[list[float]]:
        """Highest load factors of all 72 cells, each model alone, per seed; found once."""
        key = (planner, policy, arrivals, nic)
        if key not in self.known:
            options = SimOptions(policy=policy, nic=nic, arrivals=self.arrivals[arrivals])
            self.known[key] = self.loads([alone(c, options) for c in self.data.cells(planner)])
        return self.known[key]


def alone(cell: Cell, options: SimOptions) -> Run:
    """One cell, offered shares of the `pool` plan's rate."""
    options = replace(options, reference=cell.reference, models=(cell.model,))
    return Run(plan=cell.plan, options=options)


def mean_figure(name: str, found: list[list[float]], least: float | None = None) -> Figure:
    """Mean over cells and seeds, with the lowest and highest seed."""
    means = np.mean(found, axis=1)
    spread = f"seeds {means.min():.4f} .. {means.max():.4f}"
    return Figure(name=name, value=float(means.mean()), least=least, note=spread)


def poisson(bench: Bench) -> Iterator[Figure]:
    """Mean highest load factor of every model alone, NICs isolated as published."""
    for policy, least in ((PLAIN, 0.965), (BEST, 0.98)):
        yield mean_figure(f"pool, {policy}", bench.cells("pool", policy), least)
    yield mean_figure("pool, deferred", bench.cells("pool", "deferred"))
    for policy in (PLAIN, BEST):
        yield mean_figure(f"{OVERFLOW}, {policy}", bench.cells(OVERFLOW, policy))
    yield ideal(bench, 1.0)
    for planner, least in BASELINE_TARGETS.items():
        for policy in (PLAIN, BEST):
            yield mean_figure(f"{planner}, {policy}", bench.cells(planner, policy), least)


def ideal(bench: Bench, shape: float) -> Figure:
    """The same for a server that loses no time."""
    cells = list(bench.data.cells("pool"))
    found = [[ideal_load(cell, seed, shape) for cell in cells] for seed in range(bench.seeds)]
    gaps = "" if shape == 1.0 else f", gamma {shape:g}"
    return mean_figure(f"pool, a server of the vGPUs' rate that loses no time{gaps}", found)


def shared(bench: Bench) -> Iterator[Figure]:
    """One NIC per node for all that runs there; each model alone, and all three at once."""
    for policy in (PLAIN, BEST):
        found = bench.cells("pool", policy, nic="shared")
        yield mean_figure(f"pool, {policy}, shared, each model alone", found, 0.95)
        for nic in ("shared", "isolated"):
            options = SimOptions(policy=policy, nic=nic)
            for planner in ("pool", OVERFLOW):
                plans = {id(c.plan): c.plan for c in bench.data.cells(planner)}.values()
                found = bench.loads([Run(plan=plan, options=options) for plan in plans])
                least = 0.95 if nic == "shared" else None
                yield mean_figure(f"{planner}, {policy}, {nic}, all models at once", found, least)


def gamma(bench: Bench) -> Iterator[Figure]:
    """Gamma gaps of shape 0.3."""
    for policy in (PLAIN, BEST):
        for planner in ("pool", OVERFLOW):
            found = bench.cells(planner, policy, "gamma 0.3")
            yield mean_figure(f"{planner}, {policy}, gamma 0.3", found, 0.90)
    yield ideal(bench, 0.3)


def bursty(bench: Bench) -> Iterator[Figure]:
    """The bursty service `code` of the trace, scaled to the rate."""
    if "trace" not in bench.arrivals:
        yield Figure(name="bursty (give --traces)", value=None)
        return
    for policy in (PLAIN, BEST):
        yield mean_figure(f"pool, {policy}, trace `code`", bench.cells("pool", policy, "trace"))
        options = SimOptions(policy=policy, nic="isolated", arrivals=bench.arrivals["trace"])
        runs = [alone(cell, options) for cell in bench.data.cells("pool")]
        value = float(np.mean(bench.runner.map(attainment, runs)))
        yield Figure(name=f"pool, {policy}, trace `code`: attainment at load factor 1", value=value)


def ratios(bench: Bench) -> Iterator[Figure]:
    """Goodput of `pool` over the baselines: mean over cells of the ratio of load factors."""
    for arrivals in bench.arrivals:
        for policy in (PLAIN, BEST):
            pool = np.asarray(bench.cells("pool", policy, arrivals))
            for planner, published in PUBLISHED_RATIOS.items():
                other = np.asarray(bench.cells(planner, policy, arrivals))
                both = (pool > 0) & (other > 0)
                name = f"goodput of pool / {planner}, {policy}, {arrivals}"
                if not both.any(axis=1).all():
                    yield Figure(name=name, value=None, note="no load factor attains 99 %")
                    continue
                per_seed = [
                    [float((p[k] / o[k]).mean())] for p, o, k in zip(pool, other, both, strict=True)
                ]
                figure = mean_figure(name, per_seed)
                note = f"{figure.note}, of {int(both.sum())} of {both.size} cells"
                if arrivals == "Poisson":
                    note += f", published {published}"
                yield replace(figure, note=note)


def three_stages(bench: Bench) -> Iterator[Figure]:
    """One model alone with at most 3 stages, HC2-L, margin 0.1."""
    options = PlanOptions(slo_margin=0.1, max_partitions=3)
    cluster, slos_us = bench.data.cluster("HC2-L"), bench.data.slos_us()
    plans = [
        bench.data.single_plan(model, cluster, slos_us[model], options)
        for model in bench.data.profiles
    ]
    for policy, least in ((PLAIN, 0.92), (BEST, 0.92), (REACTIVE, None)):
        for nic in ("isolated", "shared"):
            at = SimOptions(policy=policy, nic=nic)
            found = bench.loads([Run(plan=plan, options=at) for plan in plans])
            target = least if nic == "isolated" else None
            yield mean_figure(f"3 stages, 18 models, {policy}, {nic}", found, target)


def noise(bench: Bench) -> Iterator[Figure]:
    """Latency noise of 5 % at load factor 0.9: attainment lost, in points."""
    for policy in (PLAIN, BEST):
        exact = SimOptions(policy=policy, load_factor=0.9)
        noisy = replace(exact, latency_noise_cv=0.05)
        cells = list(bench.data.cells("pool"))
        before, after = (
            np.asarray(bench.runner.map(attainment, [alone(cell, options) for cell in cells]))
            for options in (exact, noisy)
        )
        lost = 100 * (before - after)
        yield Figure(
            name=f"5 % noise, {policy}: points of attainment lost",
            value=float(lost.mean()),
            most=1.0,
            note=f"cells {lost.min():.3f} .. {lost.max():.3f}",
        )


def speed(bench: Bench) -> Iterator[Figure]:
    """Simulated requests per wall second, cost of a decision, repeatability; one process."""
    for times, most in ((1, 3.0), (10, 10.0)):
        plan = scaled_plan(bench.data, times)
        for policy in (PLAIN, BEST):
            options = SimOptions(policy=policy, load_factor=0.95, duration_s=120 / times)
            options = replace(options, keep_uses=False)
            result = simulate(plan, options, clock_ns=time.perf_counter_ns)
            rate = len(result.requests) / (result.wall_seconds or 1.0)
            cost = result.decisions
            name = f"{100 * times} GPUs, {policy}"
            least = 400_000 if times == 1 else None
            yield Figure(name=f"{name}: requests per wall second", value=rate, least=least)
            yield Figure(name=f"{name}: decision, mean", value=cost.mean_us, unit="µs", most=most)
            worst = 20.0 if times == 1 else None
            yield Figure(name=f"{name}: decision, p99", value=cost.p99_us, unit="µs", most=worst)
            yield Figure(name=f"{name}: probes per dispatch", value=cost.probes_per_dispatch)
            same = simulate(plan, options).requests.tobytes() == result.requests.tobytes()
            yield Figure(name=f"{name}: same seed, same bytes", value=float(same), least=1.0)


def scaled_plan(data: PaperData, times: int) -> Plan:
    """One model alone on a cluster of 100 x `times` GPUs."""
    cluster = data.cluster("HC1-L")
    groups = tuple(replace(group, count=group.count * times) for group in cluster.nodes)
    slo_us = data.slos_us()[SPEED_MODEL]
    return data.single_plan(SPEED_MODEL, replace(cluster, nodes=groups), slo_us, PlanOptions())


def show_cells(bench: Bench, policy: str) -> None:
    """Every cell of every planner below load factor 1, seed 0, beside the ideal server's."""
    bench.seeds = 1
    for planner in PLANNERS:
        found = bench.cells(planner, policy)[0]
        for cell, load_factor in zip(bench.data.cells(planner), found, strict=True):
            if load_factor < 1:
                where = f"{planner:<16} {cell.group} {cell.cluster} {cell.model[:40]:<40}"
                print(f"{where} {load_factor:.2f}  ideal {ideal_load(cell, 0):.2f}", flush=True)


FAMILIES: dict[str, Callable[[Bench], Iterator[Figure]]] = {
    "speed": speed,
    "poisson": poisson,
    "shared": shared,
    "gamma": gamma,
    "bursty": bursty,
    "ratios": ratios,
    "three-stages": three_stages,
    "noise": noise,
}


def read_processes(traces: Path | None) -> dict[str, Arrivals]:
    """Poisson, gamma 0.3 and, where there is a folder of traces, the service `code`."""
    processes: dict[str, Arrivals] = {"Poisson": POISSON, "gamma 0.3": Gamma(shape=0.3)}
    if traces is not None:
        code = TraceFormat(time_column="t_s", model_column="service", names={"code": ""})
        processes["trace"] = read_arrivals(traces / TRACE, code)
    return processes


def main(arguments: list[str]) -> int:
    """Measure; 0 where every target is met, 1 where one is missed, 2 on wrong input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder of published tables")
    add("--traces", type=Path, help="folder of traces")
    add("--seeds", type=int, default=3)
    add("--only", default=",".join(FAMILIES), help=f"of {', '.join(FAMILIES)}")
    add("--cells", metavar="POLICY", help="list the cells in which a policy loses")
    add("--processes", type=int, help="simulations at once; a core each without it")
    add_destinations(parser)
    asked = parser.parse_args(arguments)
    if unknown := sorted(set(asked.only.split(",")) - set(FAMILIES)):
        parser.error(f"--only {unknown[0]}: none of {', '.join(FAMILIES)}")
    try:
        data, processes = PaperData.read(asked.data), read_processes(asked.traces)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    figures: list[Figure] = []
    with Runner(asked.processes) as runner:
        bench = Bench(data=data, runner=runner, arrivals=processes, seeds=asked.seeds)
        if asked.cells:
            show_cells(bench, asked.cells)
            return 0
        for name in asked.only.split(","):
            print(f"\n{name}: {(FAMILIES[name].__doc__ or '').splitlines()[0]}", flush=True)
            for figure in FAMILIES[name](bench):
                figures.append(figure)
                show([figure])
    if bench.offered:
        name = f"accepted requests late, of {bench.offered:,} offered in exact runs"
        figures.append(Figure(name=name, value=bench.late, most=0.0))
        show(figures[-1:])
    store(asked, "simulator", figures, {"seeds": bench.seeds})
    return exit_code(figures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
