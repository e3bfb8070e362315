"""Workers drained because they stayed slow: tried now and then, and let back in time.

A drained worker gets no batches and keeps its process: often it is well, and was only kept from
its processor. After a rest it is told to run its stage on nothing, five times a second. When its
last trials are within bounds it is back; when they stay slow its process is renewed, because then
the fault may lie there. One that comes and goes rests twice as long each time.

Here: when whom to try. Not here: what is slow (`slow`), messages (`driver`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from triton_backend.serving.transport.wire import Kind

TRIAL_EVERY_US = 200_000
FIRST_REST_US = 1_000_000
LONGEST_REST_US = 32_000_000
# Back for so long, a worker's former cases are forgotten.
GOOD_AFTER_US = 60_000_000
RENEW_AFTER_US = 10_000_000


@dataclass(slots=True)
class _Case:
    rest_us: int
    next_us: int
    first_trial_us: int | None = None
    back_us: int | None = None


class DrainedWorkers:
    """The drained vGPUs of a generation."""

    def __init__(self) -> None:
        self._cases: dict[int, _Case] = {}

    def __contains__(self, vgpu: int) -> bool:
        """Whether a vGPU is drained."""
        case = self._cases.get(vgpu)
        return case is not None and case.back_us is None

    def __iter__(self) -> Iterator[int]:
        """The vGPUs drained."""
        return iter([vgpu for vgpu in self._cases if vgpu in self])

    def drain(self, vgpu: int, now_us: int) -> None:
        """No more batches for this one."""
        former = self._cases.get(vgpu)
        rest_us = FIRST_REST_US
        if former is not None and former.back_us is not None:
            recent = now_us - former.back_us < GOOD_AFTER_US
            rest_us = min(2 * former.rest_us, LONGEST_REST_US) if recent else FIRST_REST_US
        self._cases[vgpu] = _Case(rest_us, now_us + rest_us)

    def back(self, vgpu: int, now_us: int) -> None:
        """It is well again."""
        if vgpu in self:
            self._cases[vgpu].back_us = now_us

    def forget(self, vgpu: int) -> None:
        """Its process is gone: whatever was, it is not drained."""
        self._cases.pop(vgpu, None)

    def orders(self, now_us: int) -> list[tuple[int, Kind]]:
        """Who is to be told what now."""
        due: list[tuple[int, Kind]] = []
        for vgpu in self:
            case = self._cases[vgpu]
            if now_us < case.next_us:
                continue
            case.next_us = now_us + TRIAL_EVERY_US
            if case.first_trial_us is None:
                case.first_trial_us = now_us
            renew = now_us - case.first_trial_us > RENEW_AFTER_US
            due.append((vgpu, Kind.RETIRE if renew else Kind.PACE_PROBE))
        return due
