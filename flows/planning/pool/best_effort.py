"""GPUs that no pool needs, as pipelines of their own that promise nothing: overflow.

Where one class of GPUs is exhausted and another is not, the free GPUs cannot deliver more by the
plan's margin: whole models take too long on them. But the margin is kept free for waiting, and a
GPU that waits for work needs no waiting time. Models therefore get free GPUs that run them as a whole
within the SLO less *a quarter* of the margin, the model with the least to spare first, until all that a model
can serve exceeds its planned rate by `MOST`. Schedulers use such a pipeline when the others wait.

Its planned rate is 0: objective, promises and bound are those of the plan without it. It is made
where it is asked for (`PlanOptions.overflow`): it uses GPUs that others might, and latencies that
the margin forbids the plan itself.

What was tried, seed 0 of `scripts/benchmarks/simulator.py`, mean highest load factor of 72 cells with
`reservation-ahead`, Poisson arrivals | gamma arrivals of shape 0.3:

    no overflow                              0.976 | 0.843
    0.1 of the SLO free, MOST 0.25           0.985 | 0.889
    0.1 of the SLO free, MOST 0.5            0.985 | 0.896    1.0: the same
    0.05 of the SLO free, MOST 0.25          0.987 |          leaves little for noise
    0.2 of the SLO free, MOST 0.25           0.983 |

Lost: overflow before pools are widened at all, or only after they are widened by a quarter (gamma
0.892 for 0.896); a policy that takes the pipeline that ends first, so that overflow is the last
resort (0.985 | 0.894). With 5 % latency noise at load factor 0.9, attainment is 0.9992 with
overflow and 0.9982 without.
"""

import heapq
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flows.planning.options import PlanOptions
from flows.planning.pool.columns import Columns
from flows.planning.pool.integer import delivered_rps, gpus_in_use
from flows.planning.problem import Problem
from triton_backend.contract.units import US_PER_S
from triton_backend.contract.workload import Workload

MARGIN_SHARE = 0.25  # of the margin that overflow leaves free
MOST = 0.5  # share of the planned rate by which a model may exceed it, pools and overflow together


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """Configurations of one stage each, and vGPUs [n, S] of them."""

    columns: Columns
    vgpus: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Form:
    """How a model runs as a whole: vGPU type, batch, samples/s of one vGPU and of one GPU."""

    model: int
    kind: int
    batch: int
    vgpu_rps: float
    gpu_rps: float


def overflow(
    problem: Problem,
    limits_us: list[NDArray[np.float64]],
    used: tuple[Columns, NDArray[np.int64]],
    promised_rps: NDArray[np.float64],
) -> Overflow | None:
    """Free GPUs as overflow, one by one; None where there are none or none is of use.

    Args:
        problem: models and GPUs.
        limits_us: [models] of [batches], what a run may take (`limits_of`).
        used: configurations and vGPUs [n, S] of the plan.
        promised_rps: [models] planned rates.

    Ties go to the first model, then to the class with most free GPUs, then to the first class.
    """
    columns, vgpus = used
    free = problem.gpus - gpus_in_use(problem, columns, vgpus)
    forms = {
        (model, kind): form
        for model, limit_us in enumerate(limits_us)
        for kind in np.flatnonzero(free).tolist()
        if (form := _fastest(problem, model, kind, limit_us)) is not None
    }
    delivered = np.bincount(
        columns.model, weights=delivered_rps(columns, vgpus), minlength=len(promised_rps)
    )
    gpus = dict.fromkeys(forms, 0)
    heap = [(float(delivered[m] / promised_rps[m]), m) for m in {m for m, _ in forms}]
    heapq.heapify(heap)
    while heap:
        level, model = heapq.heappop(heap)
        kinds = [kind for m, kind in forms if m == model and free[kind]]
        if level >= 1 + MOST or not kinds:
            continue
        kind = max(kinds, key=lambda k: (free[k], -k))
        free[kind] -= 1
        gpus[model, kind] += 1
        more = forms[model, kind].gpu_rps / float(promised_rps[model])
        heapq.heappush(heap, (level + more, model))
    return overflow_of(problem, columns, [(forms[key], n) for key, n in gpus.items() if n])


def limits_of(
    problem: Problem, workload: Workload, options: PlanOptions
) -> list[NDArray[np.float64]]:
    """[models] of [batches], µs: SLO less a quarter of the margin, less gathering time."""
    slo_us = {demand.name: demand.slo_us for demand in workload.models}
    return [
        m.limit_us + (1 - MARGIN_SHARE) * options.margin(m.name) * slo_us[m.name]
        for m in problem.models
    ]


def form_of(problem: Problem, model: int, kind: int, batch: int) -> Form | None:
    """A whole model on vGPUs of a type at a batch size; None where that was not measured."""
    arrays = problem.models[model]
    row = arrays.types.tolist().index(kind)
    if batch > arrays.batches:
        return None
    latency_us = float(arrays.latency_us[row, 0, arrays.blocks, batch - 1])
    if not np.isfinite(latency_us):
        return None
    vgpu_rps = batch * US_PER_S / latency_us
    return Form(model, kind, batch, vgpu_rps, vgpu_rps * problem.types[kind][1])


def _fastest(
    problem: Problem, model: int, owner: int, limit_us: NDArray[np.float64]
) -> Form | None:
    """The fastest run of a whole model on GPUs of a class; ties: the smallest divisor and batch."""
    arrays = problem.models[model]
    found: Form | None = None
    for row, kind in enumerate(arrays.types.tolist()):
        if problem.types[kind][0] != owner:
            continue
        for at in np.flatnonzero(arrays.latency_us[row, 0, arrays.blocks] <= limit_us).tolist():
            form = form_of(problem, model, kind, at + 1)
            if form is not None and (found is None or form.gpu_rps > found.gpu_rps):
                found = form
    return found


def overflow_of(problem: Problem, like: Columns, chosen: list[tuple[Form, int]]) -> Overflow | None:
    """Configurations of one stage, as wide as others, on whole GPUs; None for none."""
    if not chosen:
        return None
    count, width = len(chosen), like.types.shape[1]
    types = np.zeros((count, width), dtype=np.int64)
    cuts = np.zeros((count, width + 1), dtype=np.int64)
    rate_rps = np.full((count, width), np.inf)
    usage = np.zeros((count, len(problem.gpus)))
    vgpus = np.zeros((count, width), dtype=np.int64)
    for row, (form, gpus) in enumerate(chosen):
        kind, divisor = problem.types[form.kind]
        types[row, 0], cuts[row, 1] = form.kind, problem.models[form.model].blocks
        rate_rps[row, 0], usage[row, kind] = form.vgpu_rps, 1 / form.gpu_rps
        vgpus[row, 0] = gpus * divisor
    columns = replace(
        like,
        model=np.array([form.model for form, _ in chosen], dtype=np.int64),
        batch=np.array([form.batch for form, _ in chosen], dtype=np.int64),
        stages=np.ones(count, dtype=np.int64),
        types=types,
        cuts=cuts,
        rate_rps=rate_rps,
        usage=usage,
    )
    return Overflow(columns=columns, vgpus=vgpus)


def describe(problem: Problem, beside: Overflow) -> str:
    """What the certificate says of overflow."""
    used = gpus_in_use(problem, beside.columns, beside.vgpus)
    gpus = ", ".join(f"{n} {name}" for n, name in zip(used, problem.classes, strict=True) if n)
    return f"{gpus}: free, so they run whole models beyond the margin and promise nothing"
