"""GPUs that the optimum does not need: planned rates, wider pools, best-effort pipelines.

GPUs are whole, so every model but the scarcest could serve a little more than its share, and often
GPUs of one class stay unused because another class is exhausted. Both are worth more as headroom
than as promise: a pool that is 10 % wider than needed seldom makes a batch wait. So a model is
promised what the objective is worth to it (or the rate asked for), and free GPUs widen the pools of
their class.

**Best effort** (`--overflow`). Where one class of GPUs is exhausted and another is not, the free
GPUs cannot deliver more by the plan's margin: whole models take too long on them. But the margin is
kept free for waiting, and a GPU that waits for work needs no waiting time. Models therefore get
free GPUs that run them as a whole within the SLO less *a quarter* of the margin, the model with the
least to spare first, until all that a model can serve exceeds its planned rate by `MOST`.
Schedulers use such a pipeline when the others wait.

Its planned rate is 0: objective, promises and bound are those of the plan without it. It is made
where it is asked for (option `overflow`): it uses GPUs that others might, and latencies that
the margin forbids the plan itself.
"""

import heapq
from dataclasses import replace

import numpy as np

from flows.planning.inputs import Problem
from flows.planning.pool.bound import Goal
from flows.planning.pool.columns import Columns, Counted, best_of_each, enumerate_columns
from flows.planning.pool.integer import delivered_rps, gpus_in_use, models_rps
from flows.planning.registry import PlanOptions
from flows.planning.solver.arrays import FAR, Floats, Ints
from flows.planning.solver.tolerances import ROUNDING
from triton_backend.contract.workload import Workload

# Share by which a pool may exceed what it is planned for. Simulated load factors at 99 % attainment
# (72 published problems) rise up to here and no further.
HEADROOM = 0.25
# The same before GPUs run best-effort pipelines, so that no pool is tighter than the scarcest.
BEFORE_BEST_EFFORT = 0.1


def promised_rps(columns: Columns, vgpus: Ints, goal: Goal, score: float) -> Floats:
    """[models] requests/s: the rate at a score, or the least rate asked for.

    At most what is delivered.
    """
    delivered = models_rps(columns, vgpus, len(goal.weight))
    promised = goal.needed_rps(score)
    # Rates asked for are met within rounding; a rate a hair below would read as one that is not.
    return np.where(promised > delivered * (1 + ROUNDING), delivered, promised)


def planned_rps(columns: Columns, vgpus: Ints, promised: Floats) -> Floats:
    """[n] planned rate of every configuration: its model's promise, shared as they deliver."""
    delivered = delivered_rps(columns, vgpus)
    total = models_rps(columns, vgpus, len(promised))
    share = np.divide(promised, total, out=np.ones(len(promised)), where=total > 0)
    return delivered * share[columns.model]


def widen(
    problem: Problem, columns: Columns, vgpus: Ints, planned: Floats, headroom: float = HEADROOM
) -> Ints:
    """[n, S] vGPU counts with free GPUs added to the pools in use, the tightest pool first.

    No pool gets more once it exceeds its planned rate by the headroom. Ties go to the first
    configuration, then the first stage. Every GPU still holds vGPUs of one model and one divisor.
    """
    wide = vgpus.copy()
    free = problem.gpus - gpus_in_use(problem, columns, vgpus)
    slots: dict[tuple[int, int], int] = {}  # free slots on GPUs of a model and vGPU type
    heap: list[tuple[float, int, int]] = []
    for row, stage in np.argwhere(vgpus).tolist():
        group = (int(columns.model[row]), int(columns.types[row, stage]))
        slots[group] = slots.get(group, 0) - int(vgpus[row, stage])
        heap.append((_level(columns, wide, planned, (row, stage)), row, stage))
    slots = {group: count % problem.types[group[1]][1] for group, count in slots.items()}
    heapq.heapify(heap)
    while heap:
        level, row, stage = heapq.heappop(heap)
        if level >= 1 + headroom:
            break
        group = (int(columns.model[row]), int(columns.types[row, stage]))
        number, divisor = problem.types[group[1]]
        if not slots[group]:
            if not free[number]:
                continue
            free[number] -= 1
            slots[group] = divisor
        slots[group] -= 1
        wide[row, stage] += 1
        heapq.heappush(heap, (_level(columns, wide, planned, (row, stage)), row, stage))
    return wide


def _level(columns: Columns, vgpus: Ints, planned: Floats, pool: tuple[int, int]) -> float:
    """The rate of a pool beyond its plan."""
    return float(vgpus[pool] * columns.rate_rps[pool] / planned[pool[0]])


MARGIN_SHARE = 0.25  # of the margin that best-effort pipelines leave free
MOST = 0.5  # share of the planned rate by which a model may exceed it, best effort included


def best_effort(
    problem: Problem, limits_us: list[Floats], used: Counted, promised_rps: Floats
) -> Counted | None:
    """Best-effort pipelines on free GPUs, one GPU by one.

    None where there are none or none is of use.

    Args:
        problem: models and GPUs.
        limits_us: [models] of [batches], what a run may take (`limits_of`).
        used: configurations and vGPUs [n, S] of the plan.
        promised_rps: [models] planned rates.

    Ties go to the first model, then to the class with most free GPUs, then to the first class.
    """
    columns, vgpus = used
    free = problem.gpus - gpus_in_use(problem, columns, vgpus)
    forms = whole_models(problem, limits_us)
    kinds, divisors = (of[forms.types[:, 0]] for of in (problem.type_class, problem.type_divisor))
    per_rps = forms.usage.sum(axis=1)  # GPUs
    fastest = best_of_each([forms.model, kinds], per_rps, divisors, forms.batch)
    fastest = fastest[free[kinds[fastest]] > 0]
    delivered = models_rps(columns, vgpus, len(promised_rps))
    gpus = np.zeros(len(forms), dtype=np.int64)
    heap = [(float(delivered[m] / promised_rps[m]), m) for m in set(forms.model[fastest].tolist())]
    heapq.heapify(heap)
    while heap:
        level, model = heapq.heappop(heap)
        own = [row for row in fastest if forms.model[row] == model and free[kinds[row]]]
        if level >= 1 + MOST or not own:
            continue
        row = max(own, key=lambda row: (free[kinds[row]], -kinds[row]))
        free[kinds[row]] -= 1
        gpus[row] += 1
        more = 1 / float(per_rps[row] * promised_rps[model])
        heapq.heappush(heap, (level + more, model))
    return on_whole_gpus(problem, forms, gpus)


def margins_us(problem: Problem, workload: Workload, options: PlanOptions) -> Floats:
    """[models] µs of their SLOs that margins leave free."""
    slo_us = {demand.name: demand.slo_us for demand in workload.models}
    return np.array([options.margin(m.name) * slo_us[m.name] for m in problem.models])


def limits_of(problem: Problem, workload: Workload, options: PlanOptions) -> list[Floats]:
    """[models] of [batches], µs: SLO less a quarter of the margin, less gathering time."""
    more_us = (1 - MARGIN_SHARE) * margins_us(problem, workload, options)
    return [m.limit_us + more for m, more in zip(problem.models, more_us, strict=True)]


def whole_models(problem: Problem, limits_us: list[Floats] | None = None) -> Columns:
    """Models as a whole, one vGPU each, within limits [models] of [batches]; without, at any."""
    limits_us = limits_us or [np.full(model.batches, FAR) for model in problem.models]
    models = tuple(
        replace(model, limit_us=limit_us)
        for model, limit_us in zip(problem.models, limits_us, strict=True)
    )
    return enumerate_columns(replace(problem, models=models), 1, range(len(models)))


def on_whole_gpus(problem: Problem, forms: Columns, gpus: Ints) -> Counted | None:
    """Configurations of one stage on so many whole GPUs [n]; None for none."""
    used = np.flatnonzero(gpus)
    if not len(used):
        return None
    forms = forms.take(used)
    return forms, gpus[used, None] * problem.type_divisor[forms.types]


def describe(problem: Problem, beside: Counted) -> str:
    """The certificate's entry on best-effort pipelines."""
    used = gpus_in_use(problem, *beside)
    gpus = ", ".join(f"{n} {name}" for n, name in zip(used, problem.classes, strict=True) if n)
    return f"{gpus}: free, so they run whole models beyond the margin and promise nothing"
