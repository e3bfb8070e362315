"""The difference between two plans in words: what moves where, and what it gives.

Here: sentences, one per change, most important first. Not here: carrying a change out
(`flows.release`).
"""

from collections import Counter
from typing import NamedTuple

from flows.reporting import words
from triton_backend.contract.plan import ModelPlan, Plan
from triton_backend.contract.units import us_to_ms

SAME = 0.0005  # rates and SLOs that differ by less read the same


class StageUse(NamedTuple):
    """Use of a model's vGPUs: a stage, its device, and the models beside it."""

    stage: int
    gpu_class: str
    share: int
    blocks: tuple[int, int]
    others: tuple[str, ...]


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
        if old is None or name not in before:
            lines.append(_new(new, model))
        else:
            lines += _model_lines((before[name], model), (_held(old, name), _held(new, name)))
    if old is not None:
        lines += [_gone(old, name) for name in before if name not in after]
    return lines + _gpu_lines(old, new)


def _model_lines(
    models: tuple[ModelPlan, ModelPlan], held: tuple[Counter[StageUse], Counter[StageUse]]
) -> list[str]:
    (old, new), (before, after) = models, held
    parts = [_move(what, count, "leave") for what, count in (before - after).items()]
    parts += [_move(what, count, "join") for what, count in (after - before).items()]
    if _differs(old.slo_us, new.slo_us):
        slos = words.number(us_to_ms(old.slo_us)), words.milliseconds(us_to_ms(new.slo_us))
        parts.append(f"SLO {slos[0]} → {slos[1]}")
    batches = sorted(p.batch for p in old.pipelines), sorted(p.batch for p in new.pipelines)
    if batches[0] != batches[1]:
        parts.append(f"batches {_list(batches[0])} → {_list(batches[1])}")
    if _differs(old.throughput_rps, new.throughput_rps):
        rates = words.number(old.throughput_rps), words.rate(new.throughput_rps)
        parts.append(f"planned rate {rates[0]} → {rates[1]}")
    return [f"{new.name}: {'; '.join(parts)}"] if parts else []


def _held(plan: Plan, name: str) -> Counter[StageUse]:
    """vGPUs of a model by what they do."""
    users = _models_by_pool(plan)
    held: Counter[StageUse] = Counter()
    for row, (model, _, stage, pool) in zip(plan.stage_rows(), plan.placed_stages(), strict=True):
        if model.name == name:
            others = tuple(other for other in users[row.pool] if other != name)
            held[StageUse(row.stage, pool.gpu_class, pool.share, stage.blocks, others)] += (
                pool.vgpus
            )
    return held


def _models_by_pool(plan: Plan) -> list[tuple[str, ...]]:
    """Names of the models on every pool, in order of the alphabet."""
    names: list[set[str]] = [set() for _ in plan.pools]
    for row in plan.stage_rows():
        names[row.pool].add(plan.models[row.model].name)
    return [tuple(sorted(found)) for found in names]


def _move(what: StageUse, count: int, verb: str) -> str:
    verb = f"{verb}s" if count == 1 else verb
    name = words.vgpus(count, what.share, what.gpu_class)
    shared = f" shared with {', '.join(what.others)}" if what.others else ""
    return f"{name}{shared} {verb} stage {what.stage + 1} ({words.blocks(*what.blocks)})"


def _vgpus(plan: Plan, name: str, *, shared: bool) -> Counter[tuple[int, str, tuple[str, ...]]]:
    """vGPUs of a model by share, class and the other models on them.

    Its own, or the shared ones.
    """
    found: Counter[tuple[int, str, tuple[str, ...]]] = Counter()
    for pool, names in zip(plan.pools, _models_by_pool(plan), strict=True):
        others = tuple(other for other in names if other != name)
        if name in names and bool(others) == shared:
            found[pool.share, pool.gpu_class, others] += pool.vgpus
    return found


def _new(plan: Plan, model: ModelPlan) -> str:
    own = _vgpus(plan, model.name, shared=False)
    parts = [words.vgpus(count, share, name) for (share, name, _), count in own.items()]
    parts += [
        f"{words.vgpus(count, share, name)} shared with {', '.join(others)}"
        for (share, name, others), count in _vgpus(plan, model.name, shared=True).items()
    ]
    return (
        f"{model.name} is new: {', '.join(parts)}, planned for {words.rate(model.throughput_rps)}"
    )


def _gone(plan: Plan, name: str) -> str:
    own = _vgpus(plan, name, shared=False)
    free = ", ".join(words.vgpus(count, share, cls) for (share, cls, _), count in own.items())
    parts = [f"{free} are free"] if free else []
    parts += [
        f"{words.vgpus(count, share, cls)} no longer shared with {', '.join(others)}"
        for (share, cls, others), count in _vgpus(plan, name, shared=True).items()
    ]
    return f"{name} is no longer served: {'; '.join(parts)}"


def _gpu_lines(old: Plan | None, new: Plan) -> list[str]:
    classes = [c.name for c in new.cluster.gpu_classes]
    before = old.gpus_used if old else {}
    changes = [
        f"{name} {before.get(name, 0)} → {new.gpus_used.get(name, 0)}"
        for name in classes
        if before.get(name, 0) != new.gpus_used.get(name, 0)
    ]
    return [f"GPUs used: {', '.join(changes)}"] if changes else []


def _differs(old: float, new: float) -> bool:
    return abs(new - old) > SAME * max(abs(old), abs(new))


def _list(values: list[int]) -> str:
    return " + ".join(str(value) for value in values)
