"""Small random workloads of entries, and a brute force that shares no code with the planner."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor, inf
from typing import Any

import numpy as np

from flows.clock import Stopwatch
from flows.planning import PlanOptions, make_plan
from flows.planning.entries.groups import Group, GroupingProblem, items_of
from flows.planning.entries.subsets import (
    aligned_subsets,
    members_in,
    members_of,
)
from flows.planning.entries.tables import read_tables
from flows.planning.papers.graft.rules import cheapest_cut
from flows.planning.registry import Inputs, planner_named
from flows.planning.solver.arrays import FAR
from flows.planning.verify.numbers import verify_plan
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.entries import Entry
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile, ProfileKey, ProfileTable
from triton_backend.contract.shares import SOLO
from triton_backend.contract.workload import ModelDemand, Workload

PERCENTS = (5, 15, 40, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A problem of one model."""

    profile: ModelProfile
    cluster: Cluster
    workload: Workload

    @property
    def profiles(self) -> dict[str, ModelProfile]:
        return {self.profile.name: self.profile}

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self.workload.models[0].entries


def profile(
    seed: int = 0, blocks: int = 3, batches: int = 3, classes: Sequence[str] = ("G",), **more: Any
) -> ModelProfile:
    """Latencies that fall with the share and grow with the batch, less than in proportion."""
    random = np.random.default_rng(seed)
    tables: dict[ProfileKey, ProfileTable] = {}
    for number, gpu_class in enumerate(classes):
        base = random.uniform(300, 1_500, (blocks, 1)) * (1 + 1.5 * number)
        slope = random.uniform(100, 800, (blocks, 1)) * (1 + 1.5 * number)
        for percent in PERCENTS:
            slower = 1 + random.uniform(0.4, 1.0) * (100 / percent - 1)
            latency = (base + slope * np.arange(1, batches + 1)) * slower
            tables[ProfileKey(gpu_class, 3 * percent, SOLO)] = ProfileTable(latency_us=latency)
    return ModelProfile(
        name="net",
        boundary_bytes=tuple(int(b) for b in random.integers(0, 200_000, blocks - 1)),
        tables=tables,
        **more,
    )


def cluster(classes: Sequence[str] = ("G",), gpus: int = 8, **more: Any) -> Cluster:
    """Nodes of four GPUs, the NIC of each further class half as fast."""
    return Cluster(
        name="small",
        gpu_classes=tuple(
            GpuClass(
                name=name,
                vgpu_divisors=(),
                vgpu_percents=PERCENTS,
                max_vgpus_per_gpu=16,
                hourly_cost=2.0 - number,
                **more,
            )
            for number, name in enumerate(classes)
        ),
        nodes=tuple(
            NodeGroup(count=gpus, gpu_class=name, gpus=4, nic_gbps=40 / (1 + number))
            for number, name in enumerate(classes)
        ),
    )


def entry(name: str, block: int, budget_ms: float, rate_rps: float) -> Entry:
    return Entry(name=name, block=block, budget_us=round(1_000 * budget_ms), rate_rps=rate_rps)


def case(
    seed: int,
    count: int,
    *,
    blocks: int = 3,
    rates: Sequence[float] = (5, 12.5, 30, 0.1),
    classes: Sequence[str] = ("G",),
    loose: float = 14,
) -> Case:
    """Entries at random blocks; budgets from barely enough to plenty."""
    random = np.random.default_rng(1_000 + seed)
    net = profile(seed, blocks, classes=classes)
    fastest = net.tables[ProfileKey("G", 300)].latency_us[:, 0]
    entries = tuple(
        entry(
            f"e{number}",
            block := int(random.integers(blocks)),
            2.1 * fastest[block:].sum() / 1e3 * random.uniform(1.1, loose),
            float(random.choice(rates)),
        )
        for number in range(count)
    )
    return made(net, entries, classes)


def made(
    net: ModelProfile, entries: Sequence[Entry], classes: Sequence[str] = ("G",), **more: Any
) -> Case:
    """A problem of these entries."""
    demand = ModelDemand(name="net", slo_us=1_000_000, entries=tuple(entries))
    return Case(profile=net, cluster=cluster(classes, **more), workload=Workload(models=(demand,)))


# Brute force: every partition, junction, class, share and batch, and every way to share alignment
# stages


def partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """Every way to cut a set into parts."""
    if not items:
        yield []
        return
    first, *rest = items
    for parts in partitions(rest):
        yield [[first], *parts]
        for number, part in enumerate(parts):
            yield [*parts[:number], [first, *part], *parts[number + 1 :]]


def stages(problem: Case, first: int, last: int) -> list[tuple[str, int, int, int]]:
    """Class, percent, batch and latency (µs) of every way to run blocks [first, last)."""
    found: list[tuple[str, int, int, int]] = []
    for (gpu_class, share, _), cells in problem.profile.tables.items():
        total = cells.latency_us[first:last].sum(axis=0)
        found += [(gpu_class, share // 3, b + 1, ceil(v - 1e-6)) for b, v in enumerate(total)]
    return found


def vgpus(rate: Fraction, batch: int, latency_us: int) -> int:
    return max(1, ceil(rate * latency_us / (batch * 1_000_000)))


def move_us(problem: Case, before: int, batch: int, ends: tuple[str, str]) -> int:
    gbps = min(problem.cluster.nic_gbps(name) for name in ends)
    return ceil(problem.profile.boundary_bytes[before - 1] * batch * 8 / (gbps * 1e3) - 1e-6)


def group_cost(
    problem: Case, members: Sequence[int], *, shared: bool, margin: float, whole: bool = False
) -> float:
    """The least percents of a group; `whole` as of `brute_force`."""
    entries = [problem.entries[m] for m in members]
    limits = [floor((1 - margin) * e.budget_us + 1e-6) for e in entries]
    rates = [Fraction(str(e.rate_rps)) for e in entries]
    blocks, best = problem.profile.blocks, inf
    for junction in range(max(e.block for e in entries), blocks):
        for root in stages(problem, junction, blocks):
            cost: float = root[1] * vgpus(sum(rates, Fraction(0)), root[2], root[3])
            direct = [x for x, e in zip(limits, entries, strict=True) if e.block == junction]
            if direct and min(direct) < root[3]:
                continue
            for start in {e.block for e in entries if e.block < junction}:
                here = [n for n, e in enumerate(entries) if e.block == start]
                ways = partitions(here) if shared else iter([[[n] for n in here]])
                cost += min(
                    sum(
                        aligned(
                            problem,
                            (start, junction, root),
                            min(limits[n] for n in part) - root[3],
                            sum((rates[n] for n in part), Fraction(0)),
                            whole=whole,
                        )
                        for part in way
                    )
                    for way in ways
                )
            best = min(best, cost)
    return best


def aligned(
    problem: Case,
    where: tuple[int, int, tuple[str, int, int, int]],
    left: int,
    rate: Fraction,
    *,
    whole: bool,
) -> float:
    """The least percents of an alignment stage within a time."""
    start, junction, root = where
    return min(
        (
            percent * vgpus(rate, batch, latency)
            for gpu_class, percent, batch, latency in stages(problem, start, junction)
            if latency + move_us(problem, junction, batch, (gpu_class, root[0])) <= left
            and not (whole and root[2] % batch)
        ),
        default=inf,
    )


def brute_force(
    problem: Case, *, shared: bool = True, margin: float = 0.5, whole: bool = False
) -> float:
    """The least percents of any plan by groups.

    `shared`: alignment stages may be shared within a group. `whole`: batches of a shared stage are
    multiples of those that come to it.
    """
    known: dict[tuple[int, ...], float] = {}

    def cost(part: list[int]) -> float:
        key = tuple(part)
        if key not in known:
            known[key] = group_cost(problem, part, shared=shared, margin=margin, whole=whole)
        return known[key]

    numbers = list(range(len(problem.entries)))
    return min(sum(map(cost, parts)) for parts in partitions(numbers))


def by_subsets(field: GroupingProblem) -> list[Group]:
    """The cheapest partition of few items by all subsets, alignment stages shared in a start.

    cost[G, s] of every subset G on every shared stage s: its own vGPUs, and for every start the
    cheapest way to share alignment stages, over all ways.
    """
    subsets, rate = np.arange(1 << len(field.items)), members_in(len(field.items)) @ field.rate
    vgpus = np.ceil(rate[:, None] * field.root_work * (1 - 1e-9))
    cost = field.root_price * np.maximum(1.0, vgpus)
    cost[vgpus > field.table.most] = FAR
    for block in np.unique(field.block):
        own = np.flatnonzero(field.block == block)
        mask = sum((subsets >> int(item) & 1) << at for at, item in enumerate(own))
        cost += aligned_subsets(field, own)[:, mask].T
    root = cost.argmin(axis=1)
    lowest = cost[subsets, root]
    return [
        Group(items=members_of(subset), root=int(root[subset]), cost=float(lowest[subset]))
        for subset in cheapest_cut(np.minimum(lowest, FAR))
    ]


EVEN = PlanOptions(objective="share", slo_margin=0.5, own={"phases": "even", "headroom": "none"})
"""Plans by rates alone."""


def inputs_of(problem: Case, options: PlanOptions = EVEN, **more: Any) -> Inputs:
    """Inputs of its planner."""
    return Inputs(
        profiles=problem.profiles,
        cluster=problem.cluster,
        workload=problem.workload,
        options=options,
        **more,
    )


def field_of(
    problem: Case, most_stages: int = 2, own: Mapping[str, Any] | None = None
) -> GroupingProblem:
    """Its entries one by one, by rates alone."""
    more = {**EVEN.own, **(own or {})}
    inputs = inputs_of(problem, replace(EVEN, max_partitions=most_stages, own=more))
    (table,) = read_tables(inputs)
    return GroupingProblem(table, items_of(table))


def planned(problem: Case, planner: str = "pool", objective: str = "share", **more: Any) -> Plan:
    """A plan by rates alone, unless `own` says more, verified, from its own file too."""
    takes = {option.name for option in planner_named(planner).options}
    own = {k: v for k, v in EVEN.own.items() if k in {"phases", "headroom"} & takes}
    own |= more.pop("own", {})
    options = PlanOptions(planner=planner, objective=objective, own=own, **more)
    plan = make_plan(problem.profiles, problem.cluster, problem.workload, options)
    assert verify_plan(plan, problem.profiles) == []
    assert Plan.from_dict(plan.to_dict()).to_dict() == plan.to_dict()
    return plan


def one(*entries: Entry, **more: Any) -> Case:
    """Entries of the model that all examples here use."""
    return made(profile(7, **more), entries)


class Held(Stopwatch):
    """A clock that stands still until it is set."""

    now_s = 0.0

    def seconds(self) -> float:
        return self.now_s
