"""Figures of the Graft paper from tables of others, beside what it states.

    .venv/bin/python scripts/paper/graft.py --data DIR [--only reduction,scale,throughput,rides,closed-loop]
        [--draws 50] [--gpus 4] [--seconds 600] [--models Inc,ViT] [--out FILE] [--warehouse FILE]

`--data` is a folder with `graft/` (the paper's numbers, 5G traces, latencies by share, latencies on clients) and
`ppipe/boundary_bytes.csv`. Shares below 25 % and clients' latencies by block are derived, not measured.

A draw is a fleet of clients, each at a second of a trace drawn at random: it cuts its model where head, upload and
server take least (Neurosurgeon), if half of the time left is enough for the tail; else another second is drawn. The
server's part counts as the tail alone on 30 % of a V100. `static` fleets cut for the mean of their trace.

`rides` and `closed-loop` simulate clients (`graft_clients.py`).
"""

import argparse
import csv
import gzip
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from flows.clock import Stopwatch
from flows.planning import PlanOptions, make_plan
from flows.planning.entries.plan import Rule, exactly, graft, gslice, gslice_plus
from flows.planning.entries.tables import read_tables
from flows.planning.registry import Inputs
from scripts.benchmarks.figures import Figure, add_destinations, exit_code, show, store
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.entries import Entry
from triton_backend.contract.profiles import ModelProfile, ProfileKey, ProfileTable
from triton_backend.contract.shares import SOLO
from triton_backend.contract.workload import ModelDemand, Workload

GPU = "V100"
MODELS = ("Inc", "Res", "VGG", "Mob", "ViT")
FRAMES = {"ViT": 1.0}  # per second and client; others 30
INPUT_BYTES = 588 * 1024
SLO = 0.95  # of the latency on the device
SERVER_PERCENT = 30
FLEETS = {
    "homogeneous": ("large_homo_vs_gslice_plus", ("nano",) * 20),
    "mixed": ("large_heter_vs_gslice_plus", ("nano",) * 15 + ("tx2",) * 5),
}
NO_LINK = 1e-3  # Mbit/s
TRIES = 2_000
FRAMES_S = 20.0  # of every fleet in rides
_LOOSE = 3.0  # percent: gap of thousands of entries, where the paper merges to a threshold of 0.01
# entries, draws, seconds of the exact plan, seconds of graft, gap in percent
SCALES: tuple[tuple[int, int, float | None, float | None, float | None], ...] = (
    (20, 5, None, None, None),
    (50, 5, 1.0, 0.3, 1.0),
    (2_000, 1, 10.0, None, _LOOSE),
)
RULES: dict[str, Rule] = {
    "pool": exactly,
    "graft": graft,
    "gslice": gslice,
    "gslice-plus": gslice_plus,
    "static-plus": gslice_plus,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model of the paper: its profile, and what its blocks take on each device (µs)."""

    profile: ModelProfile
    device_us: dict[str, tuple[int, ...]]

    @property
    def blocks(self) -> int:
        """Of the model."""
        return self.profile.blocks


@cache
def models(data: Path, gpu: str = GPU) -> dict[str, Model]:
    """Every model: latencies at 1 to 100 % of a GPU by the law fitted to 25, 33, 50 and 100 %."""
    law: dict[str, dict[tuple[int, int], tuple[float, float]]] = {}
    names: dict[str, str] = {}
    with (data / "graft/profiles/share_fit.csv").open() as lines:
        for row in csv.DictReader(lines):
            if row["gpu_class"] == gpu:
                key = (int(row["block"]), int(row["batch"]))
                names[row["graft_model"]] = row["model"]
                law.setdefault(row["graft_model"], {})[key] = (
                    float(row["latency_us_whole_gpu"]),
                    float(row["slowdown_per_inverse_share"]),
                )
    devices: dict[str, dict[str, dict[int, int]]] = {}
    with (data / "graft/profiles/client_block_latency_us.csv").open() as lines:
        for row in csv.DictReader(lines):
            device = devices.setdefault(row["graft_model"], {}).setdefault(row["device"], {})
            device[int(row["block"])] = int(row["latency_us"])
    crossing: dict[str, dict[int, int]] = {}
    with (data / "ppipe/boundary_bytes.csv").open() as lines:
        for row in csv.DictReader(lines):
            blocks = crossing.setdefault(row["model"], {})
            blocks[int(row["after_block"])] = int(row["bytes_per_sample"])
    found: dict[str, Model] = {}
    for short in MODELS:
        cells = law[short]
        blocks, batches = max(b for b, _ in cells) + 1, max(n for _, n in cells)
        tables: dict[ProfileKey, ProfileTable] = {}
        for percent in range(1, 101):
            table = np.empty((blocks, batches))
            for (block, batch), (whole, slope) in cells.items():
                table[block, batch - 1] = max(1.0, whole * (1 + slope * (100 / percent - 1)))
            tables[ProfileKey(gpu, 3 * percent, SOLO)] = ProfileTable(latency_us=table)
        profile = ModelProfile(
            name=short,
            boundary_bytes=tuple(crossing[names[short]][b] for b in range(blocks - 1)),
            tables=tables,
        )
        device_us = {d: tuple(own[b] for b in range(blocks)) for d, own in devices[short].items()}
        found[short] = Model(profile=profile, device_us=device_us)
    return found


@cache
def traces(data: Path) -> dict[str, np.ndarray]:
    """Mbit/s of every second, by trace: the downlink, replayed as the client's uplink."""
    found: dict[str, list[float]] = {}
    path = data / "graft/traces/raca2020_5g_download_1hz.csv.gz"
    with gzip.open(path, "rt") as lines:
        for row in csv.DictReader(lines):
            found.setdefault(row["trace"], []).append(float(row["dl_kbps"]) / 1e3)
    return {name: np.array(rates) for name, rates in found.items()}


def cut(model: Model, device: str, mbps: float) -> tuple[int, int] | None:
    """First block on the server and its budget (µs): the least latency, None where the tail is not in time."""
    blocks = model.blocks
    own = model.device_us[device]
    slo_us = SLO * sum(own)
    sizes = (INPUT_BYTES, *model.profile.boundary_bytes)
    on_server = model.profile.tables[ProfileKey(GPU, 3 * SERVER_PERCENT, SOLO)].latency_us[:, 0]
    fastest = model.profile.tables[ProfileKey(GPU, 300)].latency_us[:, 0]
    best: tuple[float, int, int] | None = None
    for block in range(blocks):
        head, upload = sum(own[:block]), 8 * sizes[block] / mbps
        total = head + upload + float(on_server[block:].sum())
        budget = int(slo_us - head - upload)
        if budget < 2 * float(fastest[block:].sum()) + 2 * (blocks - block):
            continue
        if best is None or total < best[0]:
            best = (total, block, budget)
    return None if best is None or best[0] > slo_us else best[1:]


def fleet(
    data: Path, name: str, devices: Sequence[str], random: np.random.Generator
) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """An entry per client, each somewhere in a trace; and where each would cut at its trace's mean."""
    model = models(data)[name]
    runs = list(traces(data).values())
    found: list[Entry] = []
    fixed: list[Entry] = []
    for number, device in enumerate(devices):
        chosen, run = None, runs[0]
        for _ in range(TRIES):
            run = runs[int(random.integers(len(runs)))]
            chosen = cut(model, device, max(float(run[int(random.integers(len(run)))]), NO_LINK))
            if chosen is not None:
                break
        if chosen is None:
            raise ValueError(f"{name} on {device}: no second of the traces allows a cut")
        rate = FRAMES.get(name, 30.0)
        label = f"c{number}"
        found.append(Entry(name=label, block=chosen[0], budget_us=chosen[1], rate_rps=rate))
        at_mean = cut(model, device, float(run.mean())) or chosen
        fixed.append(Entry(name=label, block=at_mean[0], budget_us=at_mean[1], rate_rps=rate))
    return tuple(found), tuple(fixed)


def inputs_of(data: Path, name: str, entries: Sequence[Entry], gpus: int = 400) -> Inputs:
    """A workload of one model on GPUs that are cut in steps of 1 %."""
    gpu_class = GpuClass(
        name=GPU, vgpu_divisors=(), vgpu_percents=tuple(range(1, 101)), max_vgpus_per_gpu=48
    )
    nodes = (NodeGroup(count=1, gpu_class=GPU, gpus=gpus, nic_gbps=100 * gpus),)
    demand = ModelDemand(name=name, slo_us=1_000_000, entries=tuple(entries))
    return Inputs(
        profiles={name: models(data)[name].profile},
        cluster=Cluster(name="graft", gpu_classes=(gpu_class,), nodes=nodes),
        workload=Workload(models=(demand,)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a planner answers: percents, what none is below, seconds."""

    value: float
    bound: float
    seconds: float


def run(rule: Rule, planner: str, inputs: Inputs, **more: Any) -> Run:
    """A planner's percents, without placing them."""
    options = PlanOptions(planner=planner, objective="share", slo_margin=0.5, own=more)
    watch = Stopwatch()
    solved = rule(read_tables(inputs, options)[0], inputs, options)
    seconds = watch.seconds()
    bound = solved.pooled.cost if solved.bound is None else solved.bound
    return Run(value=solved.pooled.cost, bound=bound, seconds=seconds)


def reductions(data: Path, draws: int) -> tuple[list[Figure], dict[str, Any]]:
    """Percents held by exact and `graft` plans against `gslice-plus`, beside table III."""
    paper = published(data)
    figures: list[Figure] = []
    raw: dict[str, Any] = {}
    means: list[float] = []
    for fleet_name, (row, devices) in FLEETS.items():
        for name in MODELS:
            random = np.random.default_rng(0)
            kept: dict[str, list[float]] = {}
            cuts: Counter[int] = Counter()
            budgets: list[float] = []
            for _ in range(draws):
                entries, fixed = fleet(data, name, devices, random)
                cuts.update(e.block for e in entries)
                budgets += [e.budget_us / 1e3 for e in entries]
                for planner, rule in RULES.items():
                    mine = fixed if planner.startswith("static") else entries
                    found = run(rule, planner, inputs_of(data, name, mine))
                    kept.setdefault(planner, []).append(found.value)
                    if planner == "pool":
                        kept.setdefault("gap", []).append(1 - found.bound / found.value)
            base = np.array(kept["gslice-plus"])
            saved = {
                p: float(np.mean(1 - np.array(v) / base)) for p, v in kept.items() if p != "gap"
            }
            means.append(saved["pool"])
            worst = max(e / min(kept[p][n] for p in RULES if not p.startswith("static"))
                        for n, e in enumerate(kept["pool"]))  # fmt: skip
            where = f"{name}, {fleet_name}"
            figures += [
                Figure(
                    name=f"{where}: exact below gslice-plus",
                    value=100 * saved["pool"],
                    unit="%",
                    note=f"paper's Graft {paper[row, name]:g} %",
                ),
                Figure(
                    name=f"{where}: graft below gslice-plus", value=100 * saved["graft"], unit="%"
                ),
                Figure(name=f"{where}: exact over the best of all", value=worst, most=1 + 1e-9),
                Figure(
                    name=f"{where}: mean gap", value=100 * float(np.mean(kept["gap"])), unit="%"
                ),
            ]
            raw[where] = {
                "cuts": dict(sorted(cuts.items())),
                "budgets_ms": np.percentile(budgets, [0, 25, 50, 75, 100]).round(1).tolist(),
                "percents": {p: float(np.mean(v)) for p, v in kept.items() if p != "gap"},
            }
    mean = 100 * float(np.mean(means))
    figures.append(Figure(name="mean of exact below gslice-plus", value=mean, unit="%", least=20.0))
    return figures, raw


def scale(data: Path) -> tuple[list[Figure], dict[str, Any]]:
    """Seconds and gaps for 20, 50 and 2,000 entries; every run after one that compiles and caches."""
    figures: list[Figure] = []
    for count, draws, most_s, most_graft_s, most_gap in SCALES:
        for name in MODELS:
            random = np.random.default_rng(1)
            devices = ("nano", "nano", "nano", "tx2") * (count // 4 + 1)
            runs: dict[str, list[Run]] = {}
            for _ in range(draws):
                entries, _ = fleet(data, name, devices[:count], random)
                inputs = inputs_of(data, name, entries)
                for planner in ("graft", "pool"):
                    more = (
                        {"merge_threshold": 0.01}
                        if planner == "graft" and most_gap == _LOOSE
                        else {}
                    )
                    run(RULES[planner], planner, inputs, **more)
                    runs.setdefault(planner, []).append(
                        run(RULES[planner], planner, inputs, **more)
                    )
            gaps = [100 * (1 - r.bound / r.value) for r in runs["pool"]]
            where = f"{name}, {count} entries"
            seconds = {p: float(np.median([r.seconds for r in r_])) for p, r_ in runs.items()}
            figures += [
                Figure(name=f"{where}: exact", value=seconds["pool"], unit="s", most=most_s),
                Figure(
                    name=f"{where}: graft",
                    value=seconds["graft"],
                    unit="s",
                    most=most_graft_s,
                ),
                Figure(name=f"{where}: largest gap", value=max(gaps), unit="%", most=most_gap),
            ]
    return figures, {}


def throughput(data: Path, draws: int, gpus: int) -> tuple[list[Figure], dict[str, Any]]:
    """Largest multiple of all rates on given GPUs against `gslice-plus`, beside section 5.7."""
    paper = published(data)
    figures: list[Figure] = []
    ratios: list[float] = []
    for name in MODELS:
        random = np.random.default_rng(2)
        own: list[float] = []
        for _ in range(draws):
            entries, _ = fleet(data, name, FLEETS["homogeneous"][1], random)
            inputs = inputs_of(data, name, entries, gpus)
            found = {
                planner: make_plan(
                    inputs.profiles,
                    inputs.cluster,
                    inputs.workload,
                    PlanOptions(planner=planner, objective="throughput"),
                ).objective.value
                for planner in ("pool", "gslice-plus")
            }
            own.append(found["pool"] / found["gslice-plus"])
        ratios.append(float(np.mean(own)))
        figures.append(
            Figure(
                name=f"{name}: exact throughput over gslice-plus",
                value=ratios[-1],
                unit="x",
                note=f"paper's Graft {paper['throughput_vs_gslice_plus', name]:g}",
            )
        )
    figures.append(
        Figure(
            name="mean throughput over gslice-plus",
            value=float(np.mean(ratios)),
            unit="x",
            least=1.18,
        )
    )
    return figures, {}


def published(data: Path) -> dict[tuple[str, str], float]:
    """The paper's numbers by key and model."""
    with (data / "graft/paper_tables.csv").open() as lines:
        return {(row["key"], row["model"]): float(row["value"]) for row in csv.DictReader(lines)}


def main() -> int:
    """Run what is asked for."""
    # It draws fleets as this file does.
    from scripts.paper.graft_clients import Loop, closed_loop, rides  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only", default="reduction,scale,throughput", metavar="LIST")
    parser.add_argument("--draws", type=int, default=50, metavar="N")
    parser.add_argument("--gpus", type=int, default=4, metavar="N", help="of the throughput")
    parser.add_argument("--seconds", type=float, default=600.0, metavar="S", help="of the loop")
    parser.add_argument("--models", default=",".join(MODELS), metavar="LIST", help="in the loop")
    add_destinations(parser)
    asked = parser.parse_args()
    figures: list[Figure] = []
    raw: dict[str, Any] = {}
    for part in asked.only.split(","):
        made, more = {
            "reduction": lambda: reductions(asked.data, asked.draws),
            "scale": lambda: scale(asked.data),
            "throughput": lambda: throughput(asked.data, max(1, asked.draws // 10), asked.gpus),
            "rides": lambda: rides(asked.data, max(1, asked.draws // 10), FRAMES_S),
            "closed-loop": lambda: closed_loop(
                asked.data, Loop(seconds=asked.seconds), asked.models.split(",")
            ),
        }[part]()
        show(made)
        figures += made
        raw |= more
    store(asked, "graft", figures, raw)
    for where, row in raw.items():
        if "cuts" in row:
            print(
                f"{where}: cuts {row['cuts']}, budgets {row['budgets_ms']} ms, percents {row['percents']}"
            )
    return exit_code(figures)


if __name__ == "__main__":
    sys.exit(main())
