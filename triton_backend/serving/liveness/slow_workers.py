"""Telling a worker that has become slow, or silent, from a machine that is busy.

A worker is slow when most of its last runs lasted much longer than its profile, and much longer
than those of the others of its pool: where all are as slow, it is the machine or the profile. It is
well again when a few trials in a row were not much longer; it is overdue when it should have reported long ago, measured
by how late reports are just now. Single late runs need nothing of this: the scheduler's tables
follow every report.
"""

from collections import deque
from collections.abc import Iterable
from statistics import median, median_low

LAST_RUNS = 15
FEWEST_RUNS = 8
SLOW_FACTOR = 2.0
# Less than what counts as slow, so that a worker at the limit does not come and go.
WELL_FACTOR = 1.5
FEWEST_TRIALS = 5
SLOW_AT_LEAST_US = 2_000
OVERDUE_FACTOR = 4
OVERDUE_AT_LEAST_US = 150_000
OVERDUE_LATENESS_FACTOR = 10
_WEIGHT_OF_NEWEST = 0.05


class PaceWatch:
    """The pace of every vGPU of a plan.

    Args:
        pools: the pool of every vGPU, by anything that tells pools apart.
    """

    def __init__(self, pools: list[tuple[int, int, int]]) -> None:
        self._pools = pools
        self._ratios = [deque[float](maxlen=LAST_RUNS) for _ in pools]
        self._lateness_us = 0.0

    def ran(self, vgpu: int, took_us: int, expected_us: int, late_us: int) -> bool:
        """A vGPU ran a batch and reported it `late_us` after its reserved end.

        Returns:
            whether the run gives reason to ask `is_slow`.
        """
        self._lateness_us += _WEIGHT_OF_NEWEST * (max(late_us, 0) - self._lateness_us)
        self._ratios[vgpu].append(took_us / expected_us)
        slow = took_us > SLOW_FACTOR * expected_us and took_us - expected_us > SLOW_AT_LEAST_US
        return slow and len(self._ratios[vgpu]) >= FEWEST_RUNS

    def forget(self, vgpu: int) -> None:
        """A new process stands for the vGPU."""
        self._ratios[vgpu].clear()

    def is_slow(self, vgpu: int, up: Iterable[int]) -> bool:
        """Whether a vGPU must be drained, given the vGPUs that are up."""
        if len(self._ratios[vgpu]) < FEWEST_RUNS or self.untried(vgpu, up):
            return False
        pace = self._pace_of_others(vgpu, up)
        return pace is not None and median(self._ratios[vgpu]) > SLOW_FACTOR * pace

    def untried(self, vgpu: int, up: Iterable[int]) -> list[int]:
        """Others of the pool of which too little is known to compare a vGPU with them."""
        return [
            other
            for other in up
            if other != vgpu
            and self._pools[other] == self._pools[vgpu]
            and len(self._ratios[other]) < FEWEST_TRIALS
        ]

    def tried(self, vgpu: int, took_us: int, expected_us: int) -> None:
        """A vGPU ran its stage on nothing."""
        self._ratios[vgpu].append(took_us / expected_us)

    def is_well(self, vgpu: int, up: Iterable[int]) -> bool:
        """Whether the last trials of a vGPU were within bounds, or its pool has nobody else."""
        pace = self._pace_of_others(vgpu, up)
        if pace is None:
            return True
        last = list(self._ratios[vgpu])[-FEWEST_TRIALS:]
        return len(last) == FEWEST_TRIALS and median(last) <= WELL_FACTOR * pace

    def _pace_of_others(self, vgpu: int, up: Iterable[int]) -> float | None:
        """How long the others of the pool take, in times of their profile; at least 1."""
        others = [
            median(self._ratios[other]) if self._ratios[other] else 1.0
            for other in up
            if other != vgpu and self._pools[other] == self._pools[vgpu]
        ]
        return max(median(others), 1.0) if others else None

    def pace_of(self, pool: tuple[int, int, int], up: Iterable[int]) -> float | None:
        """How long a pool takes, in times of its profile; None where too few runs say so.

        The lower middle of its workers: one of two that is slow says nothing about the pool.
        """
        paces = [
            median(self._ratios[vgpu])
            for vgpu in up
            if self._pools[vgpu] == pool and len(self._ratios[vgpu]) >= FEWEST_RUNS
        ]
        return median_low(paces) if paces else None

    def forget_pool(self, pool: tuple[int, int, int]) -> None:
        """What its workers took until now says nothing any more."""
        for vgpu, own in enumerate(self._pools):
            if own == pool:
                self._ratios[vgpu].clear()

    def overdue_after_us(self, expected_us: float) -> float:
        """How long after its reserved end a batch that lasts `expected_us` is given up."""
        return max(
            OVERDUE_FACTOR * expected_us,
            OVERDUE_AT_LEAST_US,
            OVERDUE_LATENESS_FACTOR * self._lateness_us,
        )
