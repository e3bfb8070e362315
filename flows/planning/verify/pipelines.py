"""Check each pipeline: blocks, latencies, transfers, the time that it may take.

Latencies and bytes also against a profile, where one is given.
"""

import math
from collections.abc import Iterator

from flows.planning.verify.applications import by_rank, filling_us
from flows.planning.verify.capacity import counts_inputs
from flows.planning.verify.differences import compare, headroom, margin_of
from flows.planning.verify.phases import RELATIVE
from flows.planning.verify.profiled import profiled_us
from triton_backend.contract.applications import producing_models, received_bytes
from triton_backend.contract.plan import ModelPlan, Pipeline, Plan, Stage, StageMemory
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.shares import WHOLE_GPU, share_text
from triton_backend.contract.units import BITS_PER_BYTE, US_PER_S, us_to_ms
from triton_backend.contract.workload import GATHERING, TURN, ModelDemand


def pipeline_differences(
    plan: Plan, model: ModelPlan, pipeline: Pipeline, profile: ModelProfile | None
) -> Iterator[str]:
    """Blocks, latencies and transfers are right, and the SLO less margin holds them."""
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
    yield from compare("latency_us", pipeline.latency_us, latency)
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
    if counts_inputs(plan):
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


def _allowed_us(plan: Plan, model: ModelPlan, pipeline: Pipeline) -> tuple[float, float]:
    """Time that a pipeline may take, SLO or entry's budget less margin, and the gathering in it."""
    if plan.applications or by_rank(plan):
        return _allowed_line_us(plan, model, pipeline)
    demand = next(m for m in plan.workload.models if m.name == model.name)
    budget, gathering = model.slo_us, 0.0
    if pipeline.entry is not None:
        budget = next(e.budget_us for e in model.entries if e.name == pipeline.entry)
    waits, share = plan.accounting.waits, margin_of(plan, model.name)
    if all(stage.duty_cycle_us is None for stage in pipeline.stages):
        if waits == GATHERING:
            gathering = demand.gathering_us(pipeline.batch)
            share = float(plan.options.get("pipeline_margin", share))  # beside models in turns
        elif waits == TURN and pipeline.batch > 1 and (rate := _gathers_rps(plan, model, pipeline)):
            gathering = pipeline.batch / (rate * headroom(plan, model.name)) * US_PER_S
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
        (1 - margin_of(plan, demand.name)) * demand.slo_us
        for demand in plan.workload.models
        if demand.name == model.name
    ]
    if by_rank(plan):
        return min(allowed) + 1, filling_us(plan, model, pipeline)  # budgets are whole µs
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


def _against_profile(plan: Plan, stage: Stage, batch: int, profile: ModelProfile) -> Iterator[str]:
    measured = profiled_us(plan, stage, batch, profile)
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
    yield from _memory(stage, profile)
    if (
        last < profile.blocks
        and stage.boundary_bytes_per_sample != profile.boundary_bytes[last - 1]
    ):
        yield (
            f"boundary_bytes_per_sample is {stage.boundary_bytes_per_sample}, "
            f"profiled {profile.boundary_bytes[last - 1]}"
        )


def _memory(stage: Stage, profile: ModelProfile) -> Iterator[str]:
    """Stated are the weights of a stage's blocks and the largest of their workspaces."""
    first, last = stage.blocks
    static = sum(profile.block_memory_bytes[first:last])
    dynamic = max(profile.block_workspace_bytes[first:last], default=0)
    if stage.memory is not None and stage.memory != StageMemory(static=static, dynamic=dynamic):
        stated = f"{stage.memory.static} and {stage.memory.dynamic}"
        yield f"memory_bytes are {stated}, profiled {static} and {dynamic}"
