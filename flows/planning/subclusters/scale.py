"""The largest scale of the rates that sub-clusters carry, and its bound."""

from dataclasses import replace

import numpy as np

from flows.planning.engine.level import halved
from flows.planning.solver.tolerances import ROUNDING
from flows.planning.subclusters.classes import evenest
from flows.planning.subclusters.demands import Demands
from flows.planning.subclusters.division import (
    TRIES,
    Subcluster,
    divided,
    to_class,
)
from flows.planning.subclusters.free import needed
from flows.planning.subclusters.partition import ClusterPartition, spread
from flows.planning.subclusters.reach import (
    changes_of,
    does_not_divide,
    largest,
    out_of_reach,
    scale_bound,
)


def largest_scale(
    asked: Demands, wanted: int | None
) -> tuple[float, float, list[Subcluster], list[ClusterPartition]]:
    """The largest scale of the weights found, its bound, and the sub-clusters that carry it.

    Raises:
        InputError: as `divided`.
        InfeasibleError: no sub-clusters hold the models, or the GPUs are too few for them.
    """
    gap, bound = asked.inputs.options.gap, scale_bound(asked)
    best: tuple[float, list[Subcluster], list[ClusterPartition]] | None = None
    scale, enough = bound, bound * (1 - gap)
    for memory_weight in (1.0, 1e-3):  # even bytes cost load at times
        improved = best is None or best[0] < enough
        while improved and scale > 0:
            load = asked.load(asked.rates(scale))
            chosen = evenest(to_class(asked, load))
            if chosen is None:
                break
            made = divided(asked, chosen[0], load, wanted, memory_weight)
            if made is None:
                break
            reached = _scale_of(asked, made[0], bound)
            improved = best is None or reached > best[0] * (1 + gap)
            if improved:
                best, scale = (reached, *made), reached
            improved &= reached < enough
    if best is None:
        raise does_not_divide(asked)
    if best[0] <= 0:
        raise out_of_reach(asked)
    if len(asked.curves) > 1:
        bound = _proven_scale(asked, best[0], bound)
    return best[0], bound, _with_spare(asked, best), best[2]


def _proven_scale(asked: Demands, reached: float, bound: float) -> float:
    """A lower bound for several classes: scales at which even the evenest classes are too busy."""
    gap, watch = asked.inputs.options.gap, asked.inputs.watch

    def open_(scale: float) -> bool:
        if watch.over():
            return True
        made = evenest(to_class(asked, asked.least_load(asked.rates(scale))))
        return made is not None and made[1] <= 1 + 1e-6

    above = halved(open_, reached, bound, TRIES, gap)[1]
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
        changes_of(asked.curves[p.kind].starts_rps[p.models], asked.weight[p.models]) for p in found
    ]
    return largest(fits, np.concatenate(changes), bound)


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
