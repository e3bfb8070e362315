"""Re-derive every number of a plan without any solver code.

Here: coverage of blocks, latencies, transfers, rates, throughput, objective, GPU counts and
placement, each from the plan's own inputs; latencies and bytes also from the profiles where given.
Not here, on purpose: anything imported from the planner's steps, so that a mistake there shows.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from flows.planning.verify.bound import bound_differences
from flows.planning.verify.parts import parts_of, whole_differences
from flows.planning.verify.phases import RELATIVE, phase_differences
from triton_backend.contract.applications import (
    Application,
    Module,
    producing_models,
    received_bytes,
    sent_bytes,
)
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import BYTES_PER_GIB, ModelPlan, Pipeline, Plan, Pool, Stage
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.shares import (
    LOADED,
    MIG_CARDS,
    SOLO,
    WHOLE_GPU,
    Mig,
    mig_cell,
    share_text,
)
from triton_backend.contract.units import BITS_PER_BYTE, US_PER_MS, US_PER_S, us_to_ms
from triton_backend.contract.workload import GATHERING, TURN, ModelDemand

_PRICES = {"throughput": "", "cost": "hourly_cost", "power": "power_w", "gpus": "", "share": ""}


def verify_plan(plan: Plan, profiles: Mapping[str, ModelProfile] | None = None) -> list[str]:
    """Differences between a plan and what follows from its inputs; empty when it holds.

    Without profiles, the plan's own latency tables and boundary bytes are taken as given.
    """
    found = [*_models_match(plan), *_options_known(plan)]
    if found:
        return found
    if plan.workload.is_mixed:
        return [*_apart(plan, profiles)]
    profiles = None if profiles is None else _expected(plan, profiles)
    for model in plan.models:
        profile = None if profiles is None else profiles.get(model.name)
        if profiles is not None and profile is None:
            found.append(f"{model.name}: no profile")
        for number, pipeline in enumerate(model.pipelines):
            where = f"{model.name}, pipeline {number}"
            found += [f"{where}: {text}" for text in _pipeline(plan, model, pipeline, profile)]
        total = math.fsum(p.throughput_rps for p in model.pipelines)
        found += _compare(f"{model.name}: throughput_rps", model.throughput_rps, total)
    if _by_entry(plan):
        found += _entries(plan)
    else:
        found += _application_rates(plan) if _by_rank(plan) else _rates(plan)
    found += _applications(plan)
    found += _shared_pools(plan)
    found += _on_demand(plan)
    found += _shadows(plan)
    found += _turns(plan)
    found += _interference(plan)
    found += _objective(plan)
    found += _gpus(plan)
    found += _placement(plan)
    found += _nics(plan)
    found += bound_differences(plan, profiles)
    found += phase_differences(plan)
    return found


def _expected(plan: Plan, profiles: Mapping[str, ModelProfile]) -> dict[str, ModelProfile]:
    """Profiles with the latencies that the plan was made for."""
    factor = float(plan.options.get("profile_factor", 1.0))
    return {name: each.slower(factor) for name, each in profiles.items()}


def _apart(plan: Plan, profiles: Mapping[str, ModelProfile] | None) -> Iterator[str]:
    """Every part by itself, and what all of them hold together."""
    try:
        parts = parts_of(plan)
    except InputError as error:
        yield str(error)
        return
    yield from whole_differences(plan, parts)
    for part in parts:
        yield from verify_plan(part, profiles)
    yield from _gpus(plan)
    yield from _placement(plan)
    yield from _nics(plan)


def _compare(what: str, stated: float, derived: float) -> list[str]:
    if math.isclose(stated, derived, rel_tol=RELATIVE, abs_tol=1e-12):
        return []
    return [f"{what} is {stated!r}, derived {derived!r}"]


def _models_match(plan: Plan) -> Iterator[str]:
    if plan.applications or plan.workload.applications:
        yield from _lines_match(plan)
        return
    planned = [(m.name, m.slo_us) for m in plan.models]
    asked = [(m.name, m.slo_us) for m in plan.workload.models]
    if planned != asked:
        yield f"models and SLOs {planned} are not those of the workload {asked}"


def _lines_match(plan: Plan) -> Iterator[str]:
    """Applications are those asked for; every used model is planned, and no other."""
    asked = {a.name: a for a in plan.workload.applications}
    planned = {a.name: a.application for a in plan.applications}
    if list(asked) != list(planned):
        yield f"applications {list(planned)} are not those of the workload {list(asked)}"
        return
    for name, application in planned.items():
        mine = (application.slo_us, application.outputs, *map(_shape, application.modules))
        theirs = (asked[name].slo_us, asked[name].outputs, *map(_shape, asked[name].modules))
        if mine != theirs:
            yield f"application {name}: SLO, outputs or modules are not those of the workload"
    alone = {model.name: model.slo_us for model in plan.workload.models}
    used = {*alone, *(m.model for a in planned.values() for m in a.modules)}
    if used != {model.name for model in plan.models}:
        yield f"models {[m.name for m in plan.models]} are not those used, {sorted(used)}"
        return
    for model in plan.models:
        most = [alone[model.name]] if model.name in alone else []
        for planned_app in plan.applications:
            kept = 1 - _margin(plan, planned_app.name)
            most += [
                math.floor(planned_app.budgets_us[module.name] / kept + RELATIVE)
                for module in planned_app.application.modules
                if module.model == model.name
            ]
        if model.slo_us != min(most):
            yield f"{model.name}: slo_us is {model.slo_us}, its users allow {min(most)}"


def _shape(module: Module) -> tuple[object, ...]:
    rows = (module.rows_per_request, module.max_rows, module.max_rows_given, module.optional)
    size = (module.size_of, module.size_by)
    return (module.name, module.model, module.parents, rows, dict(module.inputs), size)


def _applications(plan: Plan) -> Iterator[str]:
    """Budgets on every path keep the SLO less margin; applications are promised what is planned."""
    for planned in plan.applications:
        application = planned.application
        limit = (1 - _margin(plan, planned.name)) * application.slo_us
        way = _longest_way(application, planned.budgets_us)
        if way > limit * (1 + RELATIVE):
            text = f"budgets sum up to {us_to_ms(way):.3f} ms, SLO less margin is"
            yield f"application {planned.name}: {text} {us_to_ms(limit):.3f} ms"
        wanted = next(a for a in plan.workload.applications if a.name == planned.name)
        level = plan.objective.value if plan.objective.name == "throughput" else 1.0
        yield from _compare(
            f"application {planned.name}: rate_rps",
            application.rate_rps or 0.0,
            wanted.normaliser(plan.objective.name) * level,
        )


def _longest_way(application: Application, budgets_us: Mapping[str, int]) -> int:
    """The greatest sum of budgets over all paths, each walked for itself."""
    modules = {module.name: module for module in application.modules}

    def up_to(name: str) -> int:
        parents = modules[name].parents
        return budgets_us[name] + max((up_to(parent) for parent in parents), default=0)

    return max(map(up_to, modules))


def _by_rank(plan: Plan) -> bool:
    """True if batches are gathered at rates that follow from what is planned, not stated ones."""
    return plan.accounting.rule is not None


def _application_rates(plan: Plan) -> Iterator[str]:
    """Clients' rows are served by what is paid, in the order of ranks, and gather in time."""
    for model in plan.models:
        served = math.fsum(pipeline.throughput_rps for pipeline in model.pipelines)
        paid = 0.0
        for number, pipeline in enumerate(model.pipelines):
            where = f"{model.name}, pipeline {number}"
            if len(pipeline.stages) != 1 or pipeline.occupied_vgpus is None:
                yield f"{where}: one stage and its occupied_vgpus are needed"
                return
            held = plan.pool_of(pipeline.stages[0]).vgpus
            if pipeline.occupied_vgpus > held * (1 + 1e-6):
                yield f"{where}: occupies {pipeline.occupied_vgpus} vGPUs, its pool has {held}"
            rate = pipeline.occupied_vgpus * _stage_rate(plan, pipeline, 0)
            if pipeline.throughput_rps > rate * (1 + 1e-6):
                yield f"{where}: throughput_rps is {pipeline.throughput_rps}, paid are {rate}"
            paid += rate
        served *= _headroom(plan)
        if paid < served * (1 - 1e-6):
            yield f"{model.name}: {served} rows/s promised, {paid} paid"


def _filling_us(plan: Plan, model: ModelPlan, pipeline: Pipeline) -> float:
    """Time in which a batch fills, by the accounting of the plan (piccolo, section III-B).

    tc: at the rate of all that is ranked no better; ranks go by price per row/s, then latency, then
    batch, full machines before partial ones. dt and 2d: at the machine's own rate.
    """
    gathering = plan.accounting.rule
    stage = pipeline.stages[0]
    share = plan.pool_of(stage).share / WHOLE_GPU

    def rank(other: Pipeline) -> tuple[float, ...]:
        pool = plan.pool_of(other.stages[0])
        price = plan.cluster.gpu_class(pool.gpu_class).hourly_cost or 0.0
        rate = _stage_rate(plan, other, 0)
        unit = price * pool.share / WHOLE_GPU / rate
        return (float(f"{unit:.9g}"), other.latency_us, other.batch, -(other.occupied_vgpus or 0))

    def paid(other: Pipeline) -> float:
        return (other.occupied_vgpus or 0.0) * _stage_rate(plan, other, 0)

    if gathering == "tc-even":
        rate = math.fsum(map(paid, model.pipelines))
    elif gathering in ("tc-tail", "tc-padded"):
        rate = math.fsum(paid(p) for p in model.pipelines if rank(p) >= rank(pipeline))
    else:
        rate = min(paid(pipeline), _stage_rate(plan, pipeline, 0) / share)
    filling = pipeline.batch * US_PER_S / rate
    return max(stage.latency_us, filling) if gathering == "2d" else filling


def _options_known(plan: Plan) -> Iterator[str]:
    for name in ("slo_margin", "max_partitions", "utilisation"):
        if not isinstance(plan.options.get(name, 0), int | float):
            yield f"options: {name} is {plan.options.get(name)!r}, not a number"
    for name in ("headroom_factor", "profile_factor"):
        factor = plan.options.get(name, 1.0)
        if not isinstance(factor, int | float) or not 1 <= factor < math.inf:
            yield f"options: {name} is {factor!r}, no number of 1 or more"
    if plan.objective.name not in _PRICES:
        yield f"objective: {plan.objective.name!r} is none of {', '.join(_PRICES)}"


def _headroom(plan: Plan) -> float:
    """Times what the plan promises that its pools carry."""
    return float(plan.options.get("headroom_factor", 1.0))


def _margin(plan: Plan, model: str) -> float:
    """Part of the SLO that a model keeps back; 0 in a plan that states none."""
    by_model: Mapping[str, float] = plan.options.get("slo_margins", {})
    return float(by_model.get(model, plan.options.get("slo_margin", 0.0)))


def _pipeline(
    plan: Plan, model: ModelPlan, pipeline: Pipeline, profile: ModelProfile | None
) -> Iterator[str]:
    stages = pipeline.stages
    most = plan.options.get("max_partitions", len(stages))
    if len(stages) > most:
        yield f"{len(stages)} stages, at most {most} allowed"
    for number, stage in enumerate(stages):
        following = stages[number + 1] if number + 1 < len(stages) else None
        for text in _stage(plan, pipeline, (stage, following)):
            yield f"stage {number}: {text}"
        if profile is not None:
            for text in _against_profile(plan, stage, stage.batch or pipeline.batch, profile):
                yield f"stage {number}: {text}"
    if profile is not None and stages[-1].blocks[1] != profile.blocks:
        yield f"covers {stages[-1].blocks[1]} blocks of {profile.blocks}"
    latency = sum(s.latency_us + s.transfer_us for s in stages) + pipeline.input_transfer_us
    yield from _compare("latency_us", pipeline.latency_us, latency)
    yield from _input(plan, model, pipeline)
    allowed, gathering = _allowed_us(plan, model, pipeline)
    if latency + gathering > allowed * (1 + RELATIVE):
        yield (
            f"takes {us_to_ms(latency):.3f} ms and gathers {us_to_ms(gathering):.3f} ms, "
            f"SLO less margin allow {us_to_ms(allowed):.3f} ms"
        )
    if any(s.latency_us < 1 for s in stages):
        yield "a stage takes no time"


def _input(plan: Plan, model: ModelPlan, pipeline: Pipeline) -> Iterator[str]:
    """Transfers from modules before, in a plan that counts them; none of them in any other."""
    size = moved_us = 0
    if _counts_inputs(plan):
        asked = [planned.application for planned in plan.applications]
        size = received_bytes(asked, model.name, model.inputs)
        producers = producing_models(asked, model.name)
        ends = [p.stages[-1] for m in plan.models if m.name in producers for p in m.pipelines]
        sides = [plan.pool_of(stage).gpu_class for stage in (*ends, pipeline.stages[0])]
        slowest = min(map(plan.cluster.nic_gbps, sides))
        moved_us = math.ceil(pipeline.batch * size * BITS_PER_BYTE / (slowest * 1e3) - 1e-6)
    if pipeline.input_bytes_per_sample != size:
        yield f"input_bytes_per_sample is {pipeline.input_bytes_per_sample}, derived {size}"
    if pipeline.input_transfer_us != moved_us:
        yield f"input_transfer_us is {pipeline.input_transfer_us}, derived {moved_us}"


def _counts_inputs(plan: Plan) -> bool:
    """True if transfers between modules of applications count."""
    pipelines = (p for model in plan.models for p in model.pipelines)
    return bool(plan.applications) and any(p.input_bytes_per_sample for p in pipelines)


def _sent_bytes(plan: Plan, pipeline: Pipeline) -> float:
    """Mean bytes per row that a last stage sends to modules after it, where that counts."""
    if not _counts_inputs(plan):
        return 0.0
    model = next(m.name for m in plan.models if any(p is pipeline for p in m.pipelines))
    asked = [planned.application for planned in plan.applications]
    rates = {application.name: application.rate_rps or 0.0 for application in asked}
    return sent_bytes(asked, model, lambda name: plan.model(name).inputs, rates)


def _allowed_us(plan: Plan, model: ModelPlan, pipeline: Pipeline) -> tuple[float, float]:
    """Time that a pipeline may take, SLO or entry's budget less margin, and the gathering in it."""
    if plan.applications or _by_rank(plan):
        return _allowed_line_us(plan, model, pipeline)
    demand = next(m for m in plan.workload.models if m.name == model.name)
    budget, gathering = model.slo_us, 0.0
    if pipeline.entry is not None:
        budget = next(e.budget_us for e in model.entries if e.name == pipeline.entry)
    waits, share = plan.accounting.waits, _margin(plan, model.name)
    if all(stage.duty_cycle_us is None for stage in pipeline.stages):
        if waits == GATHERING:
            gathering = demand.gathering_us(pipeline.batch)
            share = float(plan.options.get("pipeline_margin", share))  # beside models in turns
        elif waits == TURN and pipeline.batch > 1 and (rate := _gathers_rps(plan, model, pipeline)):
            gathering = pipeline.batch / (rate * _headroom(plan)) * US_PER_S
    if plan.options.get("overflow") and not pipeline.throughput_rps:
        share /= 4  # overflow promises nothing and leaves a quarter of the margin free
    return (1 - share) * budget, gathering


def _gathers_rps(plan: Plan, model: ModelPlan, pipeline: Pipeline) -> float:
    """Rate at which batches gather; of a variant, that at which it alone fills the time of all."""
    variant_of = plan.workload.variant_of
    name = variant_of.get(model.name, model.name)
    if name not in plan.workload.variants:
        return pipeline.throughput_rps
    stage = pipeline.stages[0]
    time_us = math.fsum(
        p.throughput_rps * p.stages[0].latency_us / p.batch
        for other in plan.models
        if variant_of.get(other.name, other.name) == name
        for p in other.pipelines
        if p.stages[0].pool == stage.pool
    )
    return time_us / (stage.latency_us / pipeline.batch)


def _allowed_line_us(plan: Plan, model: ModelPlan, pipeline: Pipeline) -> tuple[float, float]:
    """The same for a line: the least of its users' budgets, and the gathering of the accounting."""
    allowed = [
        float(planned.budgets_us[module.name])
        for planned in plan.applications
        for module in planned.application.modules
        if module.model == model.name
    ]
    allowed += [
        (1 - _margin(plan, demand.name)) * demand.slo_us
        for demand in plan.workload.models
        if demand.name == model.name
    ]
    if _by_rank(plan):
        return min(allowed) + 1, _filling_us(plan, model, pipeline)  # budgets are whole µs
    users = [m for m in plan.workload.models if m.name == model.name]
    stated = [user.batch_building_rate_rps for user in users]
    for application in plan.workload.applications:
        stated += [m.batch_building_rate_rps for m in application.modules if m.model == model.name]
    rates = [rate for rate in stated if rate is not None]
    line = ModelDemand(
        name=model.name, slo_us=model.slo_us, batch_building_rate_rps=sum(rates) or None
    )
    return min(allowed), line.gathering_us(pipeline.batch)


def _stage(plan: Plan, pipeline: Pipeline, neighbours: tuple[Stage, Stage | None]) -> Iterator[str]:
    stage, following = neighbours
    pool = plan.pool_of(stage)
    offered = plan.cluster.gpu_class(pool.gpu_class).shares
    if pool.share not in (WHOLE_GPU, *offered):
        yield f"a vGPU of {share_text(pool.share)} is not offered by {pool.gpu_class}"
    batch = stage.batch or pipeline.batch
    if stage.latency_us != stage.latency_us_by_batch[batch - 1]:
        yield (
            f"latency_us is {stage.latency_us}, its table says "
            f"{stage.latency_us_by_batch[batch - 1]}"
        )
    moved = 0
    if following is not None:
        slower = min(
            plan.cluster.nic_gbps(pool.gpu_class),
            plan.cluster.nic_gbps(plan.pool_of(following).gpu_class),
        )
        bits = batch * stage.boundary_bytes_per_sample * BITS_PER_BYTE
        moved = math.ceil(bits / (slower * 1e3) - 1e-6)
    if stage.transfer_us != moved:
        yield f"transfer_us is {stage.transfer_us}, derived {moved}"


def profiled_ratios(plan: Plan, profiles: Mapping[str, ModelProfile]) -> dict[str, float]:
    """Latencies by profiles, over those in the plan, at the planned batch, by pool.

    Of the stages of a pool the ratio that is furthest from 1. Stages whose batches were not
    measured count for nothing; a pool may have none that were.
    """
    found: dict[str, float] = {}
    profiles = _expected(plan, profiles)
    for model, pipeline, stage, pool in plan.placed_stages():
        batch = stage.batch or pipeline.batch
        measured = _profiled(plan, stage, batch, profiles[model.name])
        if measured is not None:
            latency_us, factor = measured
            ratio = latency_us[batch - 1] * factor / stage.latency_us_by_batch[batch - 1]
            found[pool.name] = max(found.get(pool.name, 1.0), ratio, key=lambda one: abs(one - 1))
    return found


def _profiled(
    plan: Plan, stage: Stage, batch: int, profile: ModelProfile
) -> tuple[list[int], float] | None:
    """Latencies of a stage alone, of batches of 1, 2, ..., and the factor of its neighbours.

    With the load of one that is loaded on demand. None if batches were not measured.
    """
    pool = plan.pool_of(stage)
    # In turns, and where parts differ, neighbours count by the factor; else they were busy copies.
    unequal = not plan.cluster.gpu_class(pool.gpu_class).vgpu_divisors
    alone = unequal or stage.duty_cycle_us is not None
    measured = profile.table(pool.gpu_class, pool.share, SOLO if alone else LOADED)
    batches = len(stage.latency_us_by_batch)
    if measured is None or measured.largest < max(batch, batches):
        return None
    factor = 1.0
    if pool.interference is not None:
        at = plan.stages_of(plan.pools.index(pool)).index(stage)
        factor = pool.interference.seats[at].factor
    first, last = stage.blocks
    sums = (math.fsum(map(float, measured.latency_us[first:last, b])) for b in range(batches))
    load_us = stage.load_us or 0
    return [math.ceil(latency_us - 1e-6) + load_us for latency_us in sums], factor


def _against_profile(plan: Plan, stage: Stage, batch: int, profile: ModelProfile) -> Iterator[str]:
    measured = _profiled(plan, stage, batch, profile)
    if measured is None:
        pool = plan.pool_of(stage)
        share = share_text(pool.share)
        yield f"batch {batch} was not measured on {share} of {pool.gpu_class}"
        return
    latency_us, factor = measured
    last = stage.blocks[1]
    for b, (stated, profiled) in enumerate(
        zip(stage.latency_us_by_batch, latency_us, strict=True), start=1
    ):
        if stated != math.ceil(profiled * factor - 1e-6):
            times = "" if factor == 1 else f" times {factor:.6g}"
            yield f"latency at batch {b} is {stated} µs, profiled {profiled} µs{times}"
            return
    if (
        last < profile.blocks
        and stage.boundary_bytes_per_sample != profile.boundary_bytes[last - 1]
    ):
        yield (
            f"boundary_bytes_per_sample is {stage.boundary_bytes_per_sample}, "
            f"profiled {profile.boundary_bytes[last - 1]}"
        )


def _interference(plan: Plan) -> Iterator[str]:
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
                yield from _compare(f"{where}, felt on GPU {gpu}", own.felt, others)
            elif own.felt < others - RELATIVE:  # it is planned for the most that may be beside it
                yield f"{where}, felt on GPU {gpu}: {own.felt:g}, others press {others:g}"
            pressure = max(seat.pressure for seat in own.seats)
            yield from _compare(f"{where}, pressure", own.pressure, pressure)
            for seat in own.seats:
                factor = 1.0
                felt = own.felt if open_seat else others
                if (len(pools) > 1 or (open_seat and felt)) and not blind:
                    factor = max(1.0, seat.susceptibility + felt) * own.inflation
                yield from _compare(f"{where}, factor", seat.factor, factor)


def _stage_rate(plan: Plan, pipeline: Pipeline, number: int) -> float:
    """Samples/s of one vGPU of a stage: min(batch / latency, uplink, downlink).

    Links bound it where all vGPUs of a GPU are 1/v; for percents the node's sum is checked
    (`_nics`).
    """
    stage = pipeline.stages[number]
    pool = plan.pool_of(stage)
    rate = (stage.batch or pipeline.batch) * US_PER_S / stage.latency_us
    if pool.divisor is None:
        return rate
    share = plan.cluster.nic_gbps(pool.gpu_class) * 1e9
    share /= plan.cluster.max_gpus_per_node(pool.gpu_class) * pool.divisor
    last = number + 1 == len(pipeline.stages)
    crossing = (
        pipeline.stages[number - 1].boundary_bytes_per_sample
        if number
        else pipeline.input_bytes_per_sample,
        _sent_bytes(plan, pipeline) if last else stage.boundary_bytes_per_sample,
    )
    for size in crossing:
        if size:
            rate = min(rate, share / (BITS_PER_BYTE * size))
    return rate


def _rates(plan: Plan) -> Iterator[str]:
    """Every pipeline promises what it can deliver, or its part of what its model is promised.

    A model is promised all that its pipelines deliver, or what the objective is worth to it (at
    least the rate to keep), which is less. Pipelines of planned rate 0 are best effort: they count
    for nothing. On a pool that several stages share, and in a plan that leaves part of every GPU's
    time free, a pipeline promises no more than it could deliver alone; that all of them fit
    together is `_shared_pools`.
    """
    delivered = {
        m.name: [_delivered(plan, p) if p.throughput_rps else 0.0 for p in m.pipelines]
        for m in plan.models
    }
    carried = {name: math.fsum(rates) for name, rates in delivered.items()}
    totals = {name: total / _headroom(plan) for name, total in carried.items()}
    worth = _worth(plan, totals)
    shared = {stage.pool for stages in _sharing(plan).values() for stage, _ in stages}
    for model in plan.models:
        total = totals[model.name]
        if any(stage.pool in shared for p in model.pipelines for stage in p.stages):
            for number, pipeline in enumerate(model.pipelines):
                alone = delivered[model.name][number] / _headroom(plan)
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
            yield from _compare(what, pipeline.throughput_rps, rate)


def _by_entry(plan: Plan) -> bool:
    """True if rates are promised entry by entry."""
    return plan.workload.has_entries or plan.options.get("billing") == "share"


def _entries(plan: Plan) -> Iterator[str]:
    """Entries are those asked for, each promised its demand times the objective's level.

    A pipeline promises no more than its pools deliver to it alone; that all fit together is
    `_shared_pools`.
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
            yield from _compare(where, rate, promised)
            if rate < wanted[name] * (1 - 1e-6):
                yield f"{where} is {rate!r}, {wanted[name]!r} asked"
        for number, pipeline in enumerate(model.pipelines):
            alone = _delivered(plan, pipeline) / _headroom(plan)
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


def _shadows(plan: Plan) -> Iterator[str]:
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


def _sharing(plan: Plan) -> dict[str, list[tuple[Stage, Pipeline]]]:
    """Stages and pipelines by pool, where several name it or part of its time is free."""
    users: dict[str, list[tuple[Stage, Pipeline]]] = {}
    for _, pipeline, stage, _ in plan.placed_stages():
        users.setdefault(stage.pool, []).append((stage, pipeline))
    free = plan.accounting.waits == TURN
    return {
        name: stages
        for name, stages in users.items()
        if free or len(stages) > 1 or any(s.duty_cycle_us is not None for s, _ in stages)
    }


def _shared_pools(plan: Plan) -> Iterator[str]:
    """Stages promise together at most the work of their pool's vGPUs, or the share planned."""
    share = 1.0
    if plan.accounting.waits == TURN:
        share = float(plan.options.get("utilisation", share))
    share /= _headroom(plan)
    users = _sharing(plan)
    for pool in plan.pools:
        work = math.fsum(
            pipeline.throughput_rps * stage.latency_us / (stage.batch or pipeline.batch)
            for stage, pipeline in users.get(pool.name, ())
        )
        if work > share * pool.vgpus * US_PER_S * (1 + 1e-6):
            most = f"{share:g} of {pool.vgpus}" if share < 1 else str(pool.vgpus)
            yield f"pool {pool.name}: {work / US_PER_S:.4g} vGPUs of work, it has {most}"


def _on_demand(plan: Plan) -> Iterator[str]:
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
            allowed = (1 - _margin(plan, model.name)) * model.slo_us
            if delay > allowed * (1 + RELATIVE):
                yield (
                    f"{where}: loaded and run behind the longest other batch it takes "
                    f"{us_to_ms(delay):.3f} ms, SLO less margin allow {us_to_ms(allowed):.3f} ms"
                )


def _turns(plan: Plan) -> Iterator[str]:
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
            allowed = (1 - _margin(plan, model.name)) * model.slo_us
            waits = len(turns) > 1 or batch > 1
            if waits and duty + turn_us > allowed * (1 + RELATIVE):
                yield f"{where}: duty cycle and turn take {duty + turn_us} µs of {allowed:g} µs"
            most = pool.vgpus * batch * US_PER_S / duty / _headroom(plan)
            if pipeline.throughput_rps > most * (1 + RELATIVE):
                yield f"{where}: {pipeline.throughput_rps!r} requests/s, its turns carry {most!r}"


def _delivered(plan: Plan, pipeline: Pipeline) -> float:
    """Requests/s of the slowest pool of a pipeline."""
    if any(stage.latency_us < 1 for stage in pipeline.stages):
        return 0.0
    return min(
        plan.pool_of(stage).vgpus * _stage_rate(plan, pipeline, number)
        for number, stage in enumerate(pipeline.stages)
    )


def _worth(plan: Plan, delivered: Mapping[str, float]) -> dict[str, float]:
    """Requests/s that the objective is worth to every model, at least the rate it keeps."""
    normaliser = _needed(plan)
    level = 1.0
    if plan.objective.name == "throughput":
        level = min(delivered[name] / normaliser[name] for name in delivered if normaliser[name])
    least: Mapping[str, float] = plan.options.get("minimum_rps", {})
    return {name: max(normaliser[name] * level, least.get(name, 0.0)) for name in delivered}


def _objective(plan: Plan) -> Iterator[str]:
    objective = plan.objective
    if objective.name == "throughput":
        needed = _needed(plan)
        value = min(m.throughput_rps / needed[m.name] for m in plan.models if needed[m.name])
        above = objective.upper_bound - objective.value
    else:
        yield from _rates_met(plan)
        value = _paid(plan, objective.name)
        above = objective.value - objective.upper_bound
    yield from _compare("objective value", objective.value, value)
    if above < -RELATIVE * abs(objective.value):
        yield f"bound {objective.upper_bound!r} contradicts the value {objective.value!r}"
    if objective.value > 0:
        yield from _compare("gap", objective.gap, max(0.0, above) / objective.value)
    known = {m.name for m in plan.models}
    for name, rate in plan.options.get("minimum_rps", {}).items():
        if name not in known:
            yield f"minimum_rps names {name!r}, which is not planned"
            continue
        if plan.model(name).throughput_rps < rate * (1 - RELATIVE):
            yield f"{name}: {plan.model(name).throughput_rps} requests/s, at least {rate} asked"


def _price(plan: Plan, gpu_class: str, objective: str) -> float:
    """The cost of one GPU of a class in a minimised objective."""
    if objective == "gpus":
        return 1.0
    return getattr(plan.cluster.gpu_class(gpu_class), _PRICES[objective]) or 0.0


def _needed(plan: Plan) -> dict[str, float]:
    """Requests/s (rows/s) per unit of the objective that all users ask of each model."""
    needed = dict.fromkeys((model.name for model in plan.models), 0.0)
    for demand in plan.workload.models:
        needed[demand.name] += demand.normaliser(plan.objective.name)
    for application in plan.workload.applications:
        for module in application.modules:
            rate = application.normaliser(plan.objective.name)
            needed[module.model] += rate * module.rows_per_request
    return needed


def _paid(plan: Plan, objective: str) -> float:
    """Price of the GPUs in use, of the shares held, or of the occupied part of vGPUs.

    Percents held.
    """
    if objective == "share":
        return math.fsum(pool.share / WHOLE_GPU * 100 * pool.vgpus for pool in plan.pools)
    if objective != "gpus" and plan.options.get("billing") == "share":
        return math.fsum(
            _price(plan, pool.gpu_class, objective) * pool.share / WHOLE_GPU * pool.vgpus
            for pool in plan.pools
        )
    if plan.options.get("billing", "gpu") == "occupancy":
        return math.fsum(
            (pipeline.occupied_vgpus or 0.0)
            * _price(plan, pool.gpu_class, objective)
            * pool.share
            / WHOLE_GPU
            for _, pipeline, _, pool in plan.placed_stages()
        )
    return math.fsum(
        count * _price(plan, name, objective) for name, count in plan.gpus_used.items()
    )


def _rates_met(plan: Plan) -> Iterator[str]:
    for name, asked in _needed(plan).items():
        served = plan.model(name).throughput_rps
        if served < asked * (1 - RELATIVE):
            yield f"{name}: {served} requests/s, {asked} asked"


def _gpus(plan: Plan) -> Iterator[str]:
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


def _placement(plan: Plan) -> Iterator[str]:
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


def _nics(plan: Plan) -> Iterator[str]:
    """No node's uplink or downlink carries more than it can at the planned rates."""
    sent: dict[int, float] = {}
    received: dict[int, float] = {}
    for pipeline in (p for model in plan.models for p in model.pipelines):
        sizes = (
            pipeline.input_bytes_per_sample,
            *(stage.boundary_bytes_per_sample for stage in pipeline.stages[:-1]),
            _sent_bytes(plan, pipeline),
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
