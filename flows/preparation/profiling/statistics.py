"""From run times to a cell: mean, percentiles, and how sure we are of the mean."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit  # scipy.stats takes a second to import

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySummary:
    """Run times of one cell, in microseconds.

    Attributes:
        ci_relative: half the width of the 95 % confidence interval of the mean (Student's t),
            divided by the mean; infinite for a single run.
    """

    mean_us: float
    p50_us: float
    p99_us: float
    runs: int
    ci_relative: float


def summarise(samples_us: Sequence[float]) -> LatencySummary:
    """Summary of at least one run time."""
    samples = np.asarray(samples_us, np.float64)
    return LatencySummary(
        mean_us=float(samples.mean()),
        p50_us=float(np.percentile(samples, 50)),
        p99_us=float(np.percentile(samples, 99)),
        runs=len(samples),
        ci_relative=relative_interval(samples_us),
    )


def relative_interval(samples_us: Sequence[float]) -> float:
    """Half the 95 % confidence interval of the mean, relative to the mean."""
    samples = np.asarray(samples_us, np.float64)
    if len(samples) < 2:  # noqa: PLR2004 - a spread needs two
        return float("inf")
    mean = float(samples.mean())
    if mean <= 0:
        return 0.0
    t = float(stdtrit(len(samples) - 1, (1 + CONFIDENCE) / 2))
    return t * float(samples.std(ddof=1)) / np.sqrt(len(samples)) / mean
