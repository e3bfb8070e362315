"""The planner `gpulets`: how many GPUs follow which pattern, as a plan of pools that take turns.

Here: the goal, the answer as pipelines, and where patterns lie. Not here: finding them (`master`).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from flows.clock import Stopwatch
from flows.planning.certificate import objective_of
from flows.planning.gpulets.master import Answer, Chosen, Goal, Master
from flows.planning.gpulets.mig import SliceMaster
from flows.planning.gpulets.patterns import Pattern
from flows.planning.gpulets.tables import read_tables
from flows.planning.placement import Gpu, gpus_of, joined, node_now
from flows.planning.registry import (
    Inputs,
    Outcome,
    PlannedCut,
    PlannedPipeline,
    PlannedStage,
)
from flows.planning.solver.arrays import Floats
from flows.planning.solver.tolerances import ROUND_OFF_US
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import PlacementRun, Plan, PoolInterference, SeatInterference
from triton_backend.contract.workload import MARGIN

POLICY = "turns-window"
SMALL_BATCH = 4  # planned batches up to this may be larger in a burst, on a part without others
_P99 = NormalDist().inv_cdf(0.99)  # in standard deviations

Content = tuple[tuple[int, tuple[str, ...]], ...]  # (share, models) of every part, sorted


def plan(inputs: Inputs) -> Outcome:
    """The best counts of patterns, with a bound over all patterns.

    Raises:
        InputError: inputs do not fit together, or the options ask for what this planner has not.
        InfeasibleError: a model misses its SLO everywhere, or rates are out of reach.
    """
    watch = Stopwatch()
    tables = read_tables(inputs)
    if inputs.options.minimum_rps:
        raise InputError("option minimum_rps", "gpulets plans weights or rates, no least rates")
    divided = any(table.slices and table.gpus for table in tables.classes)
    master = (SliceMaster if divided else Master)(tables, inputs.watch)
    enumerated = watch.seconds()
    answer, promised = solve(master, inputs)
    answer.trace.seconds |= {"enumerate": enumerated, "solve": watch.seconds() - enumerated}
    if inputs.options.own["interference"] == "planned":
        answer.trace.notes += [
            f"{table.name}: no interference model, neighbours are taken not to disturb each other"
            for table in tables.classes
            if table.gpus and not table.interference and not table.slices
        ]
    every = [own for patterns in master.patterns for own in patterns.options.values()]
    if any(own.thinned for own in every):
        answer.trace.notes.append(
            "parts have too many choices of batches: those of a ladder were combined, and "
            "the bound "
            "is over these"
        )
    answer.trace.configurations["options"] = sum(own.number for own in every)
    return outcome_of(master, inputs, answer, promised)


def solve(master: Master, inputs: Inputs) -> tuple[Answer, Floats]:
    """The answer in the objective's units, and what every model is promised (requests/s).

    Raises:
        InfeasibleError: the rates asked for are out of reach; the reason says what of them is not.
    """
    demands, options = inputs.workload.models, inputs.options
    asked = np.array([d.normaliser(options.objective) for d in demands])
    goal = Goal(demand=asked, gap=options.gap, solver=options.solver)
    if options.objective == "throughput":
        answer = master.solve(goal, inputs.watch)
        if answer.score <= 0 < answer.bound and inputs.watch.over():
            raise inputs.watch.no_plan()
        if answer.score <= 0:
            reason = "no plan found in which its GPUs serve every model; "
            reason += "there is none" if answer.bound <= 0 else "that there is none is not proven"
            raise InfeasibleError("cluster", reason)
        return answer, asked * answer.score
    answer = master.solve(replace(goal, prices=master.tables.prices), inputs.watch)
    if not answer.chosen:  # how much of the demand can be served, up to all of it?
        _out_of_reach(master.solve(replace(goal, enough=1.0), inputs.watch))
    return answer, asked


def _out_of_reach(most: Answer) -> None:
    if most.bound < 1:
        reason = (
            f"its GPUs carry at most {most.bound:.4g} of the rates asked for, whatever the plan; "
            f"the best found {max(0.0, most.score):.4g}"
        )
    else:
        reason = (
            f"the best found carries {max(0.0, most.score):.4g} of the rates asked for; that none "
            f"carries more is not proven (bound {most.bound:.4g})"
        )
    raise InfeasibleError("cluster", reason)


# From patterns to pipelines


def outcome_of(master: Master, inputs: Inputs, answer: Answer, promised: Floats) -> Outcome:
    """Pools of parts, a pipeline per seat.

    Each model is promised its rate, spread over its seats.
    """
    gpus_of = places(master, inputs.cluster, answer.chosen, inputs.options.previous)
    total = sum((n * c.rates_rps for c, n in answer.chosen), np.zeros(len(promised)))
    share = np.minimum(1.0, promised / np.where(total > 0, total, 1.0))
    pipelines: list[PlannedPipeline] = []
    for number, (pattern, slot, runs) in enumerate(_pools(master, answer.chosen, gpus_of)):
        pipelines += seat_pipelines(master, inputs, pattern, slot, number, runs, share)
    return Outcome(
        pipelines=tuple(pipelines),
        objective=objective_of(inputs.options.objective, answer.score, answer.bound),
        trace=answer.trace,
        policy=POLICY,
        waits=MARGIN,
    )


def _pools(
    master: Master, chosen: Chosen, gpus_of: Sequence[Sequence[Gpu]]
) -> list[tuple[Pattern, int, tuple[PlacementRun, ...]]]:
    """A pattern, the number of a part in it and where such parts lie, for every pool.

    Parts of a pattern are apart, because of what they feel. Those of slices feel nothing, so all
    that do the same are one pool.
    """
    found: list[tuple[Pattern, int, tuple[PlacementRun, ...]]] = []
    alike: dict[tuple[int, int, int], int] = {}
    for (pattern, _), gpus in zip(chosen, gpus_of, strict=True):
        for slot, part in enumerate(pattern.parts):
            runs = slot_runs(gpus, slot)
            key = (pattern.gpu_class, *part)
            if key in alike:
                first, at, before = found[alike[key]]
                found[alike[key]] = first, at, (*before, *runs)
                continue
            if master.tables.classes[pattern.gpu_class].slices:
                alike[key] = len(found)
            found.append((pattern, slot, runs))
    return found


def seat_pipelines(
    master: Master,
    inputs: Inputs,
    pattern: Pattern,
    slot: int,
    pool: int,
    runs: tuple[PlacementRun, ...],
    share_of_rate: Floats,
) -> list[PlannedPipeline]:
    """One pipeline per seat of a part.

    Args:
        master: the patterns.
        inputs: what was asked.
        pattern: of the part.
        slot: number of the part in it.
        pool: number of the part's pool.
        runs: where it lies.
        share_of_rate: [model] that is promised of what its seats carry.
    """
    count = sum(run.vgpus for run in runs)
    own = master.of_class(pattern.gpu_class)
    share, row = pattern.parts[slot]
    options, table = own.options[share], own.table
    alone = _alone(master, inputs, pattern)
    pressures = [max(seat.pressure for seat in part) for part in alone]
    felt = sum(pressures[:slot] + pressures[slot + 1 :])  # as the pattern was found with
    models = [int(m) for m in options.model[row] if m >= 0]
    batches = options.batch[row].tolist()
    seats = alone[slot] if alone else [_seat(0.0, 0.0)] * len(models)
    slowed = table.interference and len(pattern.parts) > 1
    inflation = table.inflation if slowed else 1.0
    if slowed:
        seats = [replace(s, factor=max(1.0, s.susceptibility + felt) * inflation) for s in seats]
    known_us = [
        [math.ceil(int(v) * seat.factor - ROUND_OFF_US) for v in table.cells[share][m].latency_us]
        for m, seat in zip(models, seats, strict=True)
    ]
    duty = sum(max(us[:batch]) for us, batch in zip(known_us, batches, strict=False))
    interference = None
    if alone:
        interference = PoolInterference(
            pressure=pressures[slot], felt=felt, inflation=inflation, seats=tuple(seats)
        )
    # So large that a request that comes right after the start of a batch is in time with as
    # large a one.
    limit_us = float(master.tables.limit_us[models[0]]) / 2 if len(models) == 1 else 0.0
    return [
        PlannedPipeline(
            model=model,
            batch=batch,
            rate_rps=count * batch * 1e6 / duty * float(share_of_rate[model]),
            stages=(
                PlannedStage(
                    blocks=(0, inputs.profiles[master.tables.models[model]].blocks),
                    gpu_class=table.name,
                    divisor=1,
                    vgpus=count,
                    shared=pool,
                    duty_cycle_us=duty,
                    cut=PlannedCut(share=share, placement=runs, interference=interference),
                    latency_us_by_batch=_with_larger(us, batch, limit_us),
                ),
            ),
        )
        for model, batch, us in zip(models, batches, known_us, strict=False)
    ]


def _with_larger(known_us: Sequence[int], planned: int, limit_us: float) -> tuple[int, ...]:
    """Latencies up to the planned batch, and of batches that a burst fills at low rates.

    A burst is the 99th percentile of Poisson arrivals. Larger batches than these gain nothing: they
    vary less, and a part that runs one for long has those late that come meanwhile. Nor do sizes
    that take longer for a sample than the planned batch: a part all of whose time is planned would
    fall behind by them.
    """
    each = known_us[planned - 1] / planned
    end, most = planned, min(len(known_us), math.ceil(planned + _P99 * math.sqrt(planned)))
    while (
        planned <= SMALL_BATCH and end < most and known_us[end] <= min(limit_us, each * (end + 1))
    ):
        end += 1
    return tuple(known_us[:end])


def _alone(master: Master, inputs: Inputs, pattern: Pattern) -> list[list[SeatInterference]]:
    """Susceptibility and pressure of every seat of every part; empty where they are not known.

    They are stated in plans that reckon with no interference too: a simulation shows what that
    comes to.
    """
    own = master.of_class(pattern.gpu_class)
    known = None if own.table.slices else inputs.interference.get(own.table.name)
    if known is None:
        return []
    found: list[list[SeatInterference]] = []
    for share, row in pattern.parts:
        options, part = own.options[share], list[SeatInterference]()
        for model, batch in zip(options.model[row], options.batch[row], strict=True):
            if model < 0:
                continue
            profile = inputs.profiles.get(master.tables.models[model])
            if profile is None:  # an open seat
                cell = own.table.cells[share][int(model)]
                suffers, presses = cell.susceptibility[0], cell.pressure[0]
            elif (used := profile.utilisation(own.table.name, share)) is None:
                return []
            else:
                at = used[0][batch - 1], used[1][batch - 1]
                suffers, presses = known.susceptibility(*at), known.pressure(*at)
            part.append(_seat(float(suffers), float(presses)))
        found.append(part)
    return found


def _seat(susceptibility: float, pressure: float) -> SeatInterference:
    """A seat that nothing slows down."""
    return SeatInterference(susceptibility=susceptibility, pressure=pressure, factor=1.0)


def slot_runs(gpus: Sequence[Gpu], slot: int) -> tuple[PlacementRun, ...]:
    """One slot of every GPU."""
    return tuple(joined([PlacementRun(node=node, gpu=gpu, slot=slot) for node, gpu in gpus]))


def places(
    master: Master, cluster: Cluster, chosen: Chosen, previous: Plan | None
) -> list[list[Gpu]]:
    """GPUs of every pattern: those that did the same under the plan in force, then unused ones."""
    held = {} if previous is None else _contents(previous, cluster)
    free = {k: sorted(gpus_of(cluster, c.name)) for k, c in enumerate(master.tables.classes)}
    found: list[list[Gpu]] = [[] for _ in chosen]
    for same in (True, False):
        for (pattern, count), own in zip(chosen, found, strict=True):
            gpus, content = free[pattern.gpu_class], _content(master, pattern)
            near = [gpu for gpu in gpus if not same or held.get(gpu) == content]
            own.extend(sorted(near, key=lambda gpu: gpu in held)[: count - len(own)])
            gone = set(own)
            free[pattern.gpu_class] = [gpu for gpu in gpus if gpu not in gone]
    return found


def _content(master: Master, pattern: Pattern) -> Content:
    """Shares and models of a pattern, as `_contents` gives those of a plan."""
    own = master.of_class(pattern.gpu_class)
    names = master.tables.models
    return tuple(
        sorted(
            (share, tuple(names[m] for m in own.options[share].model[row] if m >= 0))
            for share, row in pattern.parts
        )
    )


def _contents(in_force: Plan, cluster: Cluster) -> dict[Gpu, Content]:
    """The content of every GPU of the plan in force, without nodes that are gone."""
    models: dict[str, list[str]] = {}
    for model, _, stage, _ in in_force.placed_stages():
        models.setdefault(stage.pool, []).append(model.name)
    found: dict[Gpu, list[tuple[int, tuple[str, ...]]]] = {}
    for pool in in_force.pools:
        for slot in pool.slots():
            node = node_now(in_force.cluster, cluster, slot.node)
            if node is not None:
                part = (pool.share, tuple(models[pool.name]))
                found.setdefault((node, slot.gpu), []).append(part)
    return {gpu: tuple(sorted(parts)) for gpu, parts in found.items()}
