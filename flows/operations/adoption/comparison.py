"""GPUs today beside planned: instances that an operator set, and vGPUs of a plan."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flows.preparation.triton_repository.repository import APPLICATION, BESIDE, CPUS, MODEL, Found
from flows.reporting import words
from triton_backend.contract.plan import ModelPlan, Plan
from triton_backend.serve_folder.batches import plan_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A served name: instances today, and its planned pools and rate."""

    name: str
    instances: int
    where: str
    pools: str
    planned_rps: float


def rows_of(found: Sequence[Found], plan: Plan, gpus: int) -> tuple[Row, ...]:
    """A row per model and application to plan, of a server that sees so many GPUs."""
    models = {model.name: model for model in plan.models}
    rates = {each.name: each.application.rate_rps or 0.0 for each in plan.applications}
    rows: list[Row] = []
    for each in found:
        if each.kind == BESIDE:
            continue
        model = models.get(each.name)
        rate_rps = model.throughput_rps if model else rates.get(each.name, 0.0)
        rows.append(
            Row(
                name=each.name,
                instances=_instances(each, gpus),
                where=_where(each),
                pools=_pools(plan, model) if model else "pools of its modules",
                planned_rps=rate_rps,
            )
        )
    return tuple(rows)


def _instances(found: Found, gpus: int) -> int:
    if found.kind == APPLICATION:
        return 0  # an ensemble has none of its own
    counts = found.instances.items()
    return sum(count * (gpus if place is None else 1) for place, count in counts)


def smaller_requests(found: Sequence[Found], plan: Plan) -> dict[str, str]:
    """Models whose requests may hold fewer samples than their configuration says, in words."""
    largest = {name: max(each.largest) for name, each in plan_batches(plan, None).items()}
    return {
        each.name: f"a request may hold {largest[each.name]} samples, its max_batch_size is "
        f"{each.message.max_batch_size} today"
        for each in found
        if each.kind == MODEL and largest.get(each.name, math.inf) < each.message.max_batch_size
    }


def gpus_seen(found: Sequence[Found], gpus: int) -> int:
    """GPUs of the server today: up to the highest that an instance names, else those given."""
    return max((number + 1 for each in found for number in _named(each)), default=gpus)


def gpus_today(found: Sequence[Found], seen: int) -> int:
    """GPUs with an instance of a model to plan, of a server that sees so many."""
    planned = [each for each in found if each.kind == MODEL]
    if any(None in each.instances for each in planned):
        return seen
    return len({number for each in planned for number in _named(each)})


def _named(found: Found) -> list[int]:
    return sorted(g for g in found.instances if g is not None and g != CPUS)


def _where(found: Found) -> str:
    if found.kind == APPLICATION:
        return ""
    if set(found.instances) == {CPUS}:
        return "CPU"
    named = _named(found)
    return "GPU " + ", ".join(map(str, named)) if named else "every GPU"


def _pools(plan: Plan, model: ModelPlan) -> str:
    """Pools of a model's pipelines in words: `2 × 1/2 fast, 3 × slow`."""
    names = dict.fromkeys(stage.pool for p in model.pipelines for stage in p.stages)
    pools = [pool for pool in plan.pools if pool.name in names]
    return ", ".join(words.vgpus(pool.vgpus, pool.share, pool.gpu_class) for pool in pools)
