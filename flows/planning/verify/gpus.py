"""Check GPUs: their number, slots, shares, slices, memory, neighbours and links."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from flows.planning.verify.capacity import sent_bytes_of
from flows.planning.verify.differences import compare
from flows.planning.verify.phases import RELATIVE
from triton_backend.contract.plan import BYTES_PER_GIB, Plan, Pool
from triton_backend.contract.shares import MIG_CARDS, WHOLE_GPU, Mig, mig_cell, share_text
from triton_backend.contract.units import BITS_PER_BYTE


def interference_differences(plan: Plan) -> Iterator[str]:
    """Check that vGPUs feel the pressure of their GPU's others, and the factors from it."""
    blind = plan.options.get("interference") == "off"  # stated, not reckoned with
    for gpu, pools in _on_gpus(plan).items():
        known = [pool.interference for pool in pools if pool.interference is not None]
        if known and len(known) < len(pools):
            yield f"GPU {gpu}: some of its pools state interference, others do not"
            continue
        for at, (pool, own) in enumerate(zip(pools, known, strict=False)):
            others = math.fsum(known[i].pressure for i in range(len(known)) if i != at)
            where = f"pool {pool.name}: interference"
            open_seat = all(s.duty_cycle_us is None for s in plan.stages_of(plan.pools.index(pool)))
            if not open_seat:
                yield from compare(f"{where}, felt on GPU {gpu}", own.felt, others)
            elif own.felt < others - RELATIVE:  # it is planned for the most that may be beside it
                yield f"{where}, felt on GPU {gpu}: {own.felt:g}, others press {others:g}"
            pressure = max(seat.pressure for seat in own.seats)
            yield from compare(f"{where}, pressure", own.pressure, pressure)
            for seat in own.seats:
                factor = 1.0
                felt = own.felt if open_seat else others
                if (len(pools) > 1 or (open_seat and felt)) and not blind:
                    factor = max(1.0, seat.susceptibility + felt) * own.inflation
                yield from compare(f"{where}, factor", seat.factor, factor)


def gpu_differences(plan: Plan) -> Iterator[str]:
    """GPUs of each class are as many as stated, cost what is stated, and exist."""
    used = {c.name: 0 for c in plan.cluster.gpu_classes}
    for pools in _on_gpus(plan).values():
        used[pools[0].gpu_class] += 1
    if dict(plan.gpus_used) != used:
        yield f"gpus_used is {dict(plan.gpus_used)}, derived {used}"
    if plan.price_paid is not None:
        costs = {name: plan.cluster.gpu_class(name).hourly_cost for name in used if used[name]}
        paid = math.fsum(used[name] * (cost or math.inf) for name, cost in costs.items())
        if not math.isclose(plan.price_paid, paid, rel_tol=RELATIVE, abs_tol=RELATIVE):
            yield f"price_paid is {plan.price_paid}, derived {paid}"
    for name, count in used.items():
        if count > plan.cluster.gpus(name):
            yield f"{count} GPUs of class {name} used, {plan.cluster.gpus(name)} exist"


def placement_differences(plan: Plan) -> Iterator[str]:
    """Every vGPU on an existing GPU of its class, no slot twice; shares and memory fit each GPU."""
    taken: set[tuple[int, int, int]] = set()
    for pool in plan.pools:
        for slot in pool.slots():
            where = f"pool {pool.name}: {tuple(slot)}"
            if not 0 <= slot.node < plan.cluster.node_count:
                yield f"{where}: no such node"
                return
            group = plan.cluster.node_group_of(slot.node)
            if group.gpu_class != pool.gpu_class or not 0 <= slot.gpu < group.gpus:
                yield f"{where}: no such GPU of class {pool.gpu_class}"
            if tuple(slot) in taken:
                yield f"{where}: slot used twice"
            taken.add((slot.node, slot.gpu, slot.slot))
    needed = {pool.name: _memory_bytes(plan, pool) for pool in plan.pools}
    for gpu, pools in _on_gpus(plan).items():
        held = math.fsum(needed[pool.name] for pool in pools)
        yield from (f"GPU {gpu}: {text}" for text in _cut(plan, pools, held))
    yield from _slice_memory(plan, needed)


def _on_gpus(plan: Plan) -> dict[tuple[int, int], list[Pool]]:
    """Pools of every GPU in use, one per vGPU."""
    found: dict[tuple[int, int], list[Pool]] = {}
    for pool in plan.pools:
        for slot in pool.slots():
            found.setdefault((slot.node, slot.gpu), []).append(pool)
    return found


def _cut(plan: Plan, pools: list[Pool], held: float) -> Iterator[str]:
    """The cut of one GPU: shares, number, partition, bytes held.

    A pool stands once per vGPU.
    """
    gpu_class = plan.cluster.gpu_class(pools[0].gpu_class)
    if sum(pool.share for pool in pools) > WHOLE_GPU:
        yield f"its vGPUs take {sum(p.share for p in pools) / 3:.4g} % of it"
    if gpu_class.mig is not None:
        yield from _slices(gpu_class.mig, [pool.share for pool in pools])
        return
    default = max(gpu_class.vgpu_divisors, default=2)  # two parts where sizes are percents
    most = gpu_class.max_vgpus_per_gpu or default
    if len(pools) > most:
        yield f"{len(pools)} vGPUs, {most} allowed"
    percents = Counter(pool.share / 3 for pool in pools)
    if gpu_class.partitions and not any(
        percents <= Counter(map(float, cut)) for cut in gpu_class.partitions
    ):
        yield f"cut into {sorted(percents.elements())}, no such partition is listed"
    memory_gib = gpu_class.usable_gib
    if memory_gib is not None and held > memory_gib * BYTES_PER_GIB * (1 + 1e-6):
        yield f"{held / BYTES_PER_GIB:.4g} GiB needed, it has {memory_gib:g}"


def _slices(mig: Mig, shares: list[int]) -> Iterator[str]:
    """MIG slices of one card.

    There are such, they fit it together, they are of a division that is listed.
    """
    known = {profile.compute: profile for profile in mig.kinds}
    slices: list[str] = []
    for share, count in Counter(shares).items():
        cell = mig_cell(share)
        if cell is None or cell.compute not in known or cell.processes > mig.processes:
            yield f"{share_text(share)} is no part of a MIG slice of its class"
            return
        slices += [known[cell.compute].name] * math.ceil(count / cell.processes)
    ways = {frozenset[int]()}  # eighths of the memory that are taken, wherever slices begin
    for name in slices:
        profile = MIG_CARDS[mig.card][name]
        spans = [frozenset(range(s, s + profile.eighths)) for s in profile.starts]
        ways = {taken | span for taken in ways for span in spans if not taken & span}
    if not ways:
        yield f"slices {sorted(slices)} do not fit a {mig.card} together"
    if mig.geometries and not any(Counter(slices) <= Counter(cut) for cut in mig.geometries):
        yield f"cut into {sorted(slices)}, no such division is listed"


def _slice_memory(plan: Plan, needed: Mapping[str, float]) -> Iterator[str]:
    """Processes of a MIG slice have an equal part of its memory each."""
    for pool in plan.pools:
        mig = plan.cluster.gpu_class(pool.gpu_class).mig
        cell = mig_cell(pool.share)
        if mig is None or cell is None:
            continue
        room = [p.memory_gib for p in mig.kinds if p.compute == cell.compute]
        held = cell.processes * needed[pool.name]
        if not room or held > room[0] * BYTES_PER_GIB * (1 + 1e-6):
            has = f"it has {room[0]:g}" if room else "there is none"
            needs = f"a {cell.compute}g slice needs {held / BYTES_PER_GIB:.4g} GiB"
            yield f"pool {pool.name}: {needs}, {has}"


def _memory_bytes(plan: Plan, pool: Pool) -> float:
    """Bytes of one vGPU's process: every stage's weights, the largest workspace, its own."""
    process_gib = plan.cluster.gpu_class(pool.gpu_class).process_memory_gib or 0.0
    stages = plan.stages_of(plan.pools.index(pool))
    joint = {(s.blocks, s.memory) for s in stages if s.boards}  # one stage of many pipelines
    held = [(memory, True) for _, memory in joint]
    held += [(s.memory, s.load_us is None) for s in stages if not s.boards]
    known = [(memory, pinned) for memory, pinned in held if memory is not None]
    dynamic = max((memory.dynamic for memory, _ in known), default=0)
    kept = process_gib * BYTES_PER_GIB + dynamic
    kept += sum(memory.static for memory, pinned in known if pinned)
    loaded = [memory.static for memory, pinned in known if not pinned]
    if not loaded:
        return kept
    # as much as all of them take, or all that is left of its part; one of them at least
    part_gib = plan.cluster.gpu_class(pool.gpu_class).usable_gib or math.inf
    left = part_gib * BYTES_PER_GIB * pool.share / WHOLE_GPU - kept
    return kept + min(max(left, *loaded), sum(loaded))


def nic_differences(plan: Plan) -> Iterator[str]:
    """No node's uplink or downlink carries more than it can at the planned rates."""
    sent: dict[int, float] = {}
    received: dict[int, float] = {}
    for pipeline in (p for model in plan.models for p in model.pipelines):
        sizes = (
            pipeline.input_bytes_per_sample,
            *(stage.boundary_bytes_per_sample for stage in pipeline.stages[:-1]),
            sent_bytes_of(plan, pipeline),
        )
        for number, stage in enumerate(pipeline.stages):
            for loads, size in ((received, sizes[number]), (sent, sizes[number + 1])):
                if not size:
                    continue
                pool = plan.pool_of(stage)
                bits = pipeline.throughput_rps / pool.vgpus * size * BITS_PER_BYTE
                for slot in pool.slots():
                    loads[slot.node] = loads.get(slot.node, 0.0) + bits
    for what, loads in (("uplink", sent), ("downlink", received)):
        for node, bits in loads.items():
            most = plan.cluster.nic_gbps(plan.cluster.node_group_of(node).gpu_class) * 1e9
            if bits > most * (1 + RELATIVE):
                name = plan.cluster.node_name(node)
                yield f"{name}: {what} carries {bits:.4g} of {most:.4g} bit/s"
