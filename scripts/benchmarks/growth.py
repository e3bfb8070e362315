"""How planning grows: seconds, memory and gap against models, GPUs, classes and stages.

    .venv/bin/python scripts/benchmarks/growth.py --data DIR [--only two-36,…] [--seeds 3]
        [--grid] [--picture growth.svg] [--out figures.json] [--warehouse FILE]

DIR holds the published tables (`block_latency_us.csv`, `boundary_bytes.csv`, `slo_us.csv`) and
`clusters/MIX4-L.yaml`. Problems are made of them from a seed: each of the 18 models several times
under other names, its latencies (and its SLO, five times the latency on an L4) scaled by 0.5 to 2,
a weight of 1, 2, 5 or 20; the cluster's nodes several times. Every plan is made in a process of its
own, which reads nothing but DIR, and is verified.

Prints a figure per row of the table that planning must hold, the worst of its seeds: seconds from
profiles in memory to the plan, those to a first plan within 5 % of the bound proven in the end, the
gap, memory. Seconds of a machine that others share are pessimistic; CPU seconds stand beside them.
`--grid` adds the growth over models, stages and classes with exponents fitted to it; `--picture`
draws it.
"""

import argparse
import csv
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from flows.clock import Stopwatch
from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from flows.planning.watch import Progress, Watch
from flows.preparation.profiling.csv_tables import read_tables
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.workload import ModelDemand, Workload

MODELS = 18  # published ones
WEIGHTS = (1.0, 2.0, 5.0, 20.0)
PRICES = {"L4": (0.8, 72.0), "V100": (2.5, 300.0), "T4": (0.35, 70.0), "P4": (0.3, 75.0)}
SERVED = 0.7  # of what the cluster can serve: the rates that cost and power are minimised for
CHANGED = 1.2  # times its weight: what one model has in a plan made again
FIRST_SHARE, FIRST_OFF = 0.1, 0.05  # of the seconds, and off the bound: a first plan
MEMORY_GIB = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A kind of problem, and what must hold of it.

    Attributes:
        copies: of each published model.
        factor: times the nodes of the cluster; classes beyond `classes` are left out.
        stages: most stages of a pipeline.
        gap: what is asked for.
        seconds: in which.
        change: whether one model's weight changes after a plan that is in force then.
        scarce: whether a plan may be impossible, which then has to name models.
    """

    name: str
    copies: int
    factor: int
    stages: int = 2
    gap: float = 0.01
    seconds: float | None = None
    objective: str = "throughput"
    change: bool = False
    scarce: bool = False
    classes: int = 4


ROWS = (
    Row(name="two-36", copies=2, factor=3, gap=0.002, seconds=10),
    Row(name="two-108", copies=6, factor=10, gap=0.003, seconds=15),
    Row(name="two-396", copies=22, factor=100, gap=0.01, seconds=60),
    Row(name="three-36", copies=2, factor=3, stages=3, seconds=30),
    Row(name="three-108", copies=6, factor=10, stages=3, seconds=60),
    Row(name="change-108", copies=6, factor=10, gap=0.003, seconds=3, change=True),
    Row(name="cost-108", copies=6, factor=10, gap=0.003, seconds=15, objective="cost"),
    Row(name="power-108", copies=6, factor=10, gap=0.003, seconds=15, objective="power"),
    Row(name="scarce-36", copies=2, factor=1, seconds=10, scarce=True),
    Row(name="scarce-108", copies=6, factor=3, seconds=15, scarce=True),
)
GRID = (
    *(
        Row(name=f"models-{MODELS * c}", copies=c, factor=round(c * 5 / 3))
        for c in (1, 2, 4, 8, 16, 22)
    ),
    *(
        Row(name=f"stages-3-{MODELS * c}", copies=c, factor=round(c * 5 / 3), stages=3)
        for c in (1, 2, 4, 8)
    ),
    *(Row(name=f"gpus-{f}00", copies=4, factor=f) for f in (7, 14, 28, 56, 112)),
    *(Row(name=f"classes-{k}", copies=4, factor=14, classes=k) for k in (2, 3, 4)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One plan, or why there was none.

    Attributes:
        seconds: from profiles in memory to the plan; `cpu_seconds` of all its threads.
        first_seconds: to the first plan that was at most `FIRST_OFF` off the bound proven in the
            end.
        memory_mib: most that the process ever held.
        moved: GPUs that change hands, where a plan was in force.
        refused: what was said where there is no plan.
    """

    row: str
    seed: int
    models: int
    gpus: int
    seconds: float
    cpu_seconds: float
    memory_mib: float
    first_seconds: float | None = None
    value: float | None = None
    gap: float | None = None
    differences: tuple[str, ...] = ()
    moved: str = ""
    refused: str = ""


def problem(data: Path, row: Row, seed: int) -> tuple[dict[str, ModelProfile], Cluster, Workload]:
    """The profiles, cluster and workload of a row, from a seed."""
    published, _ = read_tables(data)
    with (data / "slo_us.csv").open(newline="", encoding="utf-8") as file:
        slo_us = {line["model"]: float(line["slo_us"]) for line in csv.DictReader(file)}
    rng = np.random.default_rng(seed)
    profiles: dict[str, ModelProfile] = {}
    demands: list[ModelDemand] = []
    for copy in range(row.copies):
        for original in sorted(published):
            scale = float(2 ** rng.uniform(-1, 1))
            weight = float(rng.choice(WEIGHTS))
            name = f"{original}-{copy}"
            tables = published[original].tables
            profiles[name] = replace(
                published[original],
                name=name,
                tables={
                    key: replace(table, latency_us=table.latency_us * scale)
                    for key, table in tables.items()
                },
            )
            slo = round(slo_us[original] * scale)
            demands.append(ModelDemand(name=name, slo_us=slo, weight=weight))
    return profiles, _cluster(data, row), Workload(models=tuple(demands))


def _cluster(data: Path, row: Row) -> Cluster:
    text = (data / "clusters" / "MIX4-L.yaml").read_text(encoding="utf-8")
    small = Cluster.from_dict(yaml.safe_load(text))
    kept = tuple(
        replace(c, hourly_cost=PRICES[c.name][0], power_w=PRICES[c.name][1])
        for c in small.gpu_classes[: row.classes]
    )
    names = {c.name for c in kept}
    nodes = (n for n in small.nodes if n.gpu_class in names)
    return replace(
        small,
        gpu_classes=kept,
        nodes=tuple(replace(n, count=n.count * row.factor) for n in nodes),
    )


def measure(data: Path, row: Row, seed: int) -> Measured:
    """Make the plan of a row in this process."""
    profiles, cluster, workload = problem(data, row, seed)
    options = PlanOptions(max_partitions=row.stages, gap=row.gap, objective=row.objective)
    if row.objective != "throughput":
        most = make_plan(profiles, cluster, workload, PlanOptions(gap=0.01)).objective.value
        workload = Workload(
            models=tuple(
                replace(m, rate_rps=(m.weight or 1.0) * most * SERVED) for m in workload.models
            )
        )
    if row.change:
        options = replace(options, previous=make_plan(profiles, cluster, workload, options))
        first, *others = workload.models
        heavier = replace(first, weight=(first.weight or 1.0) * CHANGED)
        workload = Workload(models=(heavier, *others))
    reported: list[Progress] = []
    watch, cpu = Stopwatch(), time.process_time()
    plan: Plan | None = None
    refused = ""
    try:
        plan = make_plan(profiles, cluster, workload, options, Watch(tell=reported.append))
    except InfeasibleError as error:
        refused = str(error)
    seconds, cpu = watch.seconds(), time.process_time() - cpu
    return Measured(
        row=row.name,
        seed=seed,
        models=len(workload.models),
        gpus=sum(cluster.gpus(c.name) for c in cluster.gpu_classes),
        seconds=seconds,
        cpu_seconds=cpu,
        memory_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        first_seconds=None
        if plan is None
        else _first_seconds(reported, plan.objective.upper_bound),
        value=None if plan is None else plan.objective.value,
        gap=None if plan is None else plan.objective.gap,
        differences=() if plan is None else tuple(verify_plan(plan, profiles)),
        moved="" if plan is None or not row.change else _moved(plan),
        refused=refused,
    )


def _first_seconds(reported: Sequence[Progress], bound: float) -> float | None:
    near = (
        p.seconds
        for p in reported
        if p.value is not None and abs(bound - p.value) <= FIRST_OFF * max(bound, p.value)
    )
    return next(near, None)


def _moved(plan: Plan) -> str:
    notes: list[str] = plan.certificate["notes"]
    return next((note for note in notes if "change hands" in note), "")


def apart(data: Path, row: Row, seed: int) -> Measured:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--data", str(data), "--one", row.name, str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        raise SystemExit(1)
    found: dict[str, Any] = json.loads(done.stdout)
    found["differences"] = tuple(found["differences"])
    one = Measured(**found)
    print(
        f"  {one.row:14s} seed {one.seed}  {one.models:4d} models {one.gpus:6d} GPUs"
        f"  {one.seconds:7.2f} s (CPU {one.cpu_seconds:7.2f})"
        + (f"  first {one.first_seconds:6.2f} s" if one.first_seconds is not None else "")
        + (f"  value {one.value:10.4f} gap {one.gap:.2e}" if one.value is not None else "")
        + f"  {one.memory_mib:6.0f} MiB  {one.moved or one.refused[:100]}"
        + (f"  DOES NOT VERIFY: {one.differences[0]}" if one.differences else ""),
        flush=True,
    )
    return one


def targets(
    row: Row, seen: Sequence[Measured], known: dict[tuple[str, int], float]
) -> list[Figure]:
    """The figures of a row, the worst of its seeds.

    Args:
        row: what must hold.
        seen: its plans.
        known: values of other rows by name and seed.
    """
    busy = f"CPU {max(m.cpu_seconds for m in seen):.1f} s"
    out = [
        Figure(name=f"{row.name}: seconds", value=max(m.seconds for m in seen), unit="s",
               most=row.seconds, note=busy),
        Figure(name=f"{row.name}: plans that do not verify",
               value=sum(bool(m.differences) for m in seen), most=0),
        Figure(name=f"{row.name}: memory", value=max(m.memory_mib for m in seen) / 1024,
               unit="GiB", most=MEMORY_GIB),
    ]  # fmt: skip
    if row.scarce:
        answered = sum(m.value is not None or "can be placed" in m.refused for m in seen)
        out.append(
            Figure(
                name=f"{row.name}: a plan, or the models without a place",
                value=answered,
                least=len(seen),
            )
        )
        return out
    out.append(
        Figure(
            name=f"{row.name}: gap",
            value=max(m.gap or 0.0 for m in seen),
            most=row.gap * (1 + 1e-9),
        )
    )
    firsts = [m.first_seconds for m in seen if m.first_seconds is not None]
    if firsts and row.seconds and not row.change:
        out.append(
            Figure(
                name=f"{row.name}: first plan at most 5 % off",
                value=max(firsts),
                unit="s",
                most=row.seconds * FIRST_SHARE,
            )
        )
    fewer = [known.get((row.name.replace("three", "two"), m.seed)) for m in seen]
    if row.stages > 2 and all(value is not None for value in fewer):  # noqa: PLR2004 - stages
        ratio = min((m.value or 0.0) / (v or 1.0) for m, v in zip(seen, fewer, strict=True))
        out.append(Figure(name=f"{row.name}: value / that of two stages", value=ratio, least=1.0))
    return out


def exponent(seen: Iterable[Measured], of: str, against: str) -> float:
    """The power of `against` that `of` grows with, by least squares of the logarithms."""
    rows = list(seen)
    x = np.log([float(getattr(m, against)) for m in rows])
    y = np.log([float(getattr(m, of)) for m in rows])
    return float(np.polyfit(x, y, 1)[0])


def grown(grid: Sequence[Measured]) -> list[Figure]:
    """Exponents of the grid."""
    out: list[Figure] = []
    for start, against in (("models-", "models"), ("stages-3-", "models"), ("gpus-", "gpus")):
        rows = [m for m in grid if m.row.startswith(start)]
        for of in ("cpu_seconds", "memory_mib"):
            if len({getattr(m, against) for m in rows}) > 1:
                name = f"{start.rstrip('-')}: exponent of {of} over {against}"
                out.append(Figure(name=name, value=exponent(rows, of, against)))
    return out


def draw(grid: Sequence[Measured], path: Path) -> None:
    """CPU seconds and memory against models, on logarithmic axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - heavy, seldom asked for
    from matplotlib.figure import Figure as Canvas  # noqa: PLC0415

    figure = Canvas(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = (
        ("cpu_seconds", "CPU seconds"),
        ("first_seconds", "seconds to a first plan"),
        ("memory_mib", "MiB"),
    )
    for number, (of, label) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), number)
        for start, name in (("models-", "two stages"), ("stages-3-", "three stages")):
            rows = sorted((m for m in grid if m.row.startswith(start)), key=lambda m: m.models)
            points = [(m.models, getattr(m, of)) for m in rows if getattr(m, of)]
            axes.loglog([x for x, _ in points], [y for _, y in points], "o-", label=name)
        axes.set_xlabel("models")
        axes.set_ylabel(label)
        axes.grid(visible=True, which="both", alpha=0.3)
    figure.axes[0].legend()
    figure.savefig(path)


def main(arguments: list[str]) -> int:
    """Run the rows asked for; 0 when every target holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    known = {row.name: row for row in (*ROWS, *GRID)}
    parser.add_argument("--data", type=Path, required=True, help="folder with the tables")
    parser.add_argument("--only", default=",".join(r.name for r in ROWS), help="rows, by comma")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--grid", action="store_true", help="the growth too, one seed")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the growth here")
    parser.add_argument("--one", nargs=2, metavar=("ROW", "SEED"), help=argparse.SUPPRESS)
    add_destinations(parser)
    asked = parser.parse_args(arguments)
    if not (asked.data / "clusters" / "MIX4-L.yaml").is_file():
        parser.error(f"--data {asked.data}: no clusters/MIX4-L.yaml there")
    if asked.one:
        one = measure(asked.data, known[asked.one[0]], int(asked.one[1]))
        print(json.dumps(asdict(one)))
        return 0
    names = [name for name in asked.only.split(",") if name]
    if set(names) - set(known):
        parser.error(f"--only: {min(set(names) - set(known))!r} is none of {', '.join(known)}")
    figures: list[Figure] = []
    everything: list[Measured] = []
    values: dict[tuple[str, int], float] = {}
    for name in names:
        seen = [apart(asked.data, known[name], seed) for seed in range(asked.seeds)]
        values |= {(name, m.seed): m.value for m in seen if m.value is not None}
        figures += targets(known[name], seen, values)
        everything += seen
    if asked.grid or asked.picture:
        grid = [apart(asked.data, row, 0) for row in GRID]
        figures += grown(grid)
        everything += grid
        if asked.picture:
            draw(grid, asked.picture)
    return conclude(asked, "growth", figures, {"plans": [asdict(one) for one in everything]})


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
