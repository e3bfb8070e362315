"""Fleets of the Graft paper's clients, from tables of others.

What models take, how links go, where clients cut. `data` is a folder with `graft/` (the paper's
numbers, 5G traces, latencies by share, latencies on clients) and `ppipe/boundary_bytes.csv`. Shares
below 25 % and clients' latencies by block are derived, not measured.

A draw is a fleet of clients, each at a second of a trace drawn at random: it cuts its model where
head, upload and server take least (Neurosurgeon), if half of the time left is enough for the tail;
else another second is drawn. The server's part counts as the tail alone on 30 % of a V100. `static`
fleets cut for the mean of their trace.

So nearly all cut at block 0: before every later block of four of the five models lies more than
their input. Fleets of *spread* cuts are drawn by another rule, written before any of them was
planned: a client's link has 20 to 400 Mbit/s and its device takes 1/4 to 1 times what is measured,
both drawn evenly on a logarithmic scale; tensors between blocks are sent in a quarter of their
bytes (8 bits a number); it cuts at any block, each as likely, before which half of the time left is
enough for the tail. Where there is none, link and device are drawn again. No draw is left out.
"""

import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from flows.planning.registry import Inputs
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
LINK_MBPS, SLOWNESS, PACKED = (20.0, 400.0), (0.25, 1.0), 4  # of spread cuts
NO_LINK = 1e-3  # Mbit/s
TRIES = 2_000


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
    """First block on the server and its budget (µs).

    The least latency, None where the tail is not in time.
    """
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
    """An entry per client, each somewhere in a trace.

    Where each would cut at its trace's mean.
    """
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


def spread_fleet(
    data: Path,
    name: str,
    devices: Sequence[str],
    random: np.random.Generator,
    *,
    slo: float = SLO,
) -> tuple[Entry, ...]:
    """An entry per client, whose cuts really differ; `slo` is over the latency on the device."""
    model = models(data)[name]
    sizes = (INPUT_BYTES, *(size // PACKED for size in model.profile.boundary_bytes))
    fastest = model.profile.tables[ProfileKey(GPU, 300)].latency_us[:, 0]

    def evenly(least: float, most: float) -> float:
        return float(np.exp(random.uniform(np.log(least), np.log(most))))

    def able(device: str) -> list[tuple[int, int]]:
        mbps, slowness = evenly(*LINK_MBPS), evenly(*SLOWNESS)
        own = [slowness * block_us for block_us in model.device_us[device]]
        left = [
            int(slo * sum(own) - sum(own[:block]) - 8 * sizes[block] / mbps)
            for block in range(model.blocks)
        ]
        return [
            (block, budget)
            for block, budget in enumerate(left)
            if budget >= 2 * float(fastest[block:].sum()) + 2 * (model.blocks - block)
        ]

    found: list[Entry] = []
    for number, device in enumerate(devices):
        ways = next(filter(None, (able(device) for _ in range(TRIES))))
        block, budget = ways[int(random.integers(len(ways)))]
        rate = FRAMES.get(name, 30.0)
        found.append(Entry(name=f"c{number}", block=block, budget_us=budget, rate_rps=rate))
    return tuple(found)


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
