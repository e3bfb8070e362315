"""Grouping layers into blocks: an exact dynamic program.

Section 5.2 of the PPipe paper groups greedily; here the grouping is exact and also keeps little
data on the boundaries.

    Given    times t_0 .. t_{n-1} of the layers, legal cuts P ⊆ {1 .. n-1}, bytes w_p at each cut,
             a number of blocks N, tolerances e above and d below.
    Choose   cuts p_1 < … < p_{N-1} from P.
    Subject  (1 - d) · T/N ≤ time of each block ≤ (1 + e) · T/N,  T = Σ t.
    Minimise Σ w_p; among equals the fewest cuts inside a fused group of layers, then the most even
             block times, then the earliest cuts.

e and d start equal and small. Where no grouping exists, because one layer alone takes longer than a
share, e grows to the least step that works and then d, so that the other blocks stay even.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError

TOLERANCES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0)
# Ties are broken by fractions of a byte, too small to outweigh one.
FUSED_SHARE, UNEVEN_SHARE = 0.5, 0.25
ROUND_OFF = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """Blocks as layer positions: block i is layers [cuts[i], cuts[i + 1]).

    Attributes:
        tolerance: how far a block's time may lie above an equal share (fraction of the share):
            the smallest of `TOLERANCES` (or the number of blocks, which allows everything) for
            which a grouping exists.
        tolerance_below: the same for times below an equal share, given `tolerance`.
        boundary_bytes: total over the boundaries, per sample.
    """

    cuts: tuple[int, ...]
    tolerance: float
    tolerance_below: float
    boundary_bytes: int


def group_layers(times_us: Sequence[float], cut_bytes: Mapping[int, int], blocks: int) -> Grouping:
    """Group layers into `blocks` blocks, or as many as there are legal cuts for.

    Args:
        times_us: run time of every layer.
        cut_bytes: legal cut position (1 .. layers - 1) to bytes per sample that cross it.
        blocks: number of blocks wanted.

    Raises:
        InputError: fewer than one block is asked for.
    """
    if blocks < 1:
        raise InputError("blocks", f"{blocks} is not a positive number of blocks")
    count = min(blocks, len(cut_bytes) + 1)
    positions = [0, *sorted(cut_bytes), len(times_us)]
    elapsed = np.concatenate(([0.0], np.cumsum(times_us)))[positions]
    share = elapsed[-1] / count
    fused = [p < len(times_us) and times_us[p] == 0 for p in positions]
    costs = np.array(
        [
            cut_bytes.get(p, 0) + FUSED_SHARE * f / count
            for p, f in zip(positions, fused, strict=True)
        ]
    )
    above = next(
        e
        for e in (*TOLERANCES, float(count))
        if _best(elapsed, costs, count, (share, min(e, 1.0), e)) is not None
    )
    for below in TOLERANCES:
        chosen = _best(elapsed, costs, count, (share, below, above))
        if chosen is not None:
            cuts = tuple(positions[i] for i in chosen)
            return Grouping(
                cuts=cuts,
                tolerance=above,
                tolerance_below=below,
                boundary_bytes=sum(cut_bytes[p] for p in cuts[1:-1]),
            )
    raise AssertionError("what was possible with the widest band is possible with one of these")


def _best(
    elapsed: NDArray[np.float64],
    costs: NDArray[np.float64],
    count: int,
    band: tuple[float, float, float],
) -> list[int] | None:
    """Indices of the best cuts, first and last included; None where no grouping fits the band.

    best[k, p] is the least cost of layers before position p as k blocks.
    """
    share, below, above = band
    slack = share * ROUND_OFF
    low, high = share * (1 - below) - slack, share * (1 + above) + slack
    last = len(elapsed) - 1
    whole = max(float(elapsed[-1]), ROUND_OFF)
    best = np.full((count + 1, last + 1), np.inf)
    came_from = np.zeros((count + 1, last + 1), np.int64)
    best[0, 0] = 0.0
    for k in range(1, count + 1):
        for p in range(k, last + 1):
            first = int(np.searchsorted(elapsed, elapsed[p] - high, side="left"))
            end = int(np.searchsorted(elapsed, elapsed[p] - low, side="right"))
            end = min(end, p)
            if first >= end:
                continue
            uneven = ((elapsed[p] - elapsed[first:end] - share) / whole) ** 2
            totals = best[k - 1, first:end] + UNEVEN_SHARE * uneven / count
            choice = int(np.argmin(totals))
            best[k, p] = totals[choice] + (costs[p] if p < last else 0.0)
            came_from[k, p] = first + choice
    if not np.isfinite(best[count, last]):
        return None
    path = [last]
    for k in range(count, 0, -1):
        path.append(int(came_from[k, path[-1]]))
    return path[::-1]
