"""The best plan of a tiny problem by trying everything; shares no code with the planner.

Per model and per number of vGPUs of every type, the best rate is found by trying every number of
vGPUs for every stage of every configuration; then every split of the GPUs among models and sizes.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations, product
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.cluster import Cluster
from triton_backend.contract.profiles import ModelProfile, ProfileKey
from triton_backend.contract.workload import ModelDemand, Workload

Type = tuple[str, int]
Config = tuple[tuple[Type, float], ...]  # per stage: vGPU type, samples/s of one vGPU


def latencies(profile: ModelProfile, kind: Type) -> NDArray[np.float64]:
    """[blocks, batches] of a class and divisor."""
    return profile.tables[ProfileKey(kind[0], 300 // kind[1])].latency_us


def largest(profile: ModelProfile, kind: Type) -> int:
    """Batches measured there; 0 where nothing was."""
    measured = ProfileKey(kind[0], 300 // kind[1]) in profile.tables
    return latencies(profile, kind).shape[1] if measured else 0


def types_of(cluster: Cluster) -> list[Type]:
    """Every class and size that has GPUs."""
    return [
        (c.name, v) for c in cluster.gpu_classes for v in c.vgpu_divisors if cluster.gpus(c.name)
    ]


def configurations(
    profile: ModelProfile, demand: ModelDemand, cluster: Cluster, stages: int, margin: float
) -> Iterator[Config]:
    """Every feasible configuration of a model."""
    types = types_of(cluster)
    allowed = (1 - margin) * demand.slo_us
    for count in range(1, min(stages, profile.blocks) + 1):
        for cuts in combinations(range(1, profile.blocks), count - 1):
            edges = (0, *cuts, profile.blocks)
            for chosen in product(types, repeat=count):
                for batch in range(1, min(largest(profile, t) for t in chosen) + 1):
                    config, took = _configuration(profile, cluster, edges, chosen, batch)
                    if took + demand.gathering_us(batch) <= allowed + 1e-6:
                        yield config


def _configuration(
    profile: ModelProfile,
    cluster: Cluster,
    edges: tuple[int, ...],
    chosen: tuple[Type, ...],
    batch: int,
) -> tuple[Config, float]:
    took = 0.0
    config: list[tuple[Type, float]] = []
    for s, (gpu_class, divisor) in enumerate(chosen):
        table = latencies(profile, (gpu_class, divisor))
        latency = ceil(sum(table[edges[s] : edges[s + 1], batch - 1]) - 1e-6)
        took += latency
        rate = batch / latency * 1e6
        share = cluster.nic_gbps(gpu_class) * 1e9 / cluster.max_gpus_per_node(gpu_class) / divisor
        for edge in edges[s : s + 2]:
            if 0 < edge < profile.blocks and profile.boundary_bytes[edge - 1]:
                rate = min(rate, share / (8 * profile.boundary_bytes[edge - 1]))
        if s:
            nic = min(cluster.nic_gbps(chosen[s - 1][0]), cluster.nic_gbps(gpu_class))
            bits = 8 * batch * profile.boundary_bytes[edges[s] - 1]
            took += ceil(bits / (nic * 1e3) - 1e-6)
        config.append(((gpu_class, divisor), rate))
    return tuple(config), took


def best_rates(
    configs: list[Config], types: list[Type], room: tuple[int, ...]
) -> Mapping[tuple[int, ...], float]:
    """Highest rate for every number of vGPUs per type up to `room`.

    Configurations are added one by one, with every number of vGPUs of every stage.
    """
    states = list(product(*(range(r + 1) for r in room)))
    best = dict.fromkeys(states, 0.0)
    for config in configs:
        uses: dict[tuple[int, ...], float] = {}
        for vgpus in product(*(range(1, room[types.index(kind)] + 1) for kind, _ in config)):
            used = [0] * len(types)
            for (kind, _), count in zip(config, vgpus, strict=True):
                used[types.index(kind)] += count
            rate = min(g * r for g, (_, r) in zip(vgpus, config, strict=True))
            uses[tuple(used)] = max(rate, uses.get(tuple(used), 0.0))
        before = dict(best)
        for used, rate in uses.items():
            for state in states:
                left = tuple(have - need for have, need in zip(state, used, strict=True))
                if min(left) >= 0:
                    best[state] = max(best[state], before[left] + rate)
    return best


def allocations(
    cluster: Cluster, types: list[Type], models: int
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every way to give whole GPUs to (model, type): vGPUs per model and type, used to the full."""
    per_class: list[list[dict[tuple[int, int], int]]] = []
    for gpu_class in cluster.gpu_classes:
        places = [
            (m, t)
            for m in range(models)
            for t, kind in enumerate(types)
            if kind[0] == gpu_class.name
        ]
        most = cluster.gpus(gpu_class.name)
        ways = [
            dict(zip(places, split, strict=True))
            for split in product(range(most + 1), repeat=len(places))
            if sum(split) <= most
        ]
        per_class.append(ways)
    for parts in product(*per_class):
        owned: dict[tuple[int, int], int] = {}
        for part in parts:
            owned |= part
        yield tuple(
            tuple(owned.get((m, t), 0) * kind[1] for t, kind in enumerate(types))
            for m in range(models)
        )


def rates_by_room(
    profiles: Mapping[str, ModelProfile], cluster: Cluster, workload: Workload, stages: int
) -> tuple[list[Type], list[Mapping[tuple[int, ...], float]]]:
    """Per model the best rate for every number of vGPUs, at no margin."""
    types = types_of(cluster)
    room = tuple(cluster.gpus(c) * v for c, v in types)
    tables = [
        best_rates(list(configurations(profiles[m.name], m, cluster, stages, 0.0)), types, room)
        for m in workload.models
    ]
    return types, tables


def best_throughput(
    profiles: Mapping[str, ModelProfile], cluster: Cluster, workload: Workload, stages: int
) -> float:
    """The highest lowest rate / weight."""
    types, tables = rates_by_room(profiles, cluster, workload, stages)
    return max(
        min(
            table[vgpus] / m.normaliser()
            for table, vgpus, m in zip(tables, split, workload.models, strict=True)
        )
        for split in allocations(cluster, types, len(tables))
    )


def least_price(
    profiles: Mapping[str, ModelProfile],
    cluster: Cluster,
    workload: Workload,
    stages: int,
    prices: Mapping[str, float],
) -> float:
    """The lowest price of GPUs that reach every rate; infinite where none do."""
    types, tables = rates_by_room(profiles, cluster, workload, stages)
    least = inf
    for split in allocations(cluster, types, len(tables)):
        if all(
            table[vgpus] >= (m.rate_rps or 0.0) * (1 - 1e-9)
            for table, vgpus, m in zip(tables, split, workload.models, strict=True)
        ):
            gpus = sum(
                prices[kind[0]] * vgpus[t] / kind[1]
                for vgpus in split
                for t, kind in enumerate(types)
            )
            least = min(least, gpus)
    return least
