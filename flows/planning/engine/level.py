"""The highest level of demand that is within reach.

What a level takes (GPUs, the share of all resources) rises with it, so levels are halved. At a
fixed level, demands are fixed, and a column counts for no more than is asked: that makes the
relaxation much tighter where resources are few.

Here: where to look. Not here: what a level takes (`cover`).
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from flows.planning.engine.columns import Pool
from flows.planning.engine.cover import Relaxed, relax
from flows.planning.engine.master import Cover, level_column
from flows.planning.engine.pricing import Pricer
from flows.planning.solver.arrays import Floats
from flows.planning.watch import Watch

_LEAST_FALL = 1e-5  # relative, of a bound that is worth going on for
_HALVINGS = 60


def halved(
    fits: Callable[[float], bool],
    low: float,
    high: float,
    halvings: int = _HALVINGS,
    close: float = 0.0,
) -> tuple[float, float]:
    """A level that fits, where `low` does, and one close above it that does not.

    Args:
        fits: whether a level does.
        low: a level that fits.
        high: one that does not, as far as is known.
        halvings: at most.
        close: relative to the upper end, at which it ends before.
    """
    for _ in range(halvings):
        if high - low <= close * high:
            break
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low, high


def last(fits: Callable[[int], bool], low: int, high: int) -> int:
    """A whole number that fits, where `low` does and `high` does not, whose next one does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def highest_above(fits: Callable[[int], bool], known: int, most: int) -> int:
    """The highest whole number up to `most` that fits, if the next one above a known one does."""
    if known >= most or not fits(known + 1):
        return known
    return last(fits, known + 1, most + 1)


def level_cover(weight: Floats, capacity: Floats, most: float = np.inf) -> Cover:
    """Maximise the level: no demand is fixed, a column counts for weight · most at most."""
    cap = np.multiply(weight, most, out=np.zeros(len(weight)), where=weight > 0)
    return Cover(
        need=np.zeros(len(weight)),
        capacity=capacity,
        free=level_column(weight, len(capacity), most),
        cap=cap,
        missed=np.full(len(weight), np.inf),
    )


def highest(
    cover: Cover,
    weight: Floats,
    pricer: Pricer,
    pool: Pool,
    watch: Watch,
) -> tuple[Cover, Relaxed]:
    """The highest level, relaxed.

    The cover that bounds it and its relaxation, whose bound is minus that level. No plan is above
    the bound b of the relaxation, so no column need count for more than b · weight: relaxed again
    with that cap the bound falls, until it falls by less than a share.

    Args:
        cover: of a level (`level_cover`).
        weight: [D] of demands per unit of the level.
        pricer: the source of columns.
        pool: columns known, which grows.
        watch: the clock.
    """
    best = relax(cover, pricer, pool, watch)
    while True:
        level = -best.bound
        if not np.isfinite(level) or not (level * weight < cover.cap).any() or watch.over():
            break
        lower = replace(cover, cap=np.minimum(level * weight, cover.cap))
        again = relax(lower, pricer, pool, watch, start=best.duals)
        fell = again.bound - best.bound
        if fell > 0:
            cover, best = lower, again
        if fell <= _LEAST_FALL * level:
            break
    return cover, best
