"""How many GPUs to add to a pool, or to free, from what was measured of it in an epoch.

Two signals suffice, because late binding keeps batches large and uses the lowest-numbered GPUs
first (Symphony, section 3.5). For a pool whose peak is p requests/s and an offered load o:

    overload    bad fraction r ~ (o - p) / o     more GPUs:   N r / (1 - r)
    slack       idle fraction f ~ (p - o) / p    fewer GPUs:  N f

`change` is that, word by word. It frees GPUs until all are busy, which costs requests again: it
rings. `damped_change` leaves a share of their time free, and waits an epoch before it turns round.

Here: figures and formulas. Not here: measuring, and changing a plan.
"""

import math
from dataclasses import dataclass

from triton_backend.contract.errors import InputError

BAD_THRESHOLD = 0.01  # of requests; fewer are no overload
UTILISATION = 0.9  # of a GPU's time
_WORST = 0.9  # a bad fraction beyond counts as this: no more than ten times the GPUs at once
_ROUNDING = 1e-9


def idle_fraction(busy_us: float, vgpus: int, span_us: float) -> float:
    """Share of their time that vGPUs ran nothing; 1 where there was no time.

    Args:
        busy_us: time that they ran batches, summed.
        vgpus: how many there are.
        span_us: how long they were watched.
    """
    total_us = vgpus * span_us
    return 1.0 if total_us <= 0 else min(1.0, max(0.0, 1.0 - busy_us / total_us))


def bad_rate(offered: int, served: int) -> float:
    """Share of requests that were not answered in time; 0 where none came."""
    return (offered - served) / offered if offered else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """The measurements of a pool.

    Attributes:
        gpus: that it had, in whole GPUs and parts.
        idle: idle fraction of their time.
        bad: share of the requests of its models that were not answered in time.
    """

    gpus: float
    idle: float
    bad: float

    def __post_init__(self) -> None:
        if not self.gpus > 0:
            raise InputError("epoch, gpus", f"{self.gpus} is not positive")
        for name in ("idle", "bad"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"epoch, {name}", f"{getattr(self, name)} is not in [0, 1]")


def change(epoch: Epoch, threshold: float = BAD_THRESHOLD) -> int:
    """GPUs to add (positive) or to free, by the paper's formulas: rounded up, and down.

    At least a part of a GPU stays.
    """
    if epoch.bad > threshold:
        bad = min(epoch.bad, _WORST)
        return math.ceil(epoch.gpus * bad / (1 - bad) - _ROUNDING)
    return -_freed(epoch, epoch.gpus * epoch.idle)


def damped_change(
    epoch: Epoch,
    last_change: int = 0,
    *,
    utilisation: float = UTILISATION,
    threshold: float = BAD_THRESHOLD,
) -> int:
    """GPUs to add (positive) or to free, so that a share of their time is busy.

    What is busy now is carried by busy / utilisation GPUs; under overload, 1 / (1 - r) times the
    GPUs carry all, at full use.

    Args:
        epoch: what was measured.
        last_change: GPUs that were added (or freed: below 0) before this epoch; a change the other
            way waits for the next one, but not under overload.
        utilisation: share of the time that shall be busy.
        threshold: bad fraction that counts as overload.
    """
    busy = epoch.gpus * (1 - epoch.idle)
    if epoch.bad > threshold:
        busy = max(busy, epoch.gpus / (1 - min(epoch.bad, _WORST)))
    more = busy / utilisation - epoch.gpus
    wanted = math.ceil(more - _ROUNDING) if more > 0 else -_freed(epoch, -more)
    turns = wanted * last_change < 0
    return 0 if turns and epoch.bad <= threshold else wanted


def _freed(epoch: Epoch, spare: float) -> int:
    """Whole GPUs of those to spare, but for the last."""
    return min(math.floor(spare + _ROUNDING), math.ceil(epoch.gpus) - 1)
