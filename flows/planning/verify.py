"""Re-derive every number of a plan without any solver code.

Here: coverage of blocks, latencies, transfers, rates, throughput, objective, GPU counts and
placement, each from the plan's own inputs; latencies and bytes also from the profiles where given.
Not here, on purpose: anything imported from the planner's steps, so that a mistake there shows.
"""

import math
from collections.abc import Iterator, Mapping

from triton_backend.contract.plan import ModelPlan, Pipeline, Plan, Stage
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.units import us_to_ms

_RELATIVE = 1e-9
_BITS = 8
_MICROSECONDS = 1e6
_PRICES = {"throughput": "", "cost": "hourly_cost", "power": "power_w"}


def verify_plan(plan: Plan, profiles: Mapping[str, ModelProfile] | None = None) -> list[str]:
    """Differences between a plan and what follows from its inputs; empty when it holds.

    Without profiles, the plan's own latency tables and boundary bytes are taken as given.
    """
    found = [*_models_match(plan), *_options_known(plan)]
    if found:
        return found
    for model in plan.models:
        profile = None if profiles is None else profiles.get(model.name)
        if profiles is not None and profile is None:
            found.append(f"{model.name}: no profile")
        for number, pipeline in enumerate(model.pipelines):
            where = f"{model.name}, pipeline {number}"
            found += [f"{where}: {text}" for text in _pipeline(plan, model, pipeline, profile)]
        total = math.fsum(p.throughput_rps for p in model.pipelines)
        found += _compare(f"{model.name}: throughput_rps", model.throughput_rps, total)
    found += _rates(plan)
    found += _objective(plan)
    found += _gpus(plan)
    found += _placement(plan)
    found += _nics(plan)
    return found


def _compare(what: str, stated: float, derived: float) -> list[str]:
    if math.isclose(stated, derived, rel_tol=_RELATIVE, abs_tol=1e-12):
        return []
    return [f"{what} is {stated!r}, derived {derived!r}"]


def _models_match(plan: Plan) -> Iterator[str]:
    planned = [(m.name, m.slo_us) for m in plan.models]
    asked = [(m.name, m.slo_us) for m in plan.workload.models]
    if planned != asked:
        yield f"models and SLOs {planned} are not those of the workload {asked}"


def _options_known(plan: Plan) -> Iterator[str]:
    for name in ("slo_margin", "max_partitions"):
        if not isinstance(plan.options.get(name), int | float):
            yield f"options: {name} is {plan.options.get(name)!r}, not a number"
    if plan.objective.name not in _PRICES:
        yield f"objective: {plan.objective.name!r} is none of {', '.join(_PRICES)}"


def _margin(plan: Plan, model: str) -> float:
    by_model: Mapping[str, float] = plan.options.get("slo_margins", {})
    return float(by_model.get(model, plan.options["slo_margin"]))


def _pipeline(
    plan: Plan, model: ModelPlan, pipeline: Pipeline, profile: ModelProfile | None
) -> Iterator[str]:
    stages = pipeline.stages
    most = plan.options["max_partitions"]
    if len(stages) > most:
        yield f"{len(stages)} stages, at most {most} allowed"
    for number, stage in enumerate(stages):
        following = stages[number + 1] if number + 1 < len(stages) else None
        for text in _stage(plan, pipeline, (stage, following)):
            yield f"stage {number}: {text}"
        if profile is not None:
            for text in _against_profile(stage, pipeline.batch, profile):
                yield f"stage {number}: {text}"
    if profile is not None and stages[-1].blocks[1] != profile.blocks:
        yield f"covers {stages[-1].blocks[1]} blocks of {profile.blocks}"
    latency = sum(s.latency_us + s.transfer_us for s in stages)
    yield from _compare("latency_us", pipeline.latency_us, latency)
    demand = next(m for m in plan.workload.models if m.name == model.name)
    gathering = demand.gathering_us(pipeline.batch)
    share = _margin(plan, model.name)
    if plan.options.get("overflow") and not pipeline.throughput_rps:
        share /= 4  # overflow promises nothing and leaves a quarter of the margin free
    allowed = (1 - share) * model.slo_us
    if latency + gathering > allowed * (1 + _RELATIVE):
        yield (
            f"takes {us_to_ms(latency):.3f} ms and gathers {us_to_ms(gathering):.3f} ms, "
            f"SLO less margin allow {us_to_ms(allowed):.3f} ms"
        )
    if any(s.latency_us < 1 for s in stages):
        yield "a stage takes no time"


def _stage(plan: Plan, pipeline: Pipeline, neighbours: tuple[Stage, Stage | None]) -> Iterator[str]:
    stage, following = neighbours
    gpu_class = plan.cluster.gpu_class(stage.gpu_class)
    if stage.vgpu_divisor not in (1, *gpu_class.vgpu_divisors):
        yield f"vGPU divisor {stage.vgpu_divisor} is not offered by {stage.gpu_class}"
    if stage.latency_us != stage.latency_us_by_batch[pipeline.batch - 1]:
        yield (
            f"latency_us is {stage.latency_us}, its table says "
            f"{stage.latency_us_by_batch[pipeline.batch - 1]}"
        )
    moved = 0
    if following is not None:
        slower = min(
            plan.cluster.nic_gbps(stage.gpu_class), plan.cluster.nic_gbps(following.gpu_class)
        )
        bits = pipeline.batch * stage.boundary_bytes_per_sample * _BITS
        moved = math.ceil(bits / (slower * 1e3) - 1e-6)
    if stage.transfer_us != moved:
        yield f"transfer_us is {stage.transfer_us}, derived {moved}"


def _against_profile(stage: Stage, batch: int, profile: ModelProfile) -> Iterator[str]:
    if profile.max_batch(stage.gpu_class, stage.vgpu_divisor) < batch:
        yield f"batch {batch} was not measured on {stage.gpu_class}/{stage.vgpu_divisor}"
        return
    table = profile.latency_us[stage.gpu_class, stage.vgpu_divisor]
    first, last = stage.blocks
    for b, stated in enumerate(stage.latency_us_by_batch, start=1):
        derived = math.ceil(math.fsum(float(v) for v in table[first:last, b - 1]) - 1e-6)
        if stated != derived:
            yield f"latency at batch {b} is {stated} µs, profiled {derived} µs"
            return
    if (
        last < profile.blocks
        and stage.boundary_bytes_per_sample != profile.boundary_bytes[last - 1]
    ):
        yield (
            f"boundary_bytes_per_sample is {stage.boundary_bytes_per_sample}, "
            f"profiled {profile.boundary_bytes[last - 1]}"
        )


def _stage_rate(plan: Plan, pipeline: Pipeline, number: int) -> float:
    """Samples/s of one vGPU of a stage: min(batch / latency, uplink, downlink)."""
    stage = pipeline.stages[number]
    share = plan.cluster.nic_gbps(stage.gpu_class) * 1e9
    share /= plan.cluster.max_gpus_per_node(stage.gpu_class) * stage.vgpu_divisor
    rate = pipeline.batch * _MICROSECONDS / stage.latency_us
    crossing: list[int] = []
    if number:
        crossing.append(pipeline.stages[number - 1].boundary_bytes_per_sample)
    if number + 1 < len(pipeline.stages):
        crossing.append(stage.boundary_bytes_per_sample)
    for size in crossing:
        if size:
            rate = min(rate, share / (_BITS * size))
    return rate


def _rates(plan: Plan) -> Iterator[str]:
    """Every pipeline promises what it can deliver, or its part of what its model is promised.

    A model is promised all that its pipelines deliver, or what the objective is worth to it (at least
    the rate to keep), which is less. Pipelines of planned rate 0 are best effort: they count for nothing.
    """
    delivered = {
        m.name: [_delivered(plan, p) if p.throughput_rps else 0.0 for p in m.pipelines]
        for m in plan.models
    }
    totals = {name: math.fsum(rates) for name, rates in delivered.items()}
    worth = _worth(plan, totals)
    for model in plan.models:
        total = totals[model.name]
        if math.isclose(model.throughput_rps, total, rel_tol=_RELATIVE):
            promised = total
        else:
            promised = min(worth[model.name], total)
        for number, pipeline in enumerate(model.pipelines):
            what = f"{model.name}, pipeline {number}: throughput_rps"
            rate = delivered[model.name][number] * (promised / total if total else 1.0)
            yield from _compare(what, pipeline.throughput_rps, rate)


def _delivered(plan: Plan, pipeline: Pipeline) -> float:
    """Requests/s of the slowest pool of a pipeline."""
    if any(stage.latency_us < 1 for stage in pipeline.stages):
        return 0.0
    return min(
        stage.vgpus * _stage_rate(plan, pipeline, number)
        for number, stage in enumerate(pipeline.stages)
    )


def _worth(plan: Plan, delivered: Mapping[str, float]) -> dict[str, float]:
    """Requests/s that the objective is worth to every model, at least the rate it keeps."""
    normaliser = {m.name: m.normaliser(plan.objective.name) for m in plan.workload.models}
    level = 1.0
    if plan.objective.name == "throughput":
        level = min(delivered[name] / normaliser[name] for name in delivered)
    least: Mapping[str, float] = plan.options.get("minimum_rps", {})
    return {name: max(normaliser[name] * level, least.get(name, 0.0)) for name in delivered}


def _objective(plan: Plan) -> Iterator[str]:
    objective = plan.objective
    if objective.name == "throughput":
        demands = {m.name: m for m in plan.workload.models}
        value = min(m.throughput_rps / demands[m.name].normaliser() for m in plan.models)
        above = objective.upper_bound - objective.value
    else:
        yield from _rates_met(plan)
        field = _PRICES[objective.name]
        value = math.fsum(
            count * (getattr(plan.cluster.gpu_class(name), field) or 0.0)
            for name, count in plan.gpus_used.items()
        )
        above = objective.value - objective.upper_bound
    yield from _compare("objective value", objective.value, value)
    if above < -_RELATIVE * abs(objective.value):
        yield f"bound {objective.upper_bound!r} contradicts the value {objective.value!r}"
    if objective.value > 0:
        yield from _compare("gap", objective.gap, max(0.0, above) / objective.value)
    known = {m.name for m in plan.models}
    for name, rate in plan.options.get("minimum_rps", {}).items():
        if name not in known:
            yield f"minimum_rps names {name!r}, which is not planned"
            continue
        if plan.model(name).throughput_rps < rate * (1 - _RELATIVE):
            yield f"{name}: {plan.model(name).throughput_rps} requests/s, at least {rate} asked"


def _rates_met(plan: Plan) -> Iterator[str]:
    for demand in plan.workload.models:
        served = plan.model(demand.name).throughput_rps
        asked = demand.normaliser(plan.objective.name)
        if served < asked * (1 - _RELATIVE):
            yield f"{demand.name}: {served} requests/s, {asked} asked"


def _gpus(plan: Plan) -> Iterator[str]:
    used = {c.name: 0 for c in plan.cluster.gpu_classes}
    vgpus: dict[tuple[str, str, int], int] = {}
    for model in plan.models:
        for stage in (s for p in model.pipelines for s in p.stages):
            key = (stage.gpu_class, model.name, stage.vgpu_divisor)
            vgpus[key] = vgpus.get(key, 0) + stage.vgpus
    for (gpu_class, _, divisor), count in vgpus.items():
        used[gpu_class] += math.ceil(count / divisor)
    if dict(plan.gpus_used) != used:
        yield f"gpus_used is {dict(plan.gpus_used)}, derived {used}"
    for name, count in used.items():
        if count > plan.cluster.gpus(name):
            yield f"{count} GPUs of class {name} used, {plan.cluster.gpus(name)} exist"


def _placement(plan: Plan) -> Iterator[str]:
    """Every vGPU on an existing GPU of its class, no slot twice, one model and size per GPU."""
    owner: dict[tuple[int, int], tuple[str, int]] = {}
    taken: set[tuple[int, int, int]] = set()
    for model in plan.models:
        for stage in (s for p in model.pipelines for s in p.stages):
            mine = (model.name, stage.vgpu_divisor)
            for slot in stage.slots():
                where = f"{model.name} {list(stage.blocks)}: {tuple(slot)}"
                if not 0 <= slot.node < plan.cluster.node_count:
                    yield f"{where}: no such node"
                    return
                group = plan.cluster.node_group_of(slot.node)
                if group.gpu_class != stage.gpu_class or not 0 <= slot.gpu < group.gpus:
                    yield f"{where}: no such GPU of class {stage.gpu_class}"
                if not 0 <= slot.slot < stage.vgpu_divisor:
                    yield f"{where}: no such slot of a GPU cut into {stage.vgpu_divisor}"
                if tuple(slot) in taken:
                    yield f"{where}: slot used twice"
                taken.add((slot.node, slot.gpu, slot.slot))
                if owner.setdefault((slot.node, slot.gpu), mine) != mine:
                    yield f"{where}: GPU shared with {owner[slot.node, slot.gpu]}"


def _nics(plan: Plan) -> Iterator[str]:
    """No node's uplink or downlink carries more than it can at the planned rates."""
    sent: dict[int, float] = {}
    received: dict[int, float] = {}
    for pipeline in (p for model in plan.models for p in model.pipelines):
        for number, stage in enumerate(pipeline.stages):
            for loads, neighbour in ((received, number - 1), (sent, number)):
                if not 0 <= neighbour < len(pipeline.stages) - 1:
                    continue
                size = pipeline.stages[neighbour].boundary_bytes_per_sample
                bits = pipeline.throughput_rps / stage.vgpus * size * _BITS
                for slot in stage.slots():
                    loads[slot.node] = loads.get(slot.node, 0.0) + bits
    for what, loads in (("uplink", sent), ("downlink", received)):
        for node, bits in loads.items():
            most = plan.cluster.nic_gbps(plan.cluster.node_group_of(node).gpu_class) * 1e9
            if bits > most * (1 + _RELATIVE):
                yield f"{plan.cluster.node_name(node)}: {what} carries {bits:.4g} of {most:.4g} bit/s"
