"""Models that are loaded when they are asked for, where GPUs do not hold all (`--on-demand`).

    pinned       the hottest, as many as find room: planned as ever (`plan`)
    on demand    all others, on GPUs that hold nothing else:  [ room | workspace of a batch ]

A batch of a model on demand is reckoned with its load, bytes / load_gib_per_s + load_ms, whether or
not the model is there by then. So what is promised holds in any order of requests: on one GPU

    sum over models of rate * (load + run) <= carried(1)     as if every request came alone
    load + run + longest load and run of another <= SLO      a request waits for one other batch

A model that would break a rule alone and one without known weights are pinned before the hottest.
Batches are sent at once (`eager`): waiting for company would cost the time that
a load needs.

Here: which models are pinned, and the GPUs of the others.
Not here: which one is evicted (`runtimes.residency`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.planning.certificate import objective_of
from flows.planning.inputs import limits_us
from flows.planning.registry import (
    Inputs,
    Outcome,
    PlannedPipeline,
    PlannedStage,
    Trace,
)
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.subclusters.demands import Demands, latencies, read_demands
from flows.planning.subclusters.free import carried
from flows.planning.subclusters.plan import plan as plan_pinned
from triton_backend.contract.cluster import GpuClass
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import BYTES_PER_GIB, load_time_us
from triton_backend.contract.units import US_PER_S, us_to_ms

POLICY = "eager"


def plan(inputs: Inputs) -> Outcome:
    """Plan a workload on sub-clusters, with models on demand where that is asked for and needed.

    Raises:
        InputError: as `plan.plan`, or loads are asked for without rates, or no class loads.
        InfeasibleError: as `plan.plan`; also with the models that memory does not hold on demand.
    """
    if not inputs.options.own["on_demand"]:
        return plan_pinned(inputs)
    if inputs.options.objective == "throughput":
        reason = "models are pinned by their rates: it needs the objective cost, power or gpus"
        raise InputError("option on_demand", reason)
    if inputs.workload.variants:
        raise InputError("option on_demand", "a name with variants needs all of them: plan without")
    if not any(map(loads, inputs.cluster.gpu_classes)):
        reason = "no class of the cluster states load_gib_per_s and memory_gib"
        raise InputError("option on_demand", reason)
    try:
        outcome = plan_pinned(inputs)
    except InfeasibleError as error:
        return _some_pinned(inputs, error)
    outcome.trace.notes.append("all models are pinned: memory holds them")
    return outcome


def loads(gpu_class: GpuClass) -> bool:
    """True if models may be loaded on demand on GPUs of a class."""
    return gpu_class.load_gib_per_s is not None and gpu_class.memory_gib is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Models as they are on GPUs of one class that load them on demand.

    Attributes:
        kind: number of the class; `gpus` of it.
        load_us: [m] time of a load.
        takes_us: [m] load and run of one sample; infinite where that cannot be.
        busy: [m] part of a GPU's time that is reckoned with.
        limit_us: [m] SLO less margin.
        most: part of one GPU's time that is planned.
        static_bytes, dynamic_bytes: [m]; they find room in `room_bytes` of a GPU.
    """

    kind: int
    gpus: int
    load_us: Ints
    takes_us: Floats
    busy: Floats
    limit_us: Floats
    most: float
    static_bytes: Floats
    dynamic_bytes: Floats
    room_bytes: float

    def alone(self) -> NDArray[np.bool_]:
        """[m] whether a model can be loaded in time where it has a GPU for itself."""
        return (self.takes_us <= self.limit_us) & (self.busy <= self.most)

    def divided(self, models: Ints) -> list[list[int]] | None:
        """Models by GPU, as even in busy time as can be, on the fewest that do; None where none."""
        least = max(1, int(np.ceil(self.busy[models].sum() / self.most)))
        order = models[np.argsort(-self.busy[models], kind="stable")].tolist()
        for count in range(least, min(self.gpus, len(order)) + 1):
            made = self._spread(order, count)
            if made is not None:
                return made
        return None

    def _spread(self, order: Sequence[int], count: int) -> list[list[int]] | None:
        """Every model to the GPU with the least to do of those that it can share."""
        parts: list[list[int]] = [[] for _ in range(count)]
        busy = [0.0] * count
        for model in order:
            for part in sorted(range(count), key=lambda p: (busy[p], p)):
                if busy[part] + self.busy[model] > self.most:
                    return None
                if self._fit([*parts[part], model]):
                    parts[part].append(model)
                    busy[part] += float(self.busy[model])
                    break
            else:
                return None
        return [sorted(part) for part in parts if part]

    def _fit(self, models: Sequence[int]) -> bool:
        """True if any of them finds room, and ends in time behind the longest of the others."""
        own = list(models)
        if self.static_bytes[own].max() + self.dynamic_bytes[own].max() > self.room_bytes:
            return False
        takes = self.takes_us[own]
        second, longest = np.sort(np.append(takes, 0.0))[-2:]
        others = np.where(takes == longest, second, longest)
        return bool((takes + others <= self.limit_us[own]).all())


def _some_pinned(inputs: Inputs, full: InfeasibleError) -> Outcome:
    """The plan that pins most models, of those on each class that loads; the cheapest of these."""
    asked = read_demands(inputs)
    found: list[Outcome] = []
    reasons: list[str] = []
    for kind, gpu_class in enumerate(inputs.cluster.gpu_classes):
        loading = _loading(asked, kind, gpu_class)
        if loading is None:
            continue
        made = _most_pinned(asked, loading)
        if isinstance(made, Outcome):
            found.append(made)
        else:
            reasons.append(f"{gpu_class.name}: {made}")
    if not found:
        raise InfeasibleError(full.where, f"{full.reason}; on demand, {'; '.join(reasons)}")
    return min(found, key=lambda outcome: outcome.objective.value)


def _loading(asked: Demands, kind: int, gpu_class: GpuClass) -> Loading | None:
    """Models on demand on a class; None where it loads nothing."""
    if not loads(gpu_class) or not asked.problem.gpus[kind]:
        return None
    load = [load_time_us(gpu_class, int(weights)) or 0 for weights in asked.static_bytes]
    load_us = np.array(load, dtype=np.int64)
    possible = np.isfinite(asked.load(np.ones(len(load)))[:, kind])
    possible &= asked.static_bytes > 0
    run_us = latencies(asked.problem, kind)[:, 0]
    takes_us = np.where(possible, load_us + run_us, np.inf)
    rates = asked.rates(1.0)
    return Loading(
        kind=kind,
        gpus=int(asked.problem.gpus[kind]),
        load_us=load_us,
        takes_us=takes_us,
        busy=np.where(possible, rates * (load_us + run_us) / US_PER_S, np.inf),
        limit_us=limits_us(asked.inputs.workload.models, asked.inputs.options),
        most=float(carried(1, asked.utilisation)),
        static_bytes=asked.static_bytes,
        dynamic_bytes=asked.dynamic_bytes,
        room_bytes=float(asked.room_bytes[kind]),
    )


def _most_pinned(asked: Demands, loading: Loading) -> Outcome | str:
    """The plan that pins most models, or why there is none."""
    rates, alone = asked.rates(1.0), loading.alone()
    order = np.lexsort((np.arange(len(rates)), -rates, alone))
    least = int((~alone).sum())
    room = np.maximum(asked.room_bytes - asked.dynamic_bytes.max(), 0)

    def holds(gpus: Ints) -> float:
        return float(room[gpus > 0] @ gpus[gpus > 0])

    held = np.cumsum(asked.static_bytes[order])
    reason = _least_held(asked, loading, order[:least])
    count = min(len(order) - 1, int((held <= holds(asked.problem.gpus)).sum()))
    while count >= least:
        parts = loading.divided(order[count:])
        if parts is None:
            return (
                f"{len(order) - count} models on demand would keep "
                f"{float(loading.busy[order[count:]].sum()):.3g} GPUs loading and running, or one "
                f"could not wait for another ({_tightest(asked, loading, order[count:])})"
            )
        left = asked.problem.gpus.copy()
        left[loading.kind] -= len(parts)
        if (left >= 0).all() and held[:count].max(initial=0.0) <= holds(left):
            try:
                return _together(asked, loading, np.sort(order[:count]), parts)
            except InfeasibleError as error:
                reason = error.reason
        count -= 1
    return reason


def _least_held(asked: Demands, loading: Loading, must: Ints) -> str:
    """How much must be pinned, with an example of why."""
    size = float(asked.static_bytes[must].sum()) / BYTES_PER_GIB
    if not len(must):
        return "no number of pinned models leaves the GPUs that the others need"
    late = int(must[0])
    takes, limit = loading.takes_us[late], loading.limit_us[late]
    example = f"{asked.inputs.workload.models[late].name!r} "
    if np.isfinite(takes):
        example += f"takes {us_to_ms(takes):.3f} of {us_to_ms(limit):.3f} ms with its load"
    else:
        example += "is not loaded on this class: its weights or its latencies are not known there"
    return f"{len(must)} models of {size:.3g} GiB must be pinned and find no room: {example}"


def _tightest(asked: Demands, loading: Loading, models: Ints) -> str:
    worst = int(models[np.argmin(loading.limit_us[models] - loading.takes_us[models])])
    return (
        f"{asked.inputs.workload.models[worst].name!r}: {us_to_ms(loading.takes_us[worst]):.3f} of "
        f"{us_to_ms(loading.limit_us[worst]):.3f} ms"
    )


def _together(
    asked: Demands, loading: Loading, held: Ints, parts: Sequence[Sequence[int]]
) -> Outcome:
    """One plan of both.

    Raises:
        InfeasibleError: the pinned models do not fit the GPUs that the others leave.
    """
    inputs, rates = asked.inputs, asked.rates(1.0)
    models, options = inputs.workload.models, inputs.options
    outcome = None
    if len(held):
        names = [models[number].name for number in held]
        own = replace(options.for_names(names), previous=options.previous)
        kept = replace(inputs.workload, models=tuple(models[number] for number in held))
        name = asked.problem.classes[loading.kind]
        outcome = plan_pinned(replace(inputs, workload=kept, options=own), {name: len(parts)})
    planned = () if outcome is None else outcome.pipelines
    pipelines = [replace(one, model=int(held[one.model])) for one in planned]
    stages = [stage for one in pipelines for stage in one.stages]
    shared = 1 + max((stage.shared or 0 for stage in stages), default=-1)
    pools = _continued(asked, loading.kind, parts, {stage.continues for stage in stages})
    for number, part in enumerate(parts):
        pipelines += [
            PlannedPipeline(
                model=model,
                batch=1,
                rate_rps=float(rates[model]),
                stages=(
                    PlannedStage(
                        blocks=(0, asked.problem.models[model].blocks),
                        gpu_class=asked.problem.classes[loading.kind],
                        divisor=1,
                        vgpus=1,
                        shared=shared + number,
                        continues=pools[number],
                        load_us=int(loading.load_us[model]),
                    ),
                ),
            )
            for model in part
        ]
    price = float(asked.price[loading.kind]) * len(parts)
    value = price + (0.0 if outcome is None else outcome.objective.value)
    trace = Trace(status="heuristic") if outcome is None else outcome.trace
    trace.status = "heuristic"
    trace.seconds["solve"] = inputs.watch.seconds()
    trace.details["on_demand"] = _details(asked, loading, parts)
    loaded = sum(len(part) for part in parts)
    gpus = "1 GPU" if len(parts) == 1 else f"{len(parts)} GPUs"
    trace.notes.append(
        f"{len(held)} of {len(models)} models are pinned, the hottest that memory holds; {loaded} "
        f"are loaded on demand on {gpus} of {asked.problem.classes[loading.kind]}"
    )
    return Outcome(
        pipelines=tuple(pipelines),
        objective=objective_of(options.objective, -value, -value),
        trace=trace,
        promised_rps=tuple(rates.tolist()),
        policy=options.own["dispatch"],
        policies={model: POLICY for part in parts for model in part},
        whole_tables=True,
        waits="turn",
        space="its own rule",
    )


def _continued(
    asked: Demands, kind: int, parts: Sequence[Sequence[int]], taken: set[str | None]
) -> list[str | None]:
    """The pool in force that most models of each part are on, on GPUs of the class; each once."""
    found: list[str | None] = []
    for part in parts:
        before = [int(number) for number in asked.before[list(part)] if number >= 0]
        names = [asked.pools[number][0] for number in before if asked.pools[number][1] == kind]
        most = next((name for name, _ in Counter(names).most_common() if name not in taken), None)
        taken = taken | {most}
        found.append(most)
    return found


def _details(
    asked: Demands, loading: Loading, parts: Sequence[Sequence[int]]
) -> list[dict[str, Any]]:
    """Of every GPU that loads models on demand: what is reckoned with."""
    models = asked.inputs.workload.models
    return [
        {
            "gpu_class": asked.problem.classes[loading.kind],
            "models": len(part),
            "busy": float(loading.busy[list(part)].sum()),
            "static_gib": float(asked.static_bytes[list(part)].sum()) / BYTES_PER_GIB,
            "longest_ms": us_to_ms(float(loading.takes_us[list(part)].max())),
            "requests_per_s": float(sum(models[model].rate_rps or 0.0 for model in part)),
        }
        for part in parts
    ]
