"""Telling a worker that has become slow from a machine that is busy.

A worker is slow when its runs have lasted much longer than its profile for a while, and much longer
than the others' of its pool, and the pool has others. Single late runs need nothing of this: the
scheduler's tables follow every report.
"""

from dataclasses import dataclass
from statistics import median

FEWEST_RUNS = 8
SLOW_FACTOR = 2.0
_WEIGHT_OF_NEWEST = 0.25


@dataclass(slots=True)
class _Pace:
    runs: int = 0
    ratio: float = 1.0  # run time over profile, exponentially weighted


class PaceWatch:
    """The pace of every vGPU of a plan.

    Args:
        pools: number of the pool of every vGPU.
    """

    def __init__(self, pools: list[tuple[int, int, int]]) -> None:
        self._pools = pools
        self._paces = [_Pace() for _ in pools]

    def ran(self, vgpu: int, took_us: int, expected_us: int) -> None:
        """A vGPU ran a batch."""
        pace = self._paces[vgpu]
        pace.runs += 1
        pace.ratio += _WEIGHT_OF_NEWEST * (took_us / expected_us - pace.ratio)

    def forget(self, vgpu: int) -> None:
        """A new process stands for the vGPU."""
        self._paces[vgpu] = _Pace()

    def is_slow(self, vgpu: int, up: set[int]) -> bool:
        """Whether a vGPU must be drained, given the vGPUs that are up."""
        pace = self._paces[vgpu]
        if pace.runs < FEWEST_RUNS or pace.ratio < SLOW_FACTOR:
            return False
        others = [
            self._paces[other].ratio
            for other in up
            if other != vgpu and self._pools[other] == self._pools[vgpu]
        ]
        return bool(others) and pace.ratio > SLOW_FACTOR * median(others)
