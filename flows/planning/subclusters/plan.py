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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flows.planning.certificate import objective_of
from flows.planning.engine.level import halved
from flows.planning.inputs import (
    Problem,
    build_problem,
    gpu_prices,
    limits_us,
    model_bytes,
    require_rates,
    room_gib,
)
from flows.planning.registry import (
    Inputs,
    Outcome,
    PlannedPipeline,
    PlannedStage,
    PlanOptions,
    Trace,
)
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.tolerances import EXACT, ROUNDING
from flows.planning.subclusters.classes import ToClass, cheapest, evenest
from flows.planning.subclusters.free import carried, needed
from flows.planning.subclusters.gathering import Curves, curves
from flows.planning.subclusters.partition import (
    ClusterPartition,
    PartitionProblem,
    divide,
    imbalance,
    spread,
    sums,
)
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import BYTES_PER_GIB, Plan
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.contract.units import us_to_ms
from triton_backend.contract.workload import TURN, Workload

AUTO = "auto"
_TRIES = 8  # more sub-clusters, or GPUs, than the least that may do
_SHOWN = 6  # models in a complaint


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """The problem as arrays over m models and k classes.

    Attributes:
        inputs: that it was read from.
        curves: of every class.
        weight: [m] requests/s per unit of the objective.
        least_rps: [m] rates that are kept at least.
        static_bytes, dynamic_bytes: [m].
        room_bytes: [k] of one GPU for models; infinite where not known.
        price: [k] of one GPU in the objective.
        joint: [m] number of the models that share a sub-cluster with each: those of one name.
        before: [m] pool of each model under the plan in force, -1 where it has none.
        pools: names of those pools and their classes.
    """

    inputs: Inputs
    problem: Problem
    curves: tuple[Curves, ...]
    weight: Floats
    least_rps: Floats
    static_bytes: Floats
    dynamic_bytes: Floats
    room_bytes: Floats
    price: Floats
    joint: Ints
    before: Ints
    pools: tuple[tuple[str, int], ...]

    @property
    def utilisation(self) -> float:
        """Share of the time of many GPUs that may be planned."""
        return self.inputs.options.own["utilisation"]

    def rates(self, scale: float) -> Floats:
        """[m] requests/s at a value of the objective."""
        return np.maximum(self.weight * scale, self.least_rps)

    def load(self, rate_rps: Floats) -> Floats:
        """[m, k] GPUs; infinite where a model cannot run."""
        return self._each(lambda k: self.curves[k].gpus(rate_rps))

    def least_load(self, rate_rps: Floats) -> Floats:
        """[m, k] GPUs that these rates and all higher ones need at least."""
        return self._each(lambda k: self.curves[k].least_gpus(rate_rps))

    def _each(self, of: Callable[[int], Floats]) -> Floats:
        load = np.column_stack([of(k) for k in range(len(self.curves))])
        too_big = (self.static_bytes + self.dynamic_bytes)[:, None] > self.room_bytes[None, :]
        return np.where(too_big | (self.problem.gpus == 0)[None, :], np.inf, load)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subcluster:
    """One sub-cluster: models by number, GPUs of a class, the pool whose place it takes."""

    kind: int
    models: Ints
    gpus: int
    continues: str | None = None


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
    wanted = _wanted(options, int(asked.joint.max()) + 1)
    trace = Trace()
    if options.objective == "throughput":
        scale, bound, found, parted = _largest_scale(asked, wanted)
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


# Reading


def read_demands(inputs: Inputs) -> Demands:
    """The inputs as arrays.

    Raises:
        InputError: the inputs do not fit together, or a price or rate is missing.
        InfeasibleError: a model meets its SLO on no class, or fits none.
    """
    cluster, demands, options = inputs.cluster, inputs.workload.models, inputs.options
    require_rates(inputs.workload, options.objective)
    problem = build_problem(inputs, whole_gpus=True)
    limit = limits_us(demands, options)
    static_bytes, dynamic_bytes = model_bytes(inputs.profiles[d.name] for d in demands)
    kinds = range(len(problem.classes))
    asked = Demands(
        inputs=inputs,
        problem=problem,
        curves=tuple(curves(latencies(problem, k), limit) for k in kinds),
        weight=np.array([d.normaliser(options.objective) for d in demands]),
        least_rps=np.array([options.minimum_rps.get(d.name, 0.0) for d in demands]),
        static_bytes=static_bytes,
        dynamic_bytes=dynamic_bytes,
        room_bytes=np.array([room_gib(c, WHOLE_GPU) * BYTES_PER_GIB for c in cluster.gpu_classes]),
        price=gpu_prices(cluster, options.objective),
        joint=_joint(inputs.workload),
        before=np.full(len(demands), -1, dtype=np.int64),
        pools=(),
    )
    _check_possible(asked, limit)
    return asked if options.previous is None else _continued(asked, options.previous)


def _joint(workload: Workload) -> Ints:
    """[m] number of the name for which each model answers, in the order of names."""
    variant_of = workload.variant_of
    names = [variant_of.get(model.name, model.name) for model in workload.models]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], dtype=np.int64)


def latencies(problem: Problem, kind: int) -> Floats:
    """[m, batches] latency of the whole model on a whole GPU of a class, infinite where unknown."""
    most = max(model.batches for model in problem.models)
    out = np.full((len(problem.models), most), np.inf)
    for number, model in enumerate(problem.models):
        for row, gpu_type in enumerate(model.types.tolist()):
            if problem.types[gpu_type][0] == kind:
                out[number, : model.batches] = model.latency_us[row, 0, model.blocks]
    return out


def _check_possible(asked: Demands, limit_us: Floats) -> None:
    possible = np.isfinite(asked.load(np.ones(len(limit_us))))
    for number in np.flatnonzero(~possible.any(axis=1)).tolist():
        demand = asked.inputs.workload.models[number]
        where = f"workload model {demand.name!r}"
        single = [latencies(asked.problem, k)[number, 0] for k in range(len(asked.curves))]
        best = int(np.argmin(single))
        held = float(asked.static_bytes[number] + asked.dynamic_bytes[number])
        if not np.isfinite(single[best]) or single[best] <= limit_us[number]:
            reason = f"its {held / BYTES_PER_GIB:.3f} GiB fit no GPU of a class that it may use"
            raise InfeasibleError(where, reason)
        raise InfeasibleError(
            where,
            f"the whole model takes at least {us_to_ms(float(single[best])):.3f} ms, on "
            f"{asked.problem.classes[best]}, where SLO less margin allow "
            f"{us_to_ms(float(limit_us[number])):.3f} ms",
        )


def _continued(asked: Demands, previous: Plan) -> Demands:
    """The same with where models are under the plan in force: whole models on whole GPUs."""
    kinds = {name: kind for kind, name in enumerate(asked.problem.classes)}
    pools = tuple(
        (pool.name, kinds[pool.gpu_class])
        for pool in previous.pools
        if pool.share == WHOLE_GPU and pool.gpu_class in kinds
    )
    numbers = {name: number for number, (name, _) in enumerate(pools)}
    names = {model.name: number for number, model in enumerate(asked.problem.models)}
    before = asked.before.copy()
    for model, pipeline, stage, _ in previous.placed_stages():
        if model.name in names and len(pipeline.stages) == 1 and stage.pool in numbers:
            before[names[model.name]] = numbers[stage.pool]
    return replace(asked, before=before, pools=pools)


def _wanted(options: PlanOptions, models: int) -> int | None:
    """Sub-clusters asked for; None where they are chosen here."""
    text: str = options.own["subclusters"]
    if text == AUTO:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InputError("option subclusters", f"{text!r} is neither a positive number nor {AUTO}")
    if int(text) > models:
        reason = f"{text} sub-clusters for {models} models: each holds one at least"
        raise InputError("option subclusters", reason)
    return int(text)


# Classes and sub-clusters


def _to_class(asked: Demands, load: Floats) -> ToClass:
    kinds = np.array([kind for _, kind in asked.pools] or [-1], dtype=np.int64)
    _, first = np.unique(asked.joint, return_index=True)
    before = asked.before[first]
    return ToClass(
        load=np.column_stack([sums(asked.joint, each) for each in load.T]),
        static_bytes=sums(asked.joint, asked.static_bytes),
        room_bytes=asked.room_bytes,
        gpus=asked.problem.gpus,
        price=asked.price,
        utilisation=asked.utilisation,
        before=np.where(before >= 0, kinds[before], -1),
        inputs=asked.inputs,
    )


def _fewest_gpus(
    asked: Demands, wanted: int | None
) -> tuple[list[Subcluster], list[ClusterPartition], float]:
    """Sub-clusters for given rates, and the least that their GPUs can cost."""
    load = asked.load(asked.rates(1.0))
    chosen = cheapest(_to_class(asked, load))
    if chosen is None:
        raise _out_of_reach(asked)
    classes, bound = chosen
    if asked.inputs.options.objective == "gpus":
        bound = float(np.ceil(bound - 1e-6))
    made = _divided(asked, classes, load, wanted)
    if made is None:
        raise _does_not_divide(asked)
    return *made, bound


def _divided(
    asked: Demands,
    classes: Ints,
    load: Floats,
    wanted: int | None,
    memory_weight: float | None = None,
) -> tuple[list[Subcluster], list[ClusterPartition]] | None:
    """Sub-clusters of every class that was chosen; None where one is not divided.

    With a weight of memory on all GPUs, as even as can be, whether or not the load fits.
    """
    kinds = classes[asked.joint]
    found: list[Subcluster] = []
    parted: list[ClusterPartition] = []
    for kind, count in _counts(asked, kinds, load, wanted).items():
        models = np.flatnonzero(kinds == kind)
        whole = _to_part(asked, models, kind, load[models, kind])
        need = float(needed(load[models, kind].sum(), asked.utilisation))
        gpus = max(1, int(np.ceil(need - ROUNDING)))
        if memory_weight is not None:
            whole = replace(whole, utilisation=np.inf, memory_weight=memory_weight)
            gpus = whole.gpus
        part = _parted(asked, whole, (count, gpus), fixed=wanted is not None)
        if part is None and memory_weight is None and need > whole.gpus - count:
            raise _out_of_reach(asked, f" in {count} sub-clusters")
        if part is None:
            return None
        found += _named(asked, kind, models, part)
        parted.append(part)
    return found, parted


def _counts(asked: Demands, chosen: Ints, load: Floats, wanted: int | None) -> dict[int, int]:
    """Sub-clusters of every class in use: the least that may hold the models, or as asked for.

    Raises:
        InputError: fewer are asked for than classes and memory need, or more than can be.
    """
    used = np.unique(chosen).tolist()
    least: dict[int, int] = {}
    work: dict[int, float] = {}
    for kind in used:
        models = chosen == kind
        room = float(asked.room_bytes[kind])
        held = float(asked.static_bytes[models].sum())
        least[kind] = max(1, int(np.ceil(held / room))) if np.isfinite(room) and held else 1
        work[kind] = float(load[models, kind].sum())
    if wanted is None:
        return least
    if wanted < sum(least.values()):
        names = ", ".join(f"{count} on {asked.problem.classes[k]}" for k, count in least.items())
        reason = f"{wanted} cannot hold the models, which need {names}"
        raise InputError("option subclusters", reason)
    counts = dict(least)
    for _ in range(wanted - sum(least.values())):
        names = {k: len(np.unique(asked.joint[chosen == k])) for k in used}
        most = {k: min(names[k], int(asked.problem.gpus[k])) for k in used}
        room_left = [k for k in used if counts[k] < most[k]]
        if not room_left:
            reason = f"{wanted} are more than there are models, or GPUs of their classes"
            raise InputError("option subclusters", reason)
        counts[max(room_left, key=lambda k: work[k] / counts[k])] += 1
    return counts


def _to_part(asked: Demands, models: Ints, kind: int, load: Floats) -> PartitionProblem:
    """The division on one class; `_parted` fills in parts, GPUs and labels."""
    mine = [number for number, (_, at) in enumerate(asked.pools) if at == kind]
    label = {number: place for place, number in enumerate(mine)}
    _, first, joint = np.unique(asked.joint[models], return_index=True, return_inverse=True)
    before = [label.get(int(number), -1) for number in asked.before[models][first]]
    largest = np.zeros(len(first))
    np.maximum.at(largest, joint, asked.dynamic_bytes[models])
    return PartitionProblem(
        load=sums(joint, load),
        static_bytes=sums(joint, asked.static_bytes[models]),
        dynamic_bytes=largest,
        room_bytes=float(asked.room_bytes[kind]),
        parts=1,
        gpus=int(asked.problem.gpus[kind]),
        utilisation=asked.utilisation,
        before=np.array(before, dtype=np.int64),
    )


def _parted(
    asked: Demands, whole: PartitionProblem, least: tuple[int, int], *, fixed: bool
) -> ClusterPartition | None:
    """The first division that fits, from the least sub-clusters and GPUs on.

    Even ones may take a GPU more for each part; sizes are free where none of them fits.
    """
    parts, gpus = least
    most = parts if fixed else min(len(whole.load), whole.gpus, parts + _TRIES)
    for count in range(parts, most + 1):
        before = np.where(whole.before < count, whole.before, -1)  # those that hold most bytes
        numbers = range(max(gpus, count), min(whole.gpus, max(gpus, count) + _TRIES) + 1)
        tried = [(True, number) for number in numbers[: count + 1]]
        tried += [(False, number) for number in numbers if count > 1]
        for even, number in tried:
            to_part = replace(whole, parts=count, gpus=number, before=before, even=even)
            if even and count > 1 and whole.load.max() > _share(to_part):
                continue
            options, watch = asked.inputs.options, asked.inputs.watch
            part = divide(to_part, watch, options.solver, options.gap)
            if part is not None:
                return part
    return None


def _share(to_part: PartitionProblem) -> float:
    """Load that the largest of equal parts may have."""
    if np.isfinite(to_part.utilisation):
        return float(carried(to_part.most, to_part.utilisation))
    return float(to_part.load.sum()) / to_part.parts


def _named(asked: Demands, kind: int, models: Ints, part: ClusterPartition) -> list[Subcluster]:
    """Parts as sub-clusters; each goes on with the pool of its label."""
    mine = [name for name, at in asked.pools if at == kind]
    _, joint = np.unique(asked.joint[models], return_inverse=True)
    return [
        Subcluster(
            kind=kind,
            models=models[part.part[joint] == number],
            gpus=int(gpus),
            continues=mine[number] if number < len(mine) else None,
        )
        for number, gpus in enumerate(part.gpus)
    ]


# The largest scale


def _largest_scale(
    asked: Demands, wanted: int | None
) -> tuple[float, float, list[Subcluster], list[ClusterPartition]]:
    """The largest scale of the weights found, its bound, and the sub-clusters that carry it."""
    gap, bound = asked.inputs.options.gap, _scale_bound(asked)
    best: tuple[float, list[Subcluster], list[ClusterPartition]] | None = None
    scale, enough = bound, bound * (1 - gap)
    for memory_weight in (1.0, 1e-3):  # even bytes cost load at times
        improved = best is None or best[0] < enough
        while improved and scale > 0:
            load = asked.load(asked.rates(scale))
            chosen = evenest(_to_class(asked, load))
            if chosen is None:
                break
            made = _divided(asked, chosen[0], load, wanted, memory_weight)
            if made is None:
                break
            reached = _scale_of(asked, made[0], bound)
            improved = best is None or reached > best[0] * (1 + gap)
            if improved:
                best, scale = (reached, *made), reached
            improved &= reached < enough
    if best is None:
        raise _does_not_divide(asked)
    if best[0] <= 0:
        raise _out_of_reach(asked)
    if len(asked.curves) > 1:
        bound = _proven_scale(asked, best[0], bound)
    return best[0], bound, _with_spare(asked, best), best[2]


def _scale_bound(asked: Demands) -> float:
    """A scale that nothing exceeds, whatever the sub-clusters.

    A load relative to the GPUs of its class is the share of the class that a model takes. Shares of
    a class sum to 1 at most, so all models' least shares sum to at most the number of classes.
    """
    gpus = carried(asked.problem.gpus, asked.utilisation)
    used = np.flatnonzero(gpus > 0)

    def shares(load: Floats) -> float:
        return float((load[:, used] / gpus[used]).min(axis=1).sum())

    most = len(used) * (1 + EXACT)
    work = np.column_stack([asked.curves[k].work_s[:, -1] / gpus[k] for k in used])
    above = len(used) / float((asked.weight * work.min(axis=1)).sum())
    # no scale beyond the last at which even the least GPUs fit, which never fall, fits at all
    above = halved(lambda s: shares(asked.least_load(asked.rates(s))) <= most, 0.0, above)[1]
    changes = np.concatenate([_changes(c.starts_rps, asked.weight) for c in asked.curves])
    return _largest(lambda s: shares(asked.load(asked.rates(s))) <= most, changes, above)


def _changes(starts_rps: Floats, weight: Floats) -> Floats:
    """Scales at which a model's batch changes; none of a model that is asked for nothing."""
    asked = weight > 0
    return (starts_rps[asked] / weight[asked, None]).ravel()


def _largest(fits: Callable[[float], bool], changes: Floats, above: float) -> float:
    """The largest scale up to `above` that fits; 0 where none does.

    Between two `changes` of a batch size GPUs grow with the scale: the last change that fits is
    found, and the largest scale from there to the next one.
    """
    if fits(above):
        return above
    edges = np.unique(changes[(changes > 0) & (changes < above)])
    for edge in [*edges[::-1].tolist(), 0.0]:
        if edge > 0 and not fits(edge):
            above = edge
            continue
        return halved(fits, edge, above)[0]
    return 0.0


def _proven_scale(asked: Demands, reached: float, bound: float) -> float:
    """A lower bound for several classes: scales at which even the evenest classes are too busy."""
    gap, watch = asked.inputs.options.gap, asked.inputs.watch

    def open_(scale: float) -> bool:
        if watch.over():
            return True
        made = evenest(_to_class(asked, asked.least_load(asked.rates(scale))))
        return made is not None and made[1] <= 1 + 1e-6

    above = halved(open_, reached, bound, _TRIES, gap)[1]
    settled = reached * (1 + gap)
    return settled if settled < above and not open_(settled) else above


def _scale_of(asked: Demands, found: list[Subcluster], bound: float) -> float:
    """The largest scale at which sub-clusters fit the GPUs of their classes."""

    def fits(scale: float) -> bool:
        need = np.zeros(len(asked.curves))
        rates = asked.rates(scale)
        for part in found:
            load = float(asked.curves[part.kind].gpus(rates)[part.models].sum())
            need[part.kind] += max(1.0, np.ceil(needed(load, asked.utilisation) * (1 - ROUNDING)))
        return bool((need <= asked.problem.gpus).all())

    changes = [
        _changes(asked.curves[p.kind].starts_rps[p.models], asked.weight[p.models]) for p in found
    ]
    return _largest(fits, np.concatenate(changes), bound)


def _with_spare(
    asked: Demands, best: tuple[float, list[Subcluster], list[ClusterPartition]]
) -> list[Subcluster]:
    """GPUs as the scale needs them, and what is left of a class where need per GPU is highest."""
    scale, found, _ = best
    rates = asked.rates(scale)
    out: list[Subcluster] = []
    for kind in sorted({part.kind for part in found}):
        mine = [part for part in found if part.kind == kind]
        gpus = asked.curves[kind].gpus(rates)
        load = np.array([float(gpus[part.models].sum()) for part in mine])
        need = needed(load, asked.utilisation)
        least = np.ones(len(mine), dtype=np.int64)
        most = int(asked.problem.gpus[kind])
        more = most - len(mine)
        out += [
            replace(part, gpus=int(count))
            for part, count in zip(mine, spread(need, least, more, most), strict=True)
        ]
    return out


def _does_not_divide(asked: Demands) -> InfeasibleError:
    """The complaint that memory holds no division."""
    rooms = ", ".join(
        f"{room / BYTES_PER_GIB:.3g} GiB on {name}"
        for name, room in zip(asked.problem.classes, asked.room_bytes.tolist(), strict=True)
        if np.isfinite(room)
    )
    held = asked.static_bytes.sum() / BYTES_PER_GIB
    reason = f"no sub-clusters were found that hold the models: {held:.3g} GiB of weights"
    return InfeasibleError("workload", f"{reason}, room on a GPU {rooms or 'not known'}")


def _out_of_reach(asked: Demands, how: str = "") -> InfeasibleError:
    """Why rates cannot be reached, with the share of them that can."""
    rates = asked.rates(1.0)
    floor = replace(asked, weight=rates, least_rps=np.zeros_like(rates))
    share = min(_scale_bound(floor), 1.0)
    reason = f"the cluster reaches at most {share:.1%} of the rates asked for{how}"
    return beyond_reach(asked.inputs, rates, reason)


def beyond_reach(inputs: Inputs, rates: Floats, reason: str) -> InfeasibleError:
    """The complaint that rates cannot be reached, with the highest of the rates."""
    asked = zip(inputs.workload.models, rates.tolist(), strict=True)
    highest = sorted(asked, key=lambda pair: -pair[1])
    shown = ", ".join(f"{demand.name} {rate:g}" for demand, rate in highest[:_SHOWN])
    more = f" and {len(highest) - _SHOWN} more" if len(highest) > _SHOWN else ""
    return InfeasibleError("workload", f"{reason} (requests/s: {shown}{more})")


# The decision


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
