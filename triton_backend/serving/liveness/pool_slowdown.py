"""Pools that are slower than planned as a whole: their latencies in the scheduler's tables follow.

One slow worker of a pool is drained (`slow`). Where a whole pool, or the only worker of one, takes
much longer than its profile, the machine or the profile is off, and draining helps nobody: the
scheduler is told by how much, so that it promises what can be kept. A correction that leaves no
batch a chance could never be seen to be wrong, so without runs it fades.

Here: which corrections are due. Not here: what they change (`core.scheduler`).
"""

from collections.abc import Iterable

from triton_backend.serving.liveness.slow_workers import SLOW_AT_LEAST_US, PaceWatch

Pool = tuple[int, int, int]
AS_PLANNED = 100  # percent
# Beyond the first a pool is corrected, below the second no more; between them it stays as it is.
CORRECTED_FROM, CORRECTED_TILL = 150, 125
CHANGE_FROM = 0.15  # of the correction in force
QUIET_US = 2_000_000


class PoolPaces:
    """The corrections in force.

    Args:
        planned_us: planned latency of every pool's planned batch.
    """

    def __init__(self, pace: PaceWatch, planned_us: dict[Pool, int], now_us: int) -> None:
        self._pace = pace
        self._planned_us = planned_us
        self._percent = dict.fromkeys(planned_us, AS_PLANNED)
        self._heard_us = dict.fromkeys(planned_us, now_us)

    def heard(self, pool: Pool, now_us: int) -> None:
        """A worker of the pool reported a run, its last one at `now_us`."""
        self._heard_us[pool] = max(self._heard_us[pool], now_us)

    def changes(self, now_us: int, up: Iterable[int]) -> list[tuple[Pool, int]]:
        """Pools whose correction changes, with their latencies in percent of the planned ones."""
        up = tuple(up)
        found: list[tuple[Pool, int]] = []
        for pool, percent in self._percent.items():
            wanted = self._wanted(pool, percent, now_us, up)
            large = abs(wanted - percent) > CHANGE_FROM * percent
            if large or wanted == AS_PLANNED != percent:
                self._percent[pool] = wanted
                found.append((pool, wanted))
        return found

    def _wanted(self, pool: Pool, percent: int, now_us: int, up: tuple[int, ...]) -> int:
        if now_us - self._heard_us[pool] > QUIET_US:
            return self._faded(pool, percent, now_us)
        pace = self._pace.pace_of(pool, up)
        if pace is None:
            return percent
        seen = round(AS_PLANNED * pace)
        late_us = (seen - AS_PLANNED) * self._planned_us[pool] / AS_PLANNED
        if seen >= CORRECTED_FROM and late_us > SLOW_AT_LEAST_US:
            return seen
        return AS_PLANNED if seen < CORRECTED_TILL else percent

    def _faded(self, pool: Pool, percent: int, now_us: int) -> int:
        """Half as far from the plan as it was; what was seen long ago counts no more."""
        if percent == AS_PLANNED:
            return percent
        self._heard_us[pool] = now_us
        self._pace.forget_pool(pool)
        half = AS_PLANNED + (percent - AS_PLANNED) // 2
        return half if half >= CORRECTED_TILL else AS_PLANNED
