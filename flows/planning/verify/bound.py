"""Recompute from profiles, without a solver, what prices of a plan's certificate prove.

The relaxation of pipelines on pools, model by model (`pool`): GPUs of class k have a price p_k >=
0, samples/s of model m a price w_m >= 0. No pipeline of m can be cheaper than w_m: over every
batch, cut and choice of vGPUs that keeps the SLO,

    w_m <= min over pipelines of sum over stages p_class / (vGPUs on a GPU * samples/s of a vGPU)

Then, by weak duality, with d_m requests/s asked per unit of the objective, times the headroom, and
n_k GPUs that cost c_k each:

    throughput:      z    <= sum_k p_k n_k / sum_m d_m w_m
    cost and power:  cost >= sum_m d_m w_m - sum_k max(0, p_k - c_k) n_k

Here: that alone, by trying every pipeline. Not here: anything imported from planners; other kinds
of proofs (`RECOMPUTED` is where theirs go); whether what a solver says is true.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.planning.verify.differences import headroom, margin_of
from flows.planning.verify.objective import gpu_price
from triton_backend.contract.cluster import GpuClass
from triton_backend.contract.fields import Fields
from triton_backend.contract.plan import BYTES_PER_GIB, Plan
from triton_backend.contract.profiles import ModelProfile, ProfileTable
from triton_backend.contract.shares import LOADED, WHOLE_GPU
from triton_backend.contract.workload import ModelDemand

DUALITY, SOLVER, NOTHING = "duality", "solver", "none"
PROVEN_BY = (DUALITY, SOLVER, NOTHING)
RELAXATION = "relaxation"
MOST_STAGES = 3
MOST_CELLS = 50_000_000  # pipelines tried: seconds
_CLOSE = 1e-6  # of bounds: profiles are summed in another order here


def bound_differences(plan: Plan, profiles: Mapping[str, ModelProfile] | None) -> Iterator[str]:
    """Differences between the bound of a plan and what its certificate's proof gives."""
    if "proof" not in plan.certificate:
        return
    limits: list[float] = []
    for part in Fields(plan.certificate, "certificate").items("proof"):
        kind, by, bound = part.text("kind"), part.text("proven_by"), part.number("bound")
        if by not in PROVEN_BY:
            yield f"proof: {kind} is proven by {by!r}, none of {', '.join(PROVEN_BY)}"
            return
        if by == DUALITY:
            if kind not in RECOMPUTED:
                yield f"proof: no prices of the kind {kind!r} are known"
                return
            yield from RECOMPUTED[kind](plan, profiles, part)
        limits.append(bound)
    best = min if plan.objective.name == "throughput" else max
    stated = plan.objective.upper_bound
    if not limits or not math.isclose(best(limits), stated, rel_tol=_CLOSE, abs_tol=1e-12):
        yield f"proof: upper_bound is {stated!r}, its parts give {limits}"


def _relaxation(
    plan: Plan, profiles: Mapping[str, ModelProfile] | None, part: Fields
) -> Iterator[str]:
    """Differences between a bound and what its prices of GPUs and of rates give."""
    if plan.objective.name == "share":
        yield f"proof: prices do not bound the objective {plan.objective.name!r}"
        return
    prices = part.inner("prices")
    gpu = _numbers(prices.inner("gpus"), [c.name for c in plan.cluster.gpu_classes])
    rate = _numbers(prices.inner("rates"), [m.name for m in plan.models])
    derived = _weak_duality(plan, gpu, rate)
    bound = part.number("bound")
    if not math.isclose(bound, derived, rel_tol=_CLOSE, abs_tol=1e-12):
        yield f"proof: the bound is {bound!r}, its prices give {derived!r}"
    for demand in plan.workload.models if profiles is not None else ():
        profile = profiles.get(demand.name) if profiles is not None else None
        if profile is None or most_cells(plan, profile) > MOST_CELLS:
            yield f"proof: pipelines of {demand.name} cannot be tried"
            continue
        least = cheapest(plan, demand, profile, gpu)
        if rate[demand.name] > least * (1 + _CLOSE):
            yield (
                f"proof: a request of {demand.name} is priced {rate[demand.name]!r}, "
                f"its cheapest pipeline takes {least!r}"
            )


def _numbers(fields: Fields, names: list[str]) -> dict[str, float]:
    return {name: fields.number(name, least=0) if fields.has(name) else 0.0 for name in names}


def _weak_duality(plan: Plan, gpu: Mapping[str, float], rate: Mapping[str, float]) -> float:
    asked = {m.name: m.normaliser(plan.objective.name) for m in plan.workload.models}
    worth = math.fsum(headroom(plan, name) * each * rate[name] for name, each in asked.items())
    level = plan.objective.name == "throughput"
    own = {name: 0.0 if level else gpu_price(plan, name, plan.objective.name) for name in gpu}
    scarce = (max(0.0, gpu[name] - own[name]) * plan.cluster.gpus(name) for name in gpu)
    held = math.fsum(scarce)
    if not level:
        return worth - held
    return held / worth if worth > 0 else math.inf


RECOMPUTED: Mapping[
    str, Callable[[Plan, Mapping[str, ModelProfile] | None, Fields], Iterator[str]]
] = {RELAXATION: _relaxation}
"""Proofs by duality, by kind: differences between a plan and what the prices of a part prove."""


# The cheapest pipeline


_Size = tuple[GpuClass, int, ProfileTable]
"""A size of vGPU that a model may use: its class, vGPUs on a GPU, what was measured."""


def _sizes(plan: Plan, profile: ModelProfile) -> list[_Size]:
    excluded: Mapping[str, Any] = plan.options.get("excluded_classes", {})
    allowed: Mapping[str, Any] = plan.options.get("allowed_classes", {})
    barred = {*excluded.get("*", ()), *excluded.get(profile.name, ())}
    found: list[_Size] = []
    for gpu_class in plan.cluster.gpu_classes:
        name = gpu_class.name
        if name in barred or name not in allowed.get(profile.name, (name,)):
            continue
        for divisor in gpu_class.vgpu_divisors if plan.cluster.gpus(name) else ():
            table = profile.table(name, WHOLE_GPU // divisor, LOADED)
            if table is not None:
                found.append((gpu_class, divisor, table))
    return found


def _batches(sizes: list[_Size]) -> list[int]:
    return sorted({int(batch) for _, _, table in sizes for batch in table.batches})


def most_cells(plan: Plan, profile: ModelProfile) -> int:
    """How many pipelines a model has, whether they keep its SLO or not."""
    sizes = _sizes(plan, profile)
    batches = len(_batches(sizes))
    most = min(int(plan.options.get("max_partitions", 1)), profile.blocks)
    return batches * sum(
        math.comb(profile.blocks - 1, stages - 1) * len(sizes) ** stages
        for stages in range(1, most + 1)
    )


def cheapest(
    plan: Plan, demand: ModelDemand, profile: ModelProfile, gpu: Mapping[str, float]
) -> float:
    """The least price of one sample/s of a model; infinite where no pipeline keeps its SLO."""
    sizes, least = _sizes(plan, profile), math.inf
    if not sizes:
        return least
    most = min(int(plan.options.get("max_partitions", 1)), profile.blocks)
    stages = _Stages(plan, profile, sizes, gpu)
    waits = np.array([demand.gathering_us(batch) for batch in stages.batches])
    limit = (1 - margin_of(plan, demand.name)) * demand.slo_us - waits + 1e-6
    for count in range(1, most + 1):
        for cuts in combinations(range(1, profile.blocks), count - 1):
            ends = [0, *cuts, profile.blocks]
            time, price = stages.of(0, ends[1])
            for first, last in pairwise(ends[1:]):
                time, price = stages.followed((time, price), first, last)
            within = price[time <= limit.reshape(-1, *[1] * count)]
            if within.size:
                least = min(least, float(within.min()))
    return least


class _Stages:
    """Time (µs) and price of one sample/s of stages [batch, size]; infinite where not runnable."""

    def __init__(
        self, plan: Plan, profile: ModelProfile, sizes: list[_Size], gpu: Mapping[str, float]
    ) -> None:
        self._profile, cluster = profile, plan.cluster
        self.batches = _batches(sizes)
        self._batch = np.array(self.batches, dtype=np.float64)
        most = self.batches[-1]
        self._latency = np.full((len(sizes), profile.blocks, most), np.inf)
        for number, (_, _, table) in enumerate(sizes):
            known = np.asarray(table.batches) - 1
            self._latency[number][:, known] = table.latency_us[:, known]
        self._latency = self._latency[:, :, np.array(self.batches) - 1]
        classes = [gpu_class for gpu_class, _, _ in sizes]
        nics = np.array([cluster.nic_gbps(c.name) for c in classes])
        divisors = np.array([divisor for _, divisor, _ in sizes], dtype=np.float64)
        on_node = np.array([cluster.max_gpus_per_node(c.name) for c in classes])
        self._slower = np.minimum(nics[:, None], nics)
        self._link = nics * 1e9 / (on_node * divisors)
        self._price = np.array([gpu[c.name] for c in classes]) / divisors
        self._room = np.array([c.usable_gib or np.inf for c in classes]) * BYTES_PER_GIB / divisors
        self._known: dict[tuple[int, int], _Pair] = {}

    def of(self, first: int, last: int) -> "_Pair":
        """Of blocks [first, last)."""
        if (first, last) not in self._known:
            time = np.ceil(self._latency[:, first:last].sum(axis=1).T - 1e-6)
            time[:, self._room < self._profile.stage_memory_bytes((first, last))] = np.inf
            rate = self._batch[:, None] * 1e6 / time
            for block in (first, last):
                if 0 < block < self._profile.blocks and self._profile.boundary_bytes[block - 1]:
                    rate = np.minimum(
                        rate, self._link / (8 * self._profile.boundary_bytes[block - 1])
                    )
            price = np.where(np.isfinite(time), self._price / np.maximum(rate, 1e-300), np.inf)
            self._known[first, last] = time, price
        return self._known[first, last]

    def followed(self, before: "_Pair", first: int, last: int) -> "_Pair":
        """Pipelines so far [batch, size, ..., size], then blocks [first, last) on every size."""
        time, price = before
        bits = self._batch * self._profile.boundary_bytes[first - 1] * 8
        moved = np.ceil(bits[:, None, None] / (self._slower * 1e3) - 1e-6)
        after_us, after = self.of(first, last)
        batches, sizes, lone = len(after), after.shape[1], [1] * (time.ndim - 2)
        on = time[..., None] + moved.reshape(batches, *lone, sizes, sizes)
        last_one = (batches, *lone, 1, sizes)
        return on + after_us.reshape(last_one), price[..., None] + after.reshape(last_one)


_Pair = tuple[NDArray[np.float64], NDArray[np.float64]]
