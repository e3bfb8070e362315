"""How many GPUs a model needs at a rate when its batches are gathered in turn: the closed form.

N GPUs that run batches of b in turn start one every l(b) / N. A request waits at most so long
before its batch starts, then l(b) while it runs (Symphony, section 3.3, equations 1 and 2):

    (1 + 1/N) l(b) <= SLO          N b / l(b) >= rate

With b / rate in the place of l(b) / N both hold for any number of GPUs that models share, whole or
not, and for parts of one GPU it is the rule of Nexus:

    b(rate) = max {b : l(b) + b / rate <= SLO}          gpus(rate) = rate l(b) / b

A batch of one does not wait: it is possible wherever l(1) <= SLO. Between two changes of b the
GPUs grow with the rate; where the rate allows a larger batch they fall. So a rate may need fewer
GPUs than a lower one; `least_gpus` is what any rate from a given one on needs at least.

Here: curves of models as arrays.
Not here: which models share GPUs.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flows.planning.solver.arrays import Floats, Ints
from triton_backend.contract.units import US_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """GPUs that rates need, of m models on one GPU class.

    Attributes:
        starts_rps: [m, batches] rate from which on a batch size is possible; column b - 1 is batch
            b. 0 for batch 1 where the SLO allows it, infinite where a size is too slow or was not
            measured.
        work_s: [m, batches] GPU-seconds of a request in the cheapest batch up to that size.
        batch: [m, batches] that batch.
    """

    starts_rps: Floats
    work_s: Floats
    batch: Ints

    @property
    def possible(self) -> NDArray[np.bool_]:
        """[m] whether a model meets its SLO at all."""
        return np.isfinite(self.starts_rps[:, 0])

    def gpus(self, rate_rps: Floats) -> Floats:
        """GPUs for a rate of every model: [..., m] as the rates; infinite where none do."""
        at = self._at(rate_rps)
        return np.where(self.possible, rate_rps * self.work_s[np.arange(at.shape[-1]), at], np.inf)

    def batches(self, rate_rps: Floats) -> Ints:
        """Batch for a rate of every model, [..., m]."""
        at = self._at(rate_rps)
        return self.batch[np.arange(at.shape[-1]), at]

    def least_gpus(self, rate_rps: Floats) -> Floats:
        """[m] GPUs that no rate from the given one on undercuts; they never fall with the rate."""
        at = self._at(rate_rps)
        rows = np.arange(len(at))
        with np.errstate(invalid="ignore"):
            begin = np.where(np.isfinite(self.starts_rps), self.starts_rps * self.work_s, np.inf)
        later = np.minimum.accumulate(begin[:, ::-1], axis=1)[:, ::-1]
        later = np.hstack([later[:, 1:], np.full((len(at), 1), np.inf)])
        now = np.where(self.possible, rate_rps * self.work_s[rows, at], np.inf)
        return np.minimum(now, later[rows, at])

    def _at(self, rate_rps: Floats) -> Ints:
        """Column of the largest batch that each rate allows."""
        counts = (self.starts_rps <= rate_rps[..., None]).sum(axis=-1)
        return np.maximum(counts - 1, 0).astype(np.int64)


def curves(latency_us: Floats, limit_us: Floats) -> Curves:
    """Curves from latency tables.

    Args:
        latency_us: [m, batches], infinite where a size was not measured.
        limit_us: [m] SLO less margin.
    """
    slowest = np.maximum.accumulate(latency_us, axis=1)
    sizes = np.arange(1, latency_us.shape[1] + 1, dtype=np.float64)
    left_us = limit_us[:, None] - slowest
    with np.errstate(divide="ignore", invalid="ignore"):
        starts = np.where(left_us > 0, sizes * US_PER_S / left_us, np.inf)
        each = np.where(np.isfinite(starts), slowest / sizes / US_PER_S, np.inf)
    first = slowest[:, 0] <= limit_us
    starts[:, 0] = np.where(first, 0.0, np.inf)
    each[:, 0] = np.where(first, slowest[:, 0] / US_PER_S, np.inf)
    starts[~first] = np.inf
    work = np.minimum.accumulate(each, axis=1)
    best = np.where(each <= work, np.arange(each.shape[1]), 0)
    return Curves(starts_rps=starts, work_s=work, batch=np.maximum.accumulate(best, axis=1) + 1)
