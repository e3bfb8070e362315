"""Check promised rates: of pipelines, of entries, on pools shared, on demand or in turns."""

import math
from collections.abc import Iterator

from flows.planning.verify.capacity import delivered_rps
from flows.planning.verify.differences import compare, headroom, margin_of
from flows.planning.verify.objective import worth_rps
from flows.planning.verify.phases import RELATIVE
from triton_backend.contract.plan import BYTES_PER_GIB, ModelPlan, Pipeline, Plan, Stage
from triton_backend.contract.units import US_PER_MS, US_PER_S, us_to_ms
from triton_backend.contract.workload import TURN


def rate_differences(plan: Plan) -> Iterator[str]:
    """Every pipeline promises what it can deliver, or its part of what its model is promised.

    A model is promised all that its pipelines deliver, or what the objective is worth to it (at
    least the rate to keep), which is less. Pipelines of planned rate 0 are best effort: they count
    for nothing. On a pool that several stages share, and in a plan that leaves part of every GPU's
    time free, a pipeline promises no more than it could deliver alone; that all of them fit
    together is `shared_pool_differences`.
    """
    delivered = {
        m.name: [delivered_rps(plan, p) if p.throughput_rps else 0.0 for p in m.pipelines]
        for m in plan.models
    }
    carried = {name: math.fsum(rates) for name, rates in delivered.items()}
    totals = {name: total / headroom(plan, name) for name, total in carried.items()}
    worth = worth_rps(plan, totals)
    shared = {stage.pool for stages in _sharing(plan).values() for *_, stage in stages}
    for model in plan.models:
        total = totals[model.name]
        if any(stage.pool in shared for p in model.pipelines for stage in p.stages):
            for number, pipeline in enumerate(model.pipelines):
                alone = delivered[model.name][number] / headroom(plan, model.name)
                if pipeline.throughput_rps > alone * (1 + RELATIVE):
                    where = f"{model.name}, pipeline {number}: throughput_rps"
                    yield f"{where} is {pipeline.throughput_rps!r}, its pools deliver {alone!r}"
            continue
        if math.isclose(model.throughput_rps, total, rel_tol=RELATIVE):
            promised = total
        else:
            promised = min(worth[model.name], total)
        for number, pipeline in enumerate(model.pipelines):
            what = f"{model.name}, pipeline {number}: throughput_rps"
            part = promised / carried[model.name] if total else 1.0
            rate = delivered[model.name][number] * part
            yield from compare(what, pipeline.throughput_rps, rate)


def by_entry(plan: Plan) -> bool:
    """True if rates are promised entry by entry."""
    return plan.workload.has_entries or plan.options.get("billing") == "share"


def entry_differences(plan: Plan) -> Iterator[str]:
    """Entries are those asked for, each promised its demand times the objective's level.

    A pipeline promises no more than its pools deliver to it alone; that all fit together is
    `shared_pool_differences`.
    """
    level = plan.objective.value if plan.objective.name == "throughput" else 1.0
    for model, demand in zip(plan.models, plan.workload.models, strict=True):
        asked = {e.name: (e.block, e.budget_us, e.rate_rps * level) for e in demand.entries}
        alone = _shadow_entries(plan, model)
        planned = {e.name: (e.block, e.budget_us) for e in model.entries if e.name not in alone}
        if planned != {name: given[:2] for name, given in asked.items()}:
            yield f"{model.name}: entries {planned} are not those of the workload"
            continue
        rates: dict[str | None, float] = {e.name: e.rate_rps for e in model.entries}
        wanted: dict[str | None, float] = dict.fromkeys(alone, 0.0)
        wanted |= {name: given[2] for name, given in asked.items()}
        if not demand.entries:
            rates = {None: model.throughput_rps}
            wanted = {None: demand.normaliser(plan.objective.name) * level}
        for name, rate in rates.items():
            where = f"{model.name}, entry {name}: rate_rps"
            promised = math.fsum(p.throughput_rps for p in model.pipelines if p.entry == name)
            yield from compare(where, rate, promised)
            if rate < wanted[name] * (1 - 1e-6):
                yield f"{where} is {rate!r}, {wanted[name]!r} asked"
        for number, pipeline in enumerate(model.pipelines):
            alone = delivered_rps(plan, pipeline) / headroom(plan, model.name)
            if pipeline.throughput_rps > alone * (1 + 1e-6):
                where = f"{model.name}, pipeline {number}: throughput_rps"
                yield f"{where} is {pipeline.throughput_rps!r}, its pools deliver {alone!r}"


def _shadow_entries(plan: Plan, model: ModelPlan) -> set[str]:
    """Entries without demand: only a pool that runs any tail serves them."""
    asked = {e.name for demand in plan.workload.models for e in demand.entries}
    ways: dict[str, list[bool]] = {}
    for pipeline in model.pipelines:
        anywhere = all(plan.pool_of(stage).starts_anywhere for stage in pipeline.stages)
        ways.setdefault(pipeline.entry or "", []).append(anywhere)
    return {name for name, own in ways.items() if all(own)} - asked


def shadow_differences(plan: Plan) -> Iterator[str]:
    """A pool that runs any tail holds those from every block of its one model."""
    for number, pool in enumerate(plan.pools):
        if not pool.starts_anywhere:
            continue
        rows = [row for row in plan.stage_rows() if row.pool == number]
        models = {row.model for row in rows}
        blocks = plan.models[rows[0].model].blocks
        tails = {s.blocks for s in plan.stages_of(number)}
        wanted = {(first, blocks) for first in range(blocks)}
        if len(models) > 1 or tails != wanted:
            text = f"{len(models)} models, tails from blocks {sorted(first for first, _ in tails)}"
            yield f"pool {pool.name} starts anywhere: {text}, one model of {blocks} is needed"


def _sharing(plan: Plan) -> dict[str, list[tuple[ModelPlan, Pipeline, Stage]]]:
    """Users by pool, where several name it or part of its time is free."""
    users: dict[str, list[tuple[ModelPlan, Pipeline, Stage]]] = {}
    for model, pipeline, stage, _ in plan.placed_stages():
        users.setdefault(stage.pool, []).append((model, pipeline, stage))
    free = plan.accounting.waits == TURN
    return {
        name: stages
        for name, stages in users.items()
        if free or len(stages) > 1 or any(s.duty_cycle_us is not None for *_, s in stages)
    }


def shared_pool_differences(plan: Plan) -> Iterator[str]:
    """Stages promise together at most the work of their pool's vGPUs, or the share planned."""
    share = 1.0
    if plan.accounting.waits == TURN:
        share = float(plan.options.get("utilisation", share))
    users = _sharing(plan)
    for pool in plan.pools:
        work = math.fsum(
            headroom(plan, model.name)
            * pipeline.throughput_rps
            * stage.latency_us
            / (stage.batch or pipeline.batch)
            for model, pipeline, stage in users.get(pool.name, ())
        )
        if work > share * pool.vgpus * US_PER_S * (1 + 1e-6):
            most = f"{share:g} of {pool.vgpus}" if share < 1 else str(pool.vgpus)
            yield f"pool {pool.name}: {work / US_PER_S:.4g} vGPUs of work, it has {most}"


def on_demand_differences(plan: Plan) -> Iterator[str]:
    """Loads take what the class says, and requests wait for one batch of another model at most."""
    for pool in plan.pools:
        gpu_class = plan.cluster.gpu_class(pool.gpu_class)
        here = [(model, stage) for model, _, stage, of in plan.placed_stages() if of is pool]
        for model, stage in here:
            if stage.load_us is None or stage.memory is None:
                continue
            where = f"{model.name} on pool {pool.name}"
            if gpu_class.load_gib_per_s is None:
                yield f"{where}: is loaded on demand, class {pool.gpu_class} has no load_gib_per_s"
                continue
            moved_us = stage.memory.static / (gpu_class.load_gib_per_s * BYTES_PER_GIB) * US_PER_S
            load_us = moved_us + (gpu_class.load_ms or 0.0) * US_PER_MS
            if abs(stage.load_us - load_us) > 1 + RELATIVE * load_us:
                yield f"{where}: load_us is {stage.load_us}, derived {math.ceil(load_us)}"
            others = [s.latency_us for m, s in here if m is not model]
            delay = stage.latency_us + max(others, default=0)
            allowed = (1 - margin_of(plan, model.name)) * model.slo_us
            if delay > allowed * (1 + RELATIVE):
                yield (
                    f"{where}: loaded and run behind the longest other batch it takes "
                    f"{us_to_ms(delay):.3f} ms, SLO less margin allow {us_to_ms(allowed):.3f} ms"
                )


def turn_differences(plan: Plan) -> Iterator[str]:
    """Stages with a duty cycle: all turns of a vGPU fit into it, and a request can miss one turn.

    A batch of one that has its vGPU for itself waits for no turn.
    """
    for pool in plan.pools:
        turns = [
            (model, pipeline, stage.duty_cycle_us, stage.batch or pipeline.batch, stage)
            for model, pipeline, stage, of in plan.placed_stages()
            if of is pool and stage.duty_cycle_us is not None
        ]
        longest = [max(stage.latency_us_by_batch[:batch]) for *_, batch, stage in turns]
        work = sum(longest)
        for (model, pipeline, duty, batch, _), turn_us in zip(turns, longest, strict=True):
            where = f"{model.name} on pool {pool.name}"
            if work > duty:
                yield f"{where}: turns take {work} µs of a duty cycle of {duty} µs"
            allowed = (1 - margin_of(plan, model.name)) * model.slo_us
            waits = len(turns) > 1 or batch > 1
            if waits and duty + turn_us > allowed * (1 + RELATIVE):
                yield f"{where}: duty cycle and turn take {duty + turn_us} µs of {allowed:g} µs"
            most = pool.vgpus * batch * US_PER_S / duty / headroom(plan, model.name)
            if pipeline.throughput_rps > most * (1 + RELATIVE):
                yield f"{where}: {pipeline.throughput_rps!r} requests/s, its turns carry {most!r}"
