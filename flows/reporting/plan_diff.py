"""The difference between two plans in words: what moves where, and what it gives.

Here: sentences, one per change, most important first. Not here: carrying a change out
(`flows.release`).
"""

from collections import Counter

from flows.reporting import words
from triton_backend.contract.plan import ModelPlan, Plan
from triton_backend.contract.units import us_to_ms

Pool = tuple[int, str, int, tuple[int, int]]  # stage number, GPU class, vGPU divisor, blocks
SAME = 0.0005  # rates and SLOs that differ by less read the same


def plan_diff(old: Plan | None, new: Plan) -> list[str]:
    """Sentences that say how `new` differs from `old` (None: everything is new).

    Returns:
        per model what is added, removed or moved and how its rate changes, then the GPUs per
        class; empty where nothing changes.
    """
    before = {model.name: model for model in old.models} if old else {}
    after = {model.name: model for model in new.models}
    lines: list[str] = []
    for name, model in after.items():
        lines += _model_lines(name, before.get(name), model)
    for name, model in before.items():
        if name not in after:
            gone = _sentence(_pools(model))
            lines.append(f"{name} is no longer served: {gone} are free")
    return lines + _gpu_lines(old, new)


def gpus_moved(old: Plan, new: Plan) -> int:
    """GPUs whose model or vGPU size changes (taken up and given back ones included)."""
    before, after = _gpu_uses(old), _gpu_uses(new)
    return sum(1 for gpu in before.keys() | after.keys() if before.get(gpu) != after.get(gpu))


def _model_lines(name: str, old: ModelPlan | None, new: ModelPlan) -> list[str]:
    if old is None:
        rate = words.rate(new.throughput_rps)
        return [f"{name} is new: {_sentence(_pools(new))}, planned for {rate}"]
    parts: list[str] = []
    before, after = _pools(old), _pools(new)
    parts += [_move(pool, count, "leave") for pool, count in (before - after).items()]
    parts += [_move(pool, count, "join") for pool, count in (after - before).items()]
    if _differs(old.slo_us, new.slo_us):
        slos = words.number(us_to_ms(old.slo_us)), words.milliseconds(us_to_ms(new.slo_us))
        parts.append(f"SLO {slos[0]} → {slos[1]}")
    batches = sorted(p.batch for p in old.pipelines), sorted(p.batch for p in new.pipelines)
    if batches[0] != batches[1]:
        parts.append(f"batches {_list(batches[0])} → {_list(batches[1])}")
    if _differs(old.throughput_rps, new.throughput_rps):
        rates = words.number(old.throughput_rps), words.rate(new.throughput_rps)
        parts.append(f"planned rate {rates[0]} → {rates[1]}")
    return [f"{name}: {'; '.join(parts)}"] if parts else []


def _pools(model: ModelPlan) -> Counter[Pool]:
    """vGPUs by what they do."""
    pools: Counter[Pool] = Counter()
    for pipeline in model.pipelines:
        for number, stage in enumerate(pipeline.stages):
            pools[number, stage.gpu_class, stage.vgpu_divisor, stage.blocks] += stage.vgpus
    return pools


def _move(pool: Pool, count: int, verb: str) -> str:
    number, gpu_class, divisor, blocks = pool
    verb = f"{verb}s" if count == 1 else verb
    name = words.vgpus(count, divisor, gpu_class)
    return f"{name} {verb} stage {number + 1} ({words.blocks(*blocks)})"


def _sentence(pools: Counter[Pool]) -> str:
    names: Counter[tuple[int, str]] = Counter()
    for (_, gpu_class, divisor, _), count in pools.items():
        names[divisor, gpu_class] += count
    return ", ".join(words.vgpus(count, *key) for key, count in names.items())


def _gpu_lines(old: Plan | None, new: Plan) -> list[str]:
    classes = [c.name for c in new.cluster.gpu_classes]
    before = old.gpus_used if old else {}
    changes = [
        f"{name} {before.get(name, 0)} → {new.gpus_used.get(name, 0)}"
        for name in classes
        if before.get(name, 0) != new.gpus_used.get(name, 0)
    ]
    return [f"GPUs used: {', '.join(changes)}"] if changes else []


def _gpu_uses(plan: Plan) -> dict[tuple[str, int], tuple[str, int]]:
    """What each GPU (node name, number) is for: model and divisor."""
    return {
        (plan.cluster.node_name(slot.node), slot.gpu): (model.name, stage.vgpu_divisor)
        for model in plan.models
        for pipeline in model.pipelines
        for stage in pipeline.stages
        for slot in stage.slots()
    }


def _differs(old: float, new: float) -> bool:
    return abs(new - old) > SAME * max(abs(old), abs(new))


def _list(values: list[int]) -> str:
    return " + ".join(str(value) for value in values)
