"""The planner `subclusters`: whole models share the GPUs of a sub-cluster (Symphony).

    GPUs of every model    gathering   closed form, from its latency table, SLO and rate
    class of every model   classes     integer program; its bound is the certificate's
    sub-clusters           partition   integer program per class, even in load and memory
    GPUs of sub-clusters   free        of their load, rounded up; some of their time stays free

Rates are given (`cost`, `power`, `gpus`), or the largest common scale of the weights whose
sub-clusters fit the GPUs (`throughput`).

The bound speaks of all assignments of whole models to sub-clusters of whole GPUs of one class each,
GPUs counted by the closed form and the rule of `free`. It is no bound for split models.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from flows.planning.certificate import objective_of
from flows.planning.registry import Inputs, Outcome, PlannedPipeline, PlannedStage, Trace
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.subclusters.classes import cheapest
from flows.planning.subclusters.demands import Demands, read_demands
from flows.planning.subclusters.division import (
    Subcluster,
    divided,
    to_class,
    wanted_of,
)
from flows.planning.subclusters.free import needed
from flows.planning.subclusters.partition import ClusterPartition, imbalance
from flows.planning.subclusters.reach import does_not_divide, out_of_reach
from flows.planning.subclusters.scale import largest_scale
from triton_backend.contract.plan import BYTES_PER_GIB
from triton_backend.contract.workload import TURN


def plan(inputs: Inputs, taken: Mapping[str, int] | None = None) -> Outcome:
    """Plan a workload on sub-clusters, on the GPUs that are not taken (by class).

    Raises:
        InputError: the inputs do not fit together, or a price or rate is missing.
        InfeasibleError: a model cannot meet its SLO or fits no GPU, or the rates asked for cannot
            be reached.
    """
    options, asked = inputs.options, read_demands(inputs)
    if taken:
        left = [
            n - taken.get(name, 0)
            for name, n in zip(asked.problem.classes, asked.problem.gpus, strict=True)
        ]
        asked = replace(asked, problem=replace(asked.problem, gpus=np.array(left, dtype=np.int64)))
    wanted = wanted_of(options, int(asked.joint.max()) + 1)
    trace = Trace()
    if options.objective == "throughput":
        scale, bound, found, parted = largest_scale(asked, wanted)
        rates, objective = asked.rates(scale), objective_of("throughput", scale, max(scale, bound))
    else:
        rates = asked.rates(1.0)
        found, parted, bound = _fewest_gpus(asked, wanted)
        value = float(sum(asked.price[s.kind] * s.gpus for s in found))
        objective = objective_of(options.objective, -value, -min(bound, value))
    trace.seconds["solve"] = inputs.watch.seconds()
    proven = objective.gap <= options.gap
    trace.status = "optimal" if proven else "feasible"
    trace.details = _certificate(asked, rates, found, parted)
    trace.notes.append(_analytic_note(trace.details, asked.utilisation))
    if not proven:
        trace.notes.append(
            "the bound is that of one sub-cluster per class; whole GPUs of several may cost the gap"
        )
    return Outcome(
        pipelines=_pipelines(asked, rates, found),
        objective=objective,
        trace=trace,
        promised_rps=tuple(rates.tolist()),
        policy=options.own["dispatch"],
        whole_tables=True,
        waits=TURN,
    )


def _fewest_gpus(
    asked: Demands, wanted: int | None
) -> tuple[list[Subcluster], list[ClusterPartition], float]:
    """Sub-clusters for given rates, and the least that their GPUs can cost."""
    load = asked.load(asked.rates(1.0))
    chosen = cheapest(to_class(asked, load))
    if chosen is None:
        raise out_of_reach(asked)
    classes, bound = chosen
    if asked.inputs.options.objective == "gpus":
        bound = float(np.ceil(bound - 1e-6))
    made = divided(asked, classes, load, wanted)
    if made is None:
        raise does_not_divide(asked)
    return *made, bound


def _pipelines(
    asked: Demands, rates: Floats, found: list[Subcluster]
) -> tuple[PlannedPipeline, ...]:
    return tuple(
        PlannedPipeline(
            model=model,
            batch=int(batches[model]),
            rate_rps=float(rates[model]),
            stages=(
                PlannedStage(
                    blocks=(0, asked.problem.models[model].blocks),
                    gpu_class=asked.problem.classes[part.kind],
                    divisor=1,
                    vgpus=part.gpus,
                    shared=number,
                    continues=part.continues,
                ),
            ),
        )
        for number, part in enumerate(found)
        for batches in [_batches(asked, rates, part)]
        for model in part.models.tolist()
    )


def _batches(asked: Demands, rates: Floats, part: Subcluster) -> Ints:
    """[m] batches of a sub-cluster's models at their rates.

    Of variants, at the rate at which each alone fills the GPU time of all: shares change with the
    load. Larger batches than planned take less of that time, and so allow less: hence twice.
    """
    curves = asked.curves[part.kind]
    found = curves.batches(rates)
    for number in np.unique(asked.joint[part.models]).tolist():
        own = np.flatnonzero(asked.joint == number)
        if len(own) == 1:
            continue
        time_s = float(curves.gpus(rates)[own].sum())
        column = np.zeros(len(own), dtype=np.int64)
        for _ in range(2):
            allowed = curves.starts_rps[own] * curves.work_s[own] <= time_s
            allowed[:, 0] = True
            column = np.where(allowed, np.arange(allowed.shape[1]), 0).max(axis=1)
            time_s = float(rates[own] @ curves.work_s[own, column])
        found[own] = curves.batch[own, column]
    return found


def _certificate(
    asked: Demands, rates: Floats, found: list[Subcluster], parted: list[ClusterPartition]
) -> dict[str, Any]:
    names, kinds = asked.problem.classes, np.array([s.kind for s in found])
    gpus = np.array([s.gpus for s in found])
    load = np.array([asked.curves[s.kind].gpus(rates)[s.models].sum() for s in found])
    held = np.array([asked.static_bytes[s.models].sum() for s in found])
    return {
        "analytic_gpus": {names[k]: sum(load[kinds == k].tolist()) for k in np.unique(kinds)},
        "subclusters": [
            {
                "gpu_class": names[s.kind],
                "gpus": s.gpus,
                "models": len(s.models),
                "load": own,
                "static_gib": size / BYTES_PER_GIB,
                "largest_dynamic_gib": float(asked.dynamic_bytes[s.models].max()) / BYTES_PER_GIB,
            }
            for s, own, size in zip(found, load.tolist(), held.tolist(), strict=True)
        ],
        "imbalance": {
            names[k]: {
                "load": imbalance((load / gpus)[kinds == k]),
                "memory": imbalance(held[kinds == k]),
            }
            for k in np.unique(kinds)
        },
        "partition": [
            {"value": p.value, "bound": p.bound, "gap": p.gap, "status": p.status} for p in parted
        ],
    }


def _analytic_note(details: Mapping[str, Any], utilisation: float) -> str:
    shown: list[str] = []
    for name, gpus in details["analytic_gpus"].items():
        mine = [part for part in details["subclusters"] if part["gpu_class"] == name]
        whole = sum(float(needed(part["load"], utilisation)) for part in mine)
        planned = sum(part["gpus"] for part in mine)
        shown.append(
            f"{name}: {gpus:.2f} GPUs, {whole:.2f} at utilisation {utilisation:g}, "
            f"{planned} planned"
        )
    return f"analytic (staggered batches) {'; '.join(shown)}"
