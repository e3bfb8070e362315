"""How fast stages run, in times of what the plan says, and which corrections follow.

A stage that is slow on its whole pool is planned with its true pace, so that what is promised can
be kept: its batches begin earlier, or are smaller. A correction that leaves no batch a chance could
never be seen to be wrong, so without runs it fades.

One rule for the gateway and the simulator. Here: measures, and whether they differ enough from what
the tables say. Not here: the tables (`kernel_api.correct_pace`), nor single workers that are slow.
"""

from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from statistics import median, median_low

from triton_backend.contract.plan import StagePlace

LAST_RUNS = 15
FEWEST_RUNS = 8
NEWEST_RUNS = 5
LOOK_EVERY_US = 500_000  # looking at every run of a hundred workers takes half a millisecond

AS_PLANNED = 100  # percent
# Beyond the first a stage or link is corrected, below the second no more; between them it stays.
CORRECTED_FROM, CORRECTED_TILL = 150, 125
CHANGE_FROM = 0.15  # of the correction in force
SLOW_AT_LEAST_US = 2_000
QUIET_US = 2_000_000


@dataclass(slots=True)
class Correction:
    """Time that something takes in percent of the planned, as last reported to the scheduler.

    `heard_us`: when something was reported of it last.
    """

    heard_us: int
    percent: int = AS_PLANNED

    def is_quiet(self, now_us: int) -> bool:
        """True if a correction is in force and nothing has been reported for long."""
        return self.percent != AS_PLANNED and now_us - self.heard_us > QUIET_US

    def fade(self, now_us: int) -> int:
        """Half as far from the plan as it was; what was seen long ago counts no more."""
        self.heard_us = now_us
        half = AS_PLANNED + (self.percent - AS_PLANNED) // 2
        return half if half >= CORRECTED_TILL else AS_PLANNED

    def follow(self, pace: float | None, planned_us: float) -> int:
        """The factor if work planned to take `planned_us` takes `pace` times as long."""
        if pace is None:
            return self.percent
        seen = round(AS_PLANNED * pace)
        late_us = (seen - AS_PLANNED) * planned_us / AS_PLANNED
        if seen >= CORRECTED_FROM and late_us > SLOW_AT_LEAST_US:
            return seen
        return AS_PLANNED if seen < CORRECTED_TILL else self.percent

    def set(self, wanted: int) -> bool:
        """Take what it should be; False where that differs too little to tell anybody."""
        large = abs(wanted - self.percent) > CHANGE_FROM * self.percent
        if large or wanted == AS_PLANNED != self.percent:
            self.percent = wanted
            return True
        return False


class StagePaces:
    """The corrections of stages in force, and the last runs that they follow from.

    Args:
        planned_us: planned latency of every stage's planned batch.
    """

    def __init__(self, planned_us: Mapping[StagePlace, int], now_us: int) -> None:
        self._planned_us = planned_us
        self._corrections = {stage: Correction(now_us) for stage in planned_us}
        # By vGPU, as ratios of what runs took to what they should.
        self._ratios: dict[StagePlace, dict[int, deque[float]]] = {
            stage: {} for stage in planned_us
        }

    def ran(
        self, stage: StagePlace, vgpu: int, took_us: int, expected_us: int, now_us: int
    ) -> None:
        """A vGPU reported a run."""
        self._corrections[stage].heard_us = now_us
        self.probed(stage, vgpu, took_us, expected_us)

    def probed(self, stage: StagePlace, vgpu: int, took_us: int, expected_us: int) -> None:
        """A vGPU ran a stage on zeros."""
        ratios = self._ratios[stage].get(vgpu)
        if ratios is None:
            ratios = self._ratios[stage][vgpu] = deque(maxlen=LAST_RUNS)
        ratios.append(took_us / expected_us)

    def forget(self, vgpu: int) -> None:
        """Forget the times of a vGPU."""
        for ratios in self._ratios.values():
            ratios.pop(vgpu, None)

    def changes(self, now_us: int, up: AbstractSet[int]) -> list[tuple[StagePlace, int]]:
        """Stages whose correction changes, with their latencies in percent of the planned ones."""
        found: list[tuple[StagePlace, int]] = []
        for stage, correction in self._corrections.items():
            if correction.is_quiet(now_us):
                self._ratios[stage].clear()
                wanted = correction.fade(now_us)
            elif now_us - correction.heard_us > QUIET_US:
                continue
            else:
                wanted = correction.follow(self._pace_of(stage, up), self._planned_us[stage])
            if correction.set(wanted):
                found.append((stage, wanted))
        return found

    def _pace_of(self, stage: StagePlace, up: AbstractSet[int]) -> float | None:
        """How long a stage takes, in times of its profile; None where too few runs say so.

        The lower middle of its workers: one of two that is slow says nothing about the pool. Of
        each the middle of its last runs, or of the newest where these were faster: at a few runs a
        second slow ones, the first of a process say, would else be planned with for as long again
        as they lasted.
        """
        paces = [
            min(median(ratios), median(list(ratios)[-NEWEST_RUNS:]))
            for vgpu, ratios in self._ratios[stage].items()
            if vgpu in up and len(ratios) >= FEWEST_RUNS
        ]
        return median_low(paces) if paces else None
