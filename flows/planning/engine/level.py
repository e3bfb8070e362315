"""The highest level of demand that is within reach.

What a level takes (GPUs, the share of all resources) rises with it, nearly in proportion, so the
next level to try is guessed from a straight line through what is known on both sides: a little
above it, then a little below, which ends the search where the line was right. Where it was not
(what a level takes has steps), the middle is tried instead of guesses near an end. At a fixed
level, demands are fixed, and a column counts for no more than is asked: that makes the relaxation
much tighter where resources are few.

Here: where to look. Not here: what a level takes (`cover`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from flows.planning.engine.columns import Pool
from flows.planning.engine.cover import Relaxed, relax
from flows.planning.engine.master import Cover, level_column
from flows.planning.engine.pricing import Pricer
from flows.planning.solver.arrays import Floats
from flows.planning.solver.tolerances import ROUNDING
from flows.planning.watch import Watch

_NEAR = 1 / 8  # of what is open: a guess this close to an end is near it
_BESIDE = 0.45  # of what may stay open: how far beside the line a guess is
_FALLS = 40
_HALVINGS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """Levels on both sides of the highest.

    `low` is reached, `high` is not, as far as was looked; and what they take, where that is known.
    """

    low: float
    high: float
    at_low: float = np.nan
    at_high: float = np.inf


def bracket(
    takes: Callable[[float], float],
    available: float,
    known: Bracket,
    *,
    close: float,
    watch: Watch,
    rounds: int = _HALVINGS,
) -> Bracket:
    """Close in on the highest level that takes no more than there is.

    Args:
        takes: what a level takes; rises with it. Infinite where it is out of reach.
        available: what there is.
        known: a level that is reached (0 always is) and one that is not.
        close: relative to the upper end, at which it ends.
        watch: the clock.
        rounds: levels that are tried at most.
    """
    low, high, at_low, at_high = known.low, known.high, known.at_low, known.at_high
    at_low = at_low if low else 0.0
    tried = False
    for _ in range(rounds):
        width = high - low
        if width <= close * high or watch.over():
            break
        line = _line((low, at_low), (high, at_high), available)
        beside = _BESIDE * close * high
        level = line - beside if high - line < width * _NEAR else line + beside
        if min(line - low, high - line) < width * _NEAR:
            level, tried = low + width / 2 if tried else level, True
        level = min(max(level, low + beside), high - beside)
        taken = takes(level)
        if taken > available * (1 + ROUNDING):
            high, at_high = level, taken
        else:
            low, at_low = level, taken
    return Bracket(low=low, high=high, at_low=at_low, at_high=at_high)


def halved(
    fits: Callable[[float], bool],
    low: float,
    high: float,
    halvings: int = _HALVINGS,
    close: float = 0.0,
) -> tuple[float, float]:
    """A level that fits, where `low` does, and one close above it that does not.

    No straight line is assumed.

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


def _line(low: tuple[float, float], high: tuple[float, float], available: float) -> float:
    """The level between two at which a straight line takes what there is; else the middle."""
    width = high[0] - low[0]
    if not np.isfinite(high[1] + low[1]) or high[1] <= low[1]:
        return low[0] + width / 2
    return low[0] + (available - low[1]) * width / (high[1] - low[1])


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
    *,
    falls: float = 1e-4,
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
        falls: relative fall of the bound that is worth going on for.
    """
    best = relax(cover, pricer, pool, watch)
    for _ in range(_FALLS):
        level = -best.bound
        if not np.isfinite(level) or not (level * weight < cover.cap).any() or watch.over():
            break
        lower = replace(cover, cap=np.minimum(level * weight, cover.cap))
        again = relax(lower, pricer, pool, watch, start=best.duals)
        fell = again.bound - best.bound
        if fell > 0:
            cover, best = lower, again
        if fell <= falls * level:
            break
    return cover, best
