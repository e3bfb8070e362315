"""Small random problems of cut GPUs, and a brute force that shares no code with the planner."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, product
from typing import Any

import numpy as np

from flows.clock import Stopwatch
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.profiles import (
    InterferenceModel,
    ModelProfile,
    ProfileKey,
    ProfileTable,
)
from triton_backend.contract.shares import SOLO
from triton_backend.contract.workload import ModelDemand, Workload

GIB = 1 << 30
MODEL = InterferenceModel(
    c1_l2_self=0.1, c2_l2_other=0.6, c3_dram_self=0.3, c4_dram_other=0.2, c5=0.9
)


class Held(Stopwatch):
    """A clock that stands still until it is set."""

    now_s = 0.0

    def seconds(self) -> float:
        return self.now_s

    def restart(self) -> float:
        return self.now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A problem in both forms."""

    cluster: Cluster
    workload: Workload
    profiles: dict[str, ModelProfile]
    percents: tuple[int, ...]
    most_models: int
    margin: float = 0.1


def case(seed: int, models: int, gpus: int, **more: Any) -> Case:
    """Random latencies that fall with the share and grow with the batch, and random uses."""
    random = np.random.default_rng(seed)
    percents = tuple(more.pop("percents", (20, 50, 80, 100)))
    batches = more.pop("batches", 3)
    memory = more.pop("memory", 0.0)
    profiles: dict[str, ModelProfile] = {}
    demands: list[ModelDemand] = []
    for number in range(models):
        name = f"m{number}"
        base, slope = random.uniform(800, 3_000), random.uniform(300, 1_500)
        tables: dict[ProfileKey, ProfileTable] = {}
        for percent in percents:
            row = (base + slope * np.arange(1, batches + 1)) * (
                1 + random.uniform(0.3, 0.9) * (100 / percent - 1)
            )
            row = row * random.uniform(0.9, 1.1, batches)
            tables[ProfileKey("G", 3 * percent, SOLO)] = ProfileTable(
                latency_us=row[None, :],
                l2=random.uniform(0, percent / 100, (1, batches)),
                dram=random.uniform(0, percent / 100, (1, batches)),
            )
        profiles[name] = ModelProfile(
            name=name,
            boundary_bytes=(),
            tables=tables,
            block_memory_bytes=(int(memory * random.uniform(0.5, 1.5) * GIB),) if memory else (),
        )
        slo = int(random.uniform(8, 30) * 1_000)
        demands.append(ModelDemand(name=name, slo_us=slo, weight=float(random.uniform(0.5, 2))))
    gpu_class = GpuClass(
        name="G",
        vgpu_divisors=(),
        vgpu_percents=percents,
        hourly_cost=1.5,
        memory_gib=more.pop("memory_gib", None),
        process_memory_gib=more.pop("process_memory_gib", None),
        max_vgpus_per_gpu=more.pop("most_vgpus", None),
    )
    return Case(
        cluster=Cluster(
            name="small",
            gpu_classes=(gpu_class,),
            nodes=(NodeGroup(count=1, gpu_class="G", gpus=gpus, nic_gbps=10),),
        ),
        workload=Workload(models=tuple(demands)),
        profiles=profiles,
        percents=percents,
        most_models=more.pop("most_models", 2),
    )


def alone(asked: Case, model: int, percent: int) -> ProfileTable:
    """A model alone on a part."""
    found = asked.profiles[f"m{model}"].table("G", 3 * percent, SOLO)
    assert found is not None
    return found


def seats(asked: Case) -> dict[int, list[tuple[tuple[int, int], ...]]]:
    """Every set of (model, batch) of every share, feasible or not."""
    found: dict[int, list[tuple[tuple[int, int], ...]]] = {}
    count = len(asked.workload.models)
    for percent in asked.percents:
        found[percent] = [
            tuple(zip(models, chosen, strict=True))
            for k in range(1, asked.most_models + 1)
            for models in combinations(range(count), k)
            for chosen in product(*(range(1, alone(asked, m, percent).largest + 1) for m in models))
        ]
    return found


def gpu_rates(
    asked: Case,
    parts: Sequence[tuple[int, tuple[tuple[int, int], ...]]],
    model: InterferenceModel | None,
) -> list[float] | None:
    """Requests/s of every model on a GPU of these parts; None where a model would be late."""
    gpu_class = asked.cluster.gpu_classes[0]
    if gpu_class.memory_gib is not None:
        needed = sum(
            (gpu_class.process_memory_gib or 0)
            + sum(sum(asked.profiles[f"m{m}"].block_memory_bytes) / GIB for m, _ in chosen)
            for _, chosen in parts
        )
        if needed > gpu_class.memory_gib * (1 + 1e-9):
            return None

    def cell(m: int, percent: int, batch: int) -> tuple[float, float, float]:
        solo = alone(asked, m, percent)
        assert solo.l2 is not None
        assert solo.dram is not None
        longest = max(math.ceil(float(v) - 1e-6) for v in solo.latency_us[0, :batch])
        return longest, float(solo.l2[0, batch - 1]), float(solo.dram[0, batch - 1])

    def pressing(part: tuple[int, tuple[tuple[int, int], ...]]) -> float:
        assert model is not None
        cells = [cell(m, part[0], b) for m, b in part[1]]
        return max(
            max(0.0, model.c2_l2_other * l2 + model.c4_dram_other * dram) for _, l2, dram in cells
        )

    rates = [0.0] * len(asked.workload.models)
    for at, (percent, chosen) in enumerate(parts):
        turns: list[int] = []
        for m, batch in chosen:
            latency, l2, dram = cell(m, percent, batch)
            factor = 1.0
            if model is not None and len(parts) > 1:
                felt = sum(pressing(part) for i, part in enumerate(parts) if i != at)
                factor = max(
                    1.0, model.c1_l2_self * l2 + model.c3_dram_self * dram + model.c5 + felt
                )
            turns.append(math.ceil(latency * factor - 1e-6))
        duty = sum(turns)
        for (m, batch), turn in zip(chosen, turns, strict=True):
            if duty + turn > (1 - asked.margin) * asked.workload.models[m].slo_us:
                return None
            rates[m] += batch * 1e6 / duty
    return rates


def patterns(asked: Case, model: InterferenceModel | None) -> Iterator[list[float]]:
    """Rates of every feasible GPU."""
    options = seats(asked)
    most = asked.cluster.gpu_classes[0].most_vgpus
    for count in range(1, most + 1):
        for cut in combinations_with_replacement(asked.percents, count):
            if sum(cut) > 100:
                continue
            for chosen in product(*(options[p] for p in cut)):
                rates = gpu_rates(asked, list(zip(cut, chosen, strict=True)), model)
                if rates is not None:
                    yield rates


def best_throughput(asked: Case, model: InterferenceModel | None) -> float:
    """The highest lowest rate / weight over all choices of a pattern for every GPU."""
    weights = np.array([m.weight or 1.0 for m in asked.workload.models])
    rates = np.unique(np.round(np.array(list(patterns(asked, model))), 9), axis=0) / weights
    kept = [r for i, r in enumerate(rates) if not _beaten(rates, i)]
    best = 0.0
    for chosen in combinations_with_replacement(kept, asked.cluster.gpus("G")):
        best = max(best, float(np.sum(chosen, axis=0).min()))
    return best


def fewest_gpus(asked: Case, rates: Sequence[float], model: InterferenceModel | None) -> int | None:
    """The least GPUs that carry the rates; None where all do not."""
    table = np.unique(np.round(np.array(list(patterns(asked, model))), 9), axis=0)
    kept = [r for i, r in enumerate(table) if not _beaten(table, i)]
    for count in range(1, asked.cluster.gpus("G") + 1):
        for chosen in combinations_with_replacement(kept, count):
            if bool((np.sum(chosen, axis=0) >= np.asarray(rates) * (1 - 1e-9)).all()):
                return count
    return None


def _beaten(rates: np.ndarray[Any, Any], number: int) -> bool:
    others = np.delete(rates, number, axis=0)
    return bool((others >= rates[number]).all(axis=1).any())
