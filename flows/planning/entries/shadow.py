"""Shadow pools.

VGPUs of one size that run every tail of a model, so that any cut is served at once (Graft, section
6). A client that moves its cut comes in where nothing was planned for it; until a plan knows it, it
is served here. The pool is the cheapest that carries a stated rate of whole models, one by one so
that none waits for company, each within a stated time. Entries with time for it may use it beside
their own pools; at every other block there is an entry more, with the SLO as budget.

    pool       [0, M) [1, M) ... [M-1, M)    a row per block, batches of one, same vGPUs
    cheapest   over shares: price x ceil(rate L(0, M)), L(0, M) within the time
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flows.planning.entries.options import vgpus_for
from flows.planning.entries.tables import ModelTable
from flows.planning.inputs import stage_memory
from flows.planning.placement import PoolToPlace, ShareToPlace
from flows.planning.registry import PlannedCut, PlannedPipeline, PlannedStage, PlanOptions
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.entries import Entry
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.plan import PlacementRun, Plan, Slot, worker_memory_gib
from triton_backend.contract.shares import divisor_of
from triton_backend.contract.units import US_PER_S, ms_to_us, us_to_ms
from triton_backend.contract.workload import ModelDemand

Held = dict[tuple[str, int, Hashable], list[Slot]]
"""Places of vGPUs by class, share and what they run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """The shadow pool of one model: a size of its table, how many vGPUs."""

    table: ModelTable
    size: int
    vgpus: int
    rate_rps: float

    @property
    def price(self) -> float:
        """In the objective."""
        return self.table.sizes[self.size].price * self.vgpus

    def latency_us(self, block: int) -> int:
        """Of the tail from a block."""
        size = self.table.sizes[self.size]
        return int(size.table.stage_latency_us((block, self.table.blocks))[0])

    def serves(self, entry: Entry) -> bool:
        """True if it is fast enough for an entry."""
        table = self.table
        limit_us = table.limits_us[[e.name for e in table.entries].index(entry.name)]
        return self.latency_us(entry.block) <= limit_us

    @property
    def tails(self) -> list[tuple[int, int]]:
        """Blocks of every stage that its vGPUs run."""
        return [(first, self.table.blocks) for first in range(self.table.blocks)]


def to_place(
    table: ModelTable,
    pool: tuple[int, int],
    runs: Sequence[tuple[int, int]],
    batch: int,
    cluster: Cluster,
    in_force: Held,
) -> ShareToPlace | PoolToPlace:
    """A pool as it is placed: an equal part of one model where its class is cut by divisors.

    Args:
        table: its model.
        pool: its size among the table's, and its vGPUs.
        runs: blocks of every stage that its process has, in memory each by itself.
        batch: of them.
        cluster: where it lies.
        in_force: as of `places_in_force`; places that are taken are taken off.
    """
    size, vgpus = table.sizes[pool[0]], pool[1]
    gpu_class = cluster.gpu_class(size.gpu_class)
    divisor = divisor_of(size.share) if gpu_class.vgpu_divisors else None
    if divisor is not None:
        return PoolToPlace(
            model=table.number,
            name=table.name,
            blocks=runs[0],
            gpu_class=size.gpu_class,
            divisor=divisor,
            vgpus=vgpus,
            traffic=0.0,
        )
    content = frozenset((table.name, blocks, batch) for blocks in runs)
    held = in_force.get((size.gpu_class, size.share, content), [])
    taken = tuple(held[:vgpus])
    del held[:vgpus]
    stages = [stage_memory(table.profile, blocks) for blocks in runs]
    return ShareToPlace(
        gpu_class=size.gpu_class,
        share=size.share,
        vgpus=vgpus,
        memory_gib=worker_memory_gib(gpu_class, stages),
        held=taken,
    )


def places_in_force(plan: Plan, cluster: Cluster) -> Held:
    """Places of a plan's vGPUs by class, share and what they run: models, blocks and batches."""
    found: Held = {}
    if plan.cluster.nodes != cluster.nodes:
        return found
    content: dict[str, set[tuple[str, tuple[int, int], int]]] = {}
    for model, pipeline, stage, pool in plan.placed_stages():
        batch = stage.batch or pipeline.batch
        content.setdefault(pool.name, set()).add((model.name, stage.blocks, batch))
    for pool in plan.pools:
        key = (pool.gpu_class, pool.share, frozenset(content[pool.name]))
        found.setdefault(key, []).extend(pool.slots())
    return found


def shadow_of(table: ModelTable, slo_us: int, options: PlanOptions) -> Shadow | None:
    """The cheapest shadow pool of a model.

    None where none is asked for, or the model lists no entries.

    Raises:
        InfeasibleError: nothing runs the model in that time.
    """
    rate_rps = float(options.own["shadow_rps"])
    if not rate_rps or not table.listed:
        return None
    kept = 1 - options.margin(table.name)
    limit_us = ms_to_us(options.own["shadow_ms"]) or math.floor(kept * slo_us / 2)
    found: list[tuple[float, int, Shadow]] = []
    least = math.inf
    for number, size in enumerate(table.sizes):
        latency_us = int(size.table.stage_latency_us((0, table.blocks))[0])
        least = min(least, latency_us)
        if latency_us <= limit_us:
            vgpus = int(vgpus_for(rate_rps, np.array([latency_us / US_PER_S]))[0])
            made = Shadow(table=table, size=number, vgpus=vgpus, rate_rps=rate_rps)
            found.append((made.price, number, made))
    if not found:
        reason = (
            f"its pool has {us_to_ms(limit_us):.3f} ms,"
            f" the whole model needs {us_to_ms(round(least)):.3f} ms"
        )
        raise InfeasibleError(f"workload model {table.name!r}, shadow_ms", reason)
    return min(found)[2]


def with_shadow_entries(demand: ModelDemand, shadow: Shadow) -> ModelDemand:
    """The model with an entry at every block that no entry reaches the pool from.

    They share its rate.
    """
    used = {entry.block for entry in demand.entries if shadow.serves(entry)}
    names = {entry.name for entry in demand.entries}
    free = [block for block in range(shadow.table.blocks) if block not in used]
    found: list[Entry] = []
    for block in free:
        name = f"cut-{block}"
        while name in names:
            name += "+"
        rate_rps = shadow.rate_rps / len(free)
        found.append(Entry(name=name, block=block, budget_us=demand.slo_us, rate_rps=rate_rps))
    return replace(demand, entries=(*demand.entries, *found))


def shadow_pipelines(
    demand: ModelDemand, shadow: Shadow, number: int, runs: tuple[PlacementRun, ...]
) -> Iterator[PlannedPipeline]:
    """A pipeline for every added entry, and one of rate 0 for each entry it is fast enough for.

    Args:
        demand: as the workload lists it.
        shadow: its pool.
        number: of the pool among those shared.
        runs: where it lies.
    """
    table, size = shadow.table, shadow.table.sizes[shadow.size]
    cut = PlannedCut(share=size.share, placement=runs, starts_anywhere=True)
    for entry in with_shadow_entries(demand, shadow).entries:
        listed = entry in demand.entries
        if listed and not shadow.serves(entry):
            continue
        blocks = (entry.block, table.blocks)
        stage = PlannedStage(
            blocks=blocks,
            gpu_class=size.gpu_class,
            divisor=1,
            vgpus=shadow.vgpus,
            shared=number,
            cut=cut,
            latency_us_by_batch=(shadow.latency_us(entry.block),),
            memory=stage_memory(table.profile, blocks),
        )
        yield PlannedPipeline(
            model=table.number,
            entry=entry.name,
            batch=1,
            rate_rps=0.0 if listed else entry.rate_rps,
            stages=(stage,),
        )
