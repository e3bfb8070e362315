"""The two analytic figures of the Symphony paper (section 5.3, table 2).

Batches of GPUs in turn, or each for itself. GPUs in turn start a batch every l(b) / N, so (1 + 1/N)
l(b) <= SLO; GPUs that know nothing of each other have a request wait for a whole batch, so 2 l(b)
<= SLO.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.units import US_PER_S

Floats = NDArray[np.float64]


class Gathered(NamedTuple):
    """A batch size, and the requests/s that GPUs serve with it; batch 0 where none is in time."""

    batch: int
    rate_rps: float


def staggered(latency_us: Floats, slo_us: float, gpus: int) -> Gathered:
    """Largest batch of GPUs that take turns, (1 + 1/N) l(b) <= SLO (Symphony, table 2).

    Args:
        latency_us: [batches] latency of batch b at b - 1.
        slo_us: from arrival to answer.
        gpus: that serve the model alone.
    """
    return _gathered(latency_us, slo_us / (1 + 1 / gpus), gpus)


def uncoordinated(latency_us: Floats, slo_us: float, gpus: int) -> Gathered:
    """Largest batch of GPUs that know nothing of each other: a request waits for a whole batch."""
    return _gathered(latency_us, slo_us / 2, gpus)


def _gathered(latency_us: Floats, most_us: float, gpus: int) -> Gathered:
    fitting = np.flatnonzero(np.maximum.accumulate(latency_us) <= most_us)
    if not len(fitting):
        return Gathered(0, 0.0)
    batch = int(fitting[-1]) + 1
    return Gathered(batch, gpus * batch * US_PER_S / float(latency_us[batch - 1]))
