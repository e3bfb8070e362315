"""Benchmark of the planner against published plans: speed, objective, proof, verification.

    .venv/bin/python scripts/bench_planner.py --data DIR [--out figures.json] [--only two-stage,…]

DIR holds `block_latency_us.csv`, `boundary_bytes.csv`, `slo_us.csv`, `reference_plans.csv`,
`reference_plans_3_partitions.csv`, `clusters/` and `workloads/`. Prints one table per family of
problems and the targets they must meet; exits 1 when one is missed or a plan does not verify.
"""

import argparse
import csv
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from math import exp, fsum, log
from pathlib import Path
from time import process_time
from typing import Any

import yaml

from flows.clock import Stopwatch, now_utc
from flows.planning import PlanOptions, make_plan
from flows.planning.verify import verify_plan
from flows.profiling.tables import read_tables
from triton_backend.core.cluster import Cluster
from triton_backend.core.profiles import ModelProfile
from triton_backend.core.workload import Workload

GROUPS = tuple(f"G{i}" for i in range(1, 7))
CLUSTERS = tuple(f"HC{i}-L" for i in range(1, 5))
MIX_SECONDS = {"MIX3-L": 5.0, "MIX4-L": 10.0}
SCALES = (1, 10, 100, 1000)
PROVEN_GAP = 1e-4
POOL_MEAN_SECONDS = 0.5
BASELINE_DEVIATION = 1e-3
THREE_STAGE_MEAN_SECONDS = 3.0
_UNROUNDED = 1e-6  # published plans were made from latencies before rounding to whole µs


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One solved problem."""

    family: str
    name: str
    seconds: float
    cpu_seconds: float
    value: float
    reference: float | None
    gap: float
    kept: int
    status: str
    differences: list[str]

    @property
    def ratio(self) -> float | None:
        """Objective / published objective."""
        return None if self.reference is None else self.value / self.reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What must hold, and what was seen."""

    what: str
    target: str
    seen: str
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The folder of inputs, read."""

    folder: Path
    profiles: dict[str, ModelProfile]

    def cluster(self, name: str) -> Cluster:
        """A cluster of the folder."""
        return Cluster.from_dict(_yaml(self.folder / "clusters" / f"{name}.yaml"))

    def workload(self, name: str) -> Workload:
        """A workload of the folder."""
        return Workload.from_dict(_yaml(self.folder / "workloads" / f"{name}.yaml"))

    def rows(self, name: str) -> list[dict[str, str]]:
        """Rows of a CSV file of the folder."""
        with (self.folder / name).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))


def _yaml(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def solve(
    data: Data, label: tuple[str, str], problem: tuple[Cluster, Workload], options: PlanOptions,
    reference: float | None = None,
) -> Figure:  # fmt: skip
    """Plan one problem, verify the plan, and note the figures."""
    watch, cpu = Stopwatch(), process_time()
    plan = make_plan(data.profiles, *problem, options)
    seconds, cpu = watch.seconds(), process_time() - cpu
    figure = Figure(
        family=label[0],
        name=label[1],
        seconds=seconds,
        cpu_seconds=cpu,
        value=plan.objective.value,
        reference=reference,
        gap=plan.objective.gap,
        kept=plan.certificate["configurations"]["kept"],
        status=plan.certificate["status"],
        differences=verify_plan(plan, data.profiles),
    )
    ratio = "" if figure.ratio is None else f"{figure.ratio:9.5f}"
    print(
        f"  {figure.name:34s} {figure.value:12.3f} {ratio:>9s} gap {figure.gap:.1e}"
        f" {figure.seconds:7.3f} s (CPU {figure.cpu_seconds:7.3f})  kept {figure.kept:4d}  {figure.status}"
        + (f"  DOES NOT VERIFY: {figure.differences[0]}" if figure.differences else ""),
        flush=True,
    )
    return figure


def two_stage(data: Data) -> Iterator[Figure]:
    """24 problems of three models on two classes, at most 2 stages, and both baselines."""
    for row in data.rows("reference_plans.csv"):
        problem = (
            data.cluster(row["cluster"]),
            data.workload(f"{row['workload']}-{row['cluster']}"),
        )
        yield solve(
            data,
            (row["planner"], f"{row['workload']} {row['cluster']} {row['planner']}"),
            problem,
            PlanOptions(planner=row["planner"]),
            float(row["min_normalised_throughput_rps"]),
        )


def three_stage(data: Data) -> Iterator[Figure]:
    """Nine problems of one model, at most 3 stages, margin 0.1."""
    slo_us = {row["model"]: float(row["slo_us"]) for row in data.rows("slo_us.csv")}
    for row in data.rows("reference_plans_3_partitions.csv"):
        model = {
            "name": row["model"],
            "slo_ms": slo_us[row["model"]] / 1e3,
            "weight": 1.0,
            "batch_building_rate_rps": float(row["batch_building_rate_rps"]),
        }
        yield solve(
            data,
            ("three-stage", row["model"][:34]),
            (data.cluster(row["cluster"]), Workload.from_dict({"models": [model]})),
            PlanOptions(max_partitions=3, slo_margin=float(row["slo_margin"])),
            float(row["throughput_rps"]),
        )


def joint_three_stage(data: Data) -> Iterator[Figure]:
    """24 problems of three models, at most 3 stages."""
    for cluster in CLUSTERS:
        for group in GROUPS:
            problem = (data.cluster(cluster), data.workload(f"{group}-{cluster}"))
            options = PlanOptions(max_partitions=3)
            yield solve(
                data, ("joint three-stage", f"{group} {cluster} 3 stages"), problem, options
            )


def scaled(data: Data) -> Iterator[Figure]:
    """HC1-L and G1 with GPUs and batch-building rates × 1 … 1,000."""
    cluster, workload = data.cluster("HC1-L"), data.workload("G1-HC1-L")
    for factor in SCALES:
        larger = replace(
            cluster, nodes=tuple(replace(n, count=n.count * factor) for n in cluster.nodes)
        )
        rates = tuple(
            replace(m, batch_building_rate_rps=(m.batch_building_rate_rps or 0.0) * factor)
            for m in workload.models
        )
        problem = (larger, Workload(models=rates))
        yield solve(data, ("scale", f"G1 HC1-L x {factor}"), problem, PlanOptions())


def mixed(data: Data) -> Iterator[Figure]:
    """Three and four GPU classes, G1's models, with and without given batch-building rates."""
    given = data.workload("G1-HC1-L")
    derived = Workload(models=tuple(replace(m, batch_building_rate_rps=None) for m in given.models))
    for name in MIX_SECONDS:
        for kind, workload in (("given rates", given), ("derived rates", derived)):
            problem = (data.cluster(name), workload)
            yield solve(data, (name, f"G1 {name}, {kind}"), problem, PlanOptions())


def targets(figures: list[Figure]) -> list[Target]:
    """Every target for which figures were taken."""
    by_family: dict[str, list[Figure]] = {}
    for figure in figures:
        by_family.setdefault(figure.family, []).append(figure)
    out = [
        _target("every plan verifies", "all", sum(not f.differences for f in figures), len(figures))
    ]
    checks: dict[str, Callable[[list[Figure]], list[Target]]] = {
        "pool": _pool_targets,
        "no-partitioning": _baseline_targets,
        "dart-r": _baseline_targets,
        "three-stage": _three_stage_targets,
        "joint three-stage": lambda f: [_slowest(f, 20.0), _largest_gap(f, 1e-2)],
        "scale": lambda f: [_slowest(f, 2.0)],
        **dict.fromkeys(MIX_SECONDS, _mix_targets),
    }
    for family, members in by_family.items():
        out += checks[family](members)
    return out


def _target(what: str, target: str, count: int, of: int, needed: int | None = None) -> Target:
    enough = of if needed is None else needed
    return Target(what=what, target=target, seen=f"{count} of {of}", holds=count >= enough)


def _slowest(figures: list[Figure], limit_s: float) -> Target:
    worst = max(f.seconds for f in figures)
    what = f"{figures[0].family}: slowest"
    return Target(
        what=what, target=f"<= {limit_s:g} s", seen=f"{worst:.2f} s", holds=worst <= limit_s
    )


def _largest_gap(figures: list[Figure], limit: float) -> Target:
    worst = max(f.gap for f in figures)
    what = f"{figures[0].family}: largest gap"
    return Target(what=what, target=f"<= {limit:.1%}", seen=f"{worst:.4%}", holds=worst <= limit)


def _reaches(figures: list[Figure], least: float) -> Target:
    """How many objectives are at least the published ones, up to rounding of the inputs."""
    reached = sum(f.value >= (least - _UNROUNDED) * f.reference for f in figures if f.reference)
    return _target(
        f"{figures[0].family}: objective / published", f">= {least:g}", reached, len(figures)
    )


def _pool_targets(figures: list[Figure]) -> list[Target]:
    mean = exp(fsum(log(f.seconds) for f in figures) / len(figures))
    proven = sum(f.gap <= PROVEN_GAP for f in figures)
    return [
        _reaches(figures, 0.999),
        Target(
            what="pool: geometric mean",
            target="<= 0.5 s",
            seen=f"{mean:.3f} s",
            holds=mean <= POOL_MEAN_SECONDS,
        ),
        _slowest(figures, 5.0),
        _largest_gap(figures, 5e-3),
        _target("pool: gap <= 1e-4", "half", proven, len(figures), len(figures) // 2),
    ]


def _baseline_targets(figures: list[Figure]) -> list[Target]:
    close = sum(abs((f.ratio or 0.0) - 1) <= BASELINE_DEVIATION for f in figures)
    return [_target(f"{figures[0].family}: within 0.1 % of published", "all", close, len(figures))]


def _three_stage_targets(figures: list[Figure]) -> list[Target]:
    mean = fsum(f.seconds for f in figures) / len(figures)
    return [
        _reaches(figures, 1.0),
        Target(
            what="three-stage: mean",
            target="<= 3 s",
            seen=f"{mean:.2f} s",
            holds=mean <= THREE_STAGE_MEAN_SECONDS,
        ),
        _slowest(figures, 10.0),
        _largest_gap(figures, 1e-2),
    ]


def _mix_targets(figures: list[Figure]) -> list[Target]:
    return [_slowest(figures, MIX_SECONDS[figures[0].family])]


FAMILIES: dict[str, Callable[[Data], Iterator[Figure]]] = {
    "two-stage": two_stage,
    "three-stage": three_stage,
    "joint": joint_three_stage,
    "scale": scaled,
    "mix": mixed,
}


def main(arguments: list[str]) -> int:
    """Run the families asked for; 0 when every target holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with tables and plans")
    parser.add_argument("--out", type=Path, help="write figures, machine and versions as JSON")
    parser.add_argument("--only", default=",".join(FAMILIES), help="families, by comma")
    asked = parser.parse_args(arguments)
    if not (asked.data / "reference_plans.csv").is_file():
        parser.error(f"--data {asked.data}: no reference_plans.csv there")
    unknown = set(asked.only.split(",")) - set(FAMILIES)
    if unknown:
        parser.error(f"--only: {min(unknown)!r} is none of {', '.join(FAMILIES)}")
    profiles, warnings = read_tables(asked.data)
    data = Data(folder=asked.data, profiles=profiles)
    for warning in warnings:
        print(warning, file=sys.stderr)
    figures: list[Figure] = []
    for family in asked.only.split(","):
        print(f"{family}: {(FAMILIES[family].__doc__ or '').strip()}")
        figures += FAMILIES[family](data)
    results = targets(figures)
    for result in results:
        print(
            f"{'ok  ' if result.holds else 'MISS'} {result.what}: {result.seen} ({result.target})"
        )
    if asked.out is not None:
        asked.out.write_text(json.dumps(_report(figures, results), indent=1), encoding="utf-8")
    return 0 if all(result.holds for result in results) else 1


def _report(figures: list[Figure], results: list[Target]) -> dict[str, Any]:
    return {
        "benchmark": "planner",
        "at": now_utc().isoformat(),
        "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "system": platform.platform()},
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("highspy", "numpy", "scipy")},
        "targets": [{"what": r.what, "target": r.target, "seen": r.seen, "holds": r.holds}
                    for r in results],
        "figures": [
            {"family": f.family, "name": f.name, "seconds": f.seconds, "value": f.value,
             "reference": f.reference, "gap": f.gap, "kept": f.kept, "status": f.status}
            for f in figures
        ],
    }  # fmt: skip


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
