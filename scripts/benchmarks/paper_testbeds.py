"""Agreement: the paper's testbeds served on the real Triton, beside the simulator's figures.

Clusters HC1-S to HC4-S (4 high-class and 12 low-class GPUs) are emulated: every vGPU is a worker
process that waits the profiled latency and hands tensors of the true size to the next one over the
plan's link rates. Each model is planned and served alone, offered Poisson load at shares of the
planned rate, and the simulator is given the very same arrivals (same seed, NICs shared).

    .venv/bin/python scripts/benchmarks/paper_testbeds.py --data DIR [--clusters HC1-S] [--models 6]
        [--only rtmdet ...] [--loads 0.95] [--policy NAME] [--seconds 4] [--stretch K] [--goodput]
        [--out FILE]

Two cores carry gateway, load and up to 50 workers, so every plan is slowed down by a factor (its
times x K, its rates / K, its links too) that keeps it below `--most-rps` requests and
`--most-mb` megabytes of feature maps per second; `--stretch` sets one factor for all. K is printed.
`--goodput` compares planners instead: each plan is offered shares of the `pool` plan's rate, from
one step above what the simulator serves downwards, and goodput is the highest at which 99 % are
served in time; gains are printed beside the simulator's own and the paper's.
"""

import argparse
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.clock import Stopwatch
from flows.planning import PlanOptions
from scripts.benchmarks.figures import Figure, add_destinations, exit_code, show, store
from scripts.benchmarks.served import Load, Served, stretched
from scripts.paper.cells import PaperData
from triton_backend.contract.plan import DEFAULT_POLICY, Plan
from triton_backend.contract.shares import share_text
from triton_backend.scheduler.policies.registry import POLICIES
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

CLUSTERS = ("HC1-S", "HC2-S", "HC3-S", "HC4-S")
LOAD_FACTORS = (0.5, 0.8, 0.95)
GOODPUT_FACTORS = tuple(percent / 100 for percent in range(100, 20, -5))
PLANNERS = ("pool", "dart-r", "no-partitioning")
PAPER_GAINS = {"no-partitioning": "42.6-52.8 %", "dart-r": "16.7-34.1 %"}
TARGET_POINTS = 2.0
GOOD = 0.99
# Long enough that this machine's jitter (a few ms) is small beside it.
LEAST_SLO_US = 150_000
# Two-stage plans come first; the models are those of the published groups, in their order.
MODELS = (
    "efficientnet-b8_3rdparty_8xb32-aa-advprop_in1k",
    "encnet_r101-d8_4xb2-40k_cityscapes-512x1024",
    "rtmdet_x_8xb32-300e_coco",
    "gfl_x101-32x4d_fpn_ms-2x_coco",
    "atss_r101_fpn_1x_coco",
    "convnext_large",
)


class Bench:
    """The options, the tables, and the plans made of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.data = PaperData.read(options.data)
        self._slos_us = self.data.slos_us()
        rest = [name for name in sorted(self._slos_us) if name not in MODELS]
        chosen = [*MODELS, *rest][: options.models]
        self.models = [n for n in chosen if any(part in n for part in options.only)]

    def plan(self, model: str, cluster: str, planner: str) -> Plan:
        """A model alone on a cluster, at the published margin and number of stages."""
        chosen = PlanOptions(planner=planner, slo_margin=0.4, max_partitions=2)
        return self.data.single_plan(
            model, self.data.cluster(cluster), self._slos_us[model], chosen
        )

    def stretch(self, plan: Plan) -> float:
        """How much slower two cores need it."""
        if self.options.stretch is not None:
            return float(self.options.stretch)
        (model,) = plan.models
        inner_bytes = sum(
            p.throughput_rps * sum(s.boundary_bytes_per_sample for s in p.stages[:-1])
            for p in model.pipelines
        )
        need = max(
            1.0,
            model.throughput_rps / self.options.most_rps,
            inner_bytes / (self.options.most_mb * 1e6),
            LEAST_SLO_US / model.slo_us,
        )
        return round(need, 1) if need == 1.0 else round(need + 0.05, 1)

    def offered(self, served: Served, plan: Plan, load_factor: float) -> dict[str, Any]:
        """Attainment of the running system at a share of a reference plan's rate."""
        path = served.write_plan(plan, "reference")
        loaded = Load(
            served.state.grpc_url,
            path,
            f"--load-factor={load_factor}",
            f"--duration={self.options.seconds}",
            f"--seed={self.options.seed}",
            "--give-up-s=1",
        ).result()
        (row,) = loaded.summary["models"].values()
        return {
            "attainment": loaded.attainment,
            "latency_ms": row["latency_ms"],
            "send_lag_p99_ms": loaded.summary["send_lag_ms"]["p99"],
            **{name: row[name] for name in ("offered", "served", "late", "dropped", "failed")},
        }

    def simulated(self, plan: Plan, reference: Plan, load_factor: float) -> dict[str, Any]:
        """Simulated results of the same arrivals."""
        result = simulate(
            plan,
            SimOptions(
                policy=self.options.policy,
                load_factor=load_factor,
                reference=reference,
                duration_s=self.options.seconds,
                seed=self.options.seed,
                nic="shared",
                admission=True,
                keep_uses=False,
            ),
        )
        (model,) = result.models
        return {"attainment": result.attainment, **model.to_dict()}


def describe(plan: Plan, stretch: float) -> dict[str, Any]:
    """The plan in short."""
    (model,) = plan.models
    return {
        "rps": model.throughput_rps,
        "stretch": stretch,
        "slo_ms": model.slo_us / 1000,
        "vgpus": len(plan.vgpus()),
        "pipelines": [
            {
                "batch": p.batch,
                "stages": [
                    f"{pool.vgpus} x {share_text(pool.share)} {pool.gpu_class} {list(s.blocks)}"
                    for s in p.stages
                    for pool in (plan.pool_of(s),)
                ],
            }
            for p in model.pipelines
        ],
    }


def agreement(bench: Bench) -> Iterator[dict[str, Any]]:
    """Measured and simulated attainment of every model on every cluster."""
    for cluster in bench.options.clusters:
        for name in bench.models:
            original = bench.plan(name, cluster, "pool")
            stretch = bench.stretch(original)
            plan = stretched(original, stretch)
            print(f"{cluster} {name}  {describe(plan, stretch)}", file=sys.stderr)
            served = Served(plan, bench.options.port, serve_options(bench.options))
            with served:
                for load_factor in bench.options.loads:
                    measured = bench.offered(served, plan, load_factor)
                    simulated = bench.simulated(plan, plan, load_factor)
                    points = 100 * (measured["attainment"] - simulated["attainment"])
                    print(
                        f"{cluster} {name[:24]:<24} x{stretch:<5} load {load_factor:<4}"
                        f" measured {measured['attainment']:.3%}"
                        f" simulated {simulated['attainment']:.3%}"
                        f" difference {points:+.2f} points (target within {TARGET_POINTS})"
                        f" machine load {os.getloadavg()[0]:.1f}",
                        flush=True,
                    )
                    yield {
                        "cluster": cluster,
                        "model": name,
                        "load_factor": load_factor,
                        "plan": describe(plan, stretch),
                        "measured": measured,
                        "simulated": simulated,
                        "difference_points": points,
                        "load_average": os.getloadavg()[0],
                    }


def goodput(bench: Bench) -> Iterator[dict[str, Any]]:
    """Highest share of the `pool` plan's rate that each planner's plan serves, measured."""
    for cluster in bench.options.clusters:
        for name in bench.models:
            pool = bench.plan(name, cluster, "pool")
            stretch = bench.stretch(pool)
            reference = stretched(pool, stretch)
            rows: dict[str, dict[str, float]] = {}
            for planner in PLANNERS:
                plan = stretched(bench.plan(name, cluster, planner), stretch)
                rows[planner] = planner_goodput(bench, plan, reference)
            print(f"{cluster} {name[:24]:<24} x{stretch:<5} {rows}", flush=True)
            yield {"cluster": cluster, "model": name, "stretch": stretch, "goodput": rows}


def planner_goodput(bench: Bench, plan: Plan, reference: Plan) -> dict[str, float]:
    """Highest shares served, measured and simulated; 0 where not even the lowest is."""
    simulated = next(
        (f for f in GOODPUT_FACTORS if bench.simulated(plan, reference, f)["attainment"] >= GOOD),
        0.0,
    )
    at = GOODPUT_FACTORS.index(simulated) if simulated else len(GOODPUT_FACTORS) - 1
    with Served(plan, bench.options.port, serve_options(bench.options)) as served:
        measured = next(
            (
                f
                for f in GOODPUT_FACTORS[max(at - 1, 0) :]
                if bench.offered(served, reference, f)["attainment"] >= GOOD
            ),
            0.0,
        )
    return {"measured": measured, "simulated": simulated}


def serve_options(options: argparse.Namespace) -> ServeOptions:
    """How every testbed is served."""
    return ServeOptions(policy=options.policy, emulate_links=True, guard_fraction=options.guard)


def main() -> int:
    """Run, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder of the published tables")
    add("--clusters", nargs="+", default=list(CLUSTERS))
    add("--models", type=int, default=6, help="the first so many")
    add("--only", nargs="+", default=[""], help="of those, names that contain one of these")
    add("--loads", nargs="+", type=float, default=list(LOAD_FACTORS))
    add("--policy", choices=POLICIES, default=DEFAULT_POLICY)
    add("--seconds", type=float, default=4.0)
    add("--stretch", type=float)
    add("--most-rps", type=float, default=150.0)
    add("--most-mb", type=float, default=400.0)
    add("--guard", type=float, default=0.02)
    add("--seed", type=int, default=1)
    add("--port", type=int, default=18_510)
    add("--goodput", action="store_true")
    add_destinations(parser)
    options = parser.parse_args()
    watch, rows = Stopwatch(), list[dict[str, Any]]()
    bench = Bench(options)
    measured, judged, name = (
        (goodput, goodput_figures, "testbed goodput")
        if options.goodput
        else (agreement, agreement_figures, "testbed")
    )
    try:
        for row in measured(bench):
            rows.append(row)
    finally:  # hours of measurement are kept when the last one fails
        figures = judged(rows)
        show(figures)
        details = {
            "policy": options.policy,
            "guard_fraction": options.guard,
            "seconds_per_point": options.seconds,
        }
        store(options, name, figures, {**details, "rows": rows, "wall_seconds": watch.seconds()})
    return exit_code(figures)


def agreement_figures(rows: list[dict[str, Any]]) -> list[Figure]:
    """How far measured attainment lies from the simulator's."""
    points = [
        Figure(
            name=f"{row['cluster']} {row['model'][:24]} at load {row['load_factor']}:"
            " measured less simulated",
            value=row["difference_points"],
            unit="points",
        )
        for row in rows
    ]
    worst = max((abs(row["difference_points"]) for row in rows), default=None)
    name = f"largest difference of {len(rows)} points from the simulator"
    return [*points, Figure(name=name, value=worst, unit="points", most=TARGET_POINTS)]


def goodput_figures(rows: list[dict[str, Any]]) -> list[Figure]:
    """Gains of the `pool` plan in measured goodput: of every model, and the mean of a cluster."""
    names = [(row["cluster"], row["model"][:24], [row]) for row in rows]
    clusters = dict.fromkeys(row["cluster"] for row in rows)
    means = [(c, "mean", [row for row in rows if row["cluster"] == c]) for c in clusters]
    return [
        Figure(
            name=f"{cluster} {name}: goodput over {planner}",
            value=mean_gain(group, planner, "measured"),
            note=f"simulated {mean_gain(group, planner, 'simulated'):.3f}, paper {paper}",
        )
        for cluster, name, group in [*names, *means]
        for planner, paper in PAPER_GAINS.items()
    ]


def mean_gain(rows: list[dict[str, Any]], planner: str, how: str) -> float:
    """Mean gain of `pool` over a planner; NaN where that serves nothing."""
    served = [(row["goodput"]["pool"][how], row["goodput"][planner][how]) for row in rows]
    gains = [own / other - 1 for own, other in served if other]
    return sum(gains) / len(gains) if gains else math.nan


if __name__ == "__main__":
    sys.exit(main())
