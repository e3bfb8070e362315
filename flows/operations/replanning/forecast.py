"""Which rates the next period should be planned for.

Two readings of the past, the higher of which is taken, with headroom: a quantile of the same hours
on earlier days (what the clock says) and the same quantile of the last hours (what is going on).
Tried on five days of per-minute function calls and kept for it; single spikes that no earlier day
and no earlier hour shows are, by construction, not foreseen.
"""

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flows.operations.replanning.options import ForecastOptions
from flows.operations.replanning.rates import RateHistory
from triton_backend.contract.errors import InputError
from triton_backend.scheduler.policies.demand import LEAST_RATE_RPS


def forecast_rps(
    history: RateHistory, at: int, horizon: int, options: ForecastOptions
) -> NDArray[np.float64]:
    """Rates to plan for, for the intervals [at, at + horizon), from those before `at` only.

    Returns:
        array [models], requests per second.

    Raises:
        InputError: nothing was measured before `at`.
    """
    if at < 1 or at > len(history.rps):
        raise InputError("forecast", f"no measured interval before interval {at}")
    recent = history.rps[max(0, at - max(1, options.recent_s // history.interval_s)) : at]
    windows = [recent]
    for day in range(1, options.days + 1):
        first = at - day * history.per_day
        if first + horizon > 0:
            windows.append(history.rps[max(0, first) : min(at, first + horizon)])
    same_hours = np.concatenate(windows[1:]) if len(windows) > 1 else recent
    with warnings.catch_warnings():
        # A model that was never measured has only NaN; that is a rate of zero, not a warning.
        warnings.simplefilter("ignore", RuntimeWarning)
        levels = [np.nanquantile(w, options.quantile, axis=0) for w in (recent, same_hours)]
    return np.nan_to_num(np.fmax(*levels)) * options.headroom


def rates_to_plan(names: Sequence[str], rps: NDArray[np.float64]) -> dict[str, float]:
    """A forecast by model, none below `LEAST_RATE_RPS`."""
    return {name: max(rate, LEAST_RATE_RPS) for name, rate in zip(names, rps.tolist(), strict=True)}
