"""Observations counted by bucket, of which histograms among the metrics are made.

Counting is cheap, publishing is not: each observation costs a call of Triton's, see
`server.metrics`.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.units import TIME_BOUNDS_US, US_PER_S

TIME_BOUNDS_S = tuple(bound_us / US_PER_S for bound_us in TIME_BOUNDS_US)


@dataclass(slots=True)
class Buckets:
    """Observations by bucket, one bucket more for what lies above all bounds.

    Attributes:
        bounds: upper bounds of the buckets, in the unit they are published in.
        per_unit: observations are whole numbers of 1 / `per_unit` of it.
        sums: of observations, by bucket.
    """

    bounds: tuple[float, ...]
    per_unit: int = 1
    counts: list[int] = field(init=False)
    sums: list[int] = field(init=False)
    _edges: NDArray[np.float64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._edges = np.array(self.bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sums = [0] * (len(self.bounds) + 1)

    @classmethod
    def of_times(cls) -> "Buckets":
        """For times in µs, in buckets that are the same everywhere, so that they can be added."""
        return cls(TIME_BOUNDS_S, US_PER_S)

    def observe(self, value: int) -> None:
        """Count one."""
        bucket = bisect_left(self.bounds, value / self.per_unit)
        self.counts[bucket] += 1
        self.sums[bucket] += value

    def observe_all(self, values: Sequence[int]) -> None:
        """Count many, which costs less than one by one."""
        found = np.searchsorted(self._edges, np.array(values) / self.per_unit)
        self.add(
            np.bincount(found, minlength=len(self.counts)).tolist(),
            np.bincount(found, weights=values, minlength=len(self.sums)).astype(np.int64).tolist(),
        )

    def add(self, counts: Sequence[int], sums: Sequence[int]) -> None:
        """Count what was counted elsewhere in the same buckets."""
        self.counts = [a + b for a, b in zip(self.counts, counts, strict=True)]
        self.sums = [a + b for a, b in zip(self.sums, sums, strict=True)]
