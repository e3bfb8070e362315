"""Rates that vGPUs and links of a plan can deliver (samples/s), by its tables and cluster alone."""

from triton_backend.contract.applications import sent_bytes
from triton_backend.contract.plan import Pipeline, Plan
from triton_backend.contract.units import BITS_PER_BYTE, US_PER_S


def counts_inputs(plan: Plan) -> bool:
    """True if transfers between modules of applications count."""
    pipelines = (p for model in plan.models for p in model.pipelines)
    return bool(plan.applications) and any(p.input_bytes_per_sample for p in pipelines)


def sent_bytes_of(plan: Plan, pipeline: Pipeline) -> float:
    """Mean bytes per row that a last stage sends to modules after it, where that counts."""
    if not counts_inputs(plan):
        return 0.0
    model = next(m.name for m in plan.models if any(p is pipeline for p in m.pipelines))
    asked = [planned.application for planned in plan.applications]
    rates = {application.name: application.rate_rps or 0.0 for application in asked}
    return sent_bytes(asked, model, lambda name: plan.model(name).inputs, rates)


def stage_rate(plan: Plan, pipeline: Pipeline, number: int) -> float:
    """Samples/s of one vGPU of a stage: min(batch / latency, uplink, downlink).

    Links bound it where all vGPUs of a GPU are 1/v; for percents the node's sum is checked
    (`nic_differences`).
    """
    stage = pipeline.stages[number]
    pool = plan.pool_of(stage)
    rate = (stage.batch or pipeline.batch) * US_PER_S / max(stage.latency_us, 1)  # 0 is said apart
    if pool.divisor is None:
        return rate
    share = plan.cluster.nic_gbps(pool.gpu_class) * 1e9
    share /= plan.cluster.max_gpus_per_node(pool.gpu_class) * pool.divisor
    last = number + 1 == len(pipeline.stages)
    crossing = (
        pipeline.stages[number - 1].boundary_bytes_per_sample
        if number
        else pipeline.input_bytes_per_sample,
        sent_bytes_of(plan, pipeline) if last else stage.boundary_bytes_per_sample,
    )
    for size in crossing:
        if size:
            rate = min(rate, share / (BITS_PER_BYTE * size))
    return rate


def delivered_rps(plan: Plan, pipeline: Pipeline) -> float:
    """Requests/s of the slowest pool of a pipeline."""
    if any(stage.latency_us < 1 for stage in pipeline.stages):
        return 0.0
    return min(
        plan.pool_of(stage).vgpus * stage_rate(plan, pipeline, number)
        for number, stage in enumerate(pipeline.stages)
    )
