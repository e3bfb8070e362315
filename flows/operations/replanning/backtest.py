"""Replanning replayed over measured days, period by period, seeing only the past.

Every period is forecast from the intervals before it, planned for at least cost, and held against
what really came. Capacity is what the plan's vGPUs carry; an interval's requests above it are lost
(a fluid view: queues do not carry over). Here: the arithmetic. Not here: the planner and the
simulator, which come in as functions, and the chart (`flows/reporting`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flows.clock import Stopwatch
from flows.operations.replanning.forecast import ForecastOptions, forecast_rps, rates_to_plan
from flows.operations.replanning.rates import RateHistory
from flows.operations.replanning.simulated import capacities
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.policies.demand import planned_rates

Planner = Callable[[Mapping[str, float]], Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """One planned period; rates are by name (`demands`), in the history's order.

    Attributes:
        first, intervals: the first interval of the period, and how many it has.
        gpus: GPUs the plan uses.
        planned_rps: what the plan promises; `capacity_rps`, at least as much, is what its vGPUs
            can.
        offered_rps, served_rps: means over the period; served is offered up to capacity.
        plan_seconds: wall time of the planner, with every attempt it made.
    """

    first: int
    intervals: int
    plan: Plan
    gpus: int
    forecast_rps: tuple[float, ...]
    planned_rps: tuple[float, ...]
    capacity_rps: tuple[float, ...]
    offered_rps: tuple[float, ...]
    served_rps: tuple[float, ...]
    plan_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest:
    """All periods, and the plan for the highest rates that would have served without replanning.

    The highest rates are those that came, not forecast ones: they cannot have been known.
    """

    names: tuple[str, ...]
    interval_s: int
    periods: tuple[Period, ...]
    static_gpus: int

    @property
    def served_fraction(self) -> float:
        """Requests served / offered, over all periods and models."""
        offered = sum(sum(p.offered_rps) * p.intervals for p in self.periods)
        served = sum(sum(p.served_rps) * p.intervals for p in self.periods)
        return served / offered if offered else 1.0

    @property
    def served_by_model(self) -> dict[str, float]:
        """The same for every model."""
        rates = np.array([[p.offered_rps, p.served_rps] for p in self.periods])
        weights = np.array([p.intervals for p in self.periods])
        offered, served = np.tensordot(weights, rates, axes=1)
        return {
            name: float(s / o) if o > 0 else 1.0
            for name, o, s in zip(self.names, offered, served, strict=True)
        }

    @property
    def mean_gpus(self) -> float:
        """GPUs used, averaged over time."""
        weights = [p.intervals for p in self.periods]
        return float(np.average([p.gpus for p in self.periods], weights=weights))

    def to_dict(self) -> dict[str, Any]:
        """Plain form, as `replan --backtest --json` prints it."""
        return {
            "models": list(self.names),
            "periods": len(self.periods),
            "served_fraction": self.served_fraction,
            "served_by_model": self.served_by_model,
            "mean_gpus": self.mean_gpus,
            "static_gpus": self.static_gpus,
            "gpu_fraction": self.mean_gpus / self.static_gpus if self.static_gpus else 0.0,
            "slowest_plan_seconds": max(p.plan_seconds for p in self.periods),
        }


def backtest(
    history: RateHistory,
    planner: Planner,
    *,
    period_s: int,
    warm_up_s: int,
    options: ForecastOptions,
) -> Backtest:
    """Replan every `period_s` seconds over the history, from `warm_up_s` on.

    Raises:
        InputError: a period is no whole number of intervals, or nothing is left after the warm-up.
    """
    step, first = period_s // history.interval_s, warm_up_s // history.interval_s
    if step < 1 or period_s % history.interval_s:
        raise InputError(
            "backtest period", f"{period_s} s is no whole number of {history.interval_s} s"
        )
    if not 1 <= first < len(history.rps):
        raise InputError("backtest", f"no interval is left after a warm-up of {warm_up_s} s")
    periods = [
        _period(history, planner, (at, min(step, len(history.rps) - at)), options)
        for at in range(first, len(history.rps), step)
    ]
    peak = np.nanmax(history.rps[first:], axis=0)
    static = planner(rates_to_plan(history.names, peak))
    return Backtest(
        names=history.names,
        interval_s=history.interval_s,
        periods=tuple(periods),
        static_gpus=sum(static.gpus_used.values()),
    )


def _period(
    history: RateHistory, planner: Planner, span: tuple[int, int], options: ForecastOptions
) -> Period:
    at, length = span
    foreseen = forecast_rps(history, at, length, options)
    watch = Stopwatch()
    plan = planner(rates_to_plan(history.names, foreseen))
    plan_seconds = watch.seconds()
    planned, carried = planned_rates(plan), capacities(plan)
    capacity = np.array([carried[name] for name in history.names])
    offered = np.nan_to_num(history.rps[at : at + length])
    served = np.minimum(offered, capacity)
    return Period(
        first=at,
        intervals=length,
        plan=plan,
        gpus=sum(plan.gpus_used.values()),
        forecast_rps=tuple(foreseen.tolist()),
        planned_rps=tuple(planned[name] for name in history.names),
        capacity_rps=tuple(capacity.tolist()),
        offered_rps=tuple(offered.mean(axis=0).tolist()),
        served_rps=tuple(served.mean(axis=0).tolist()),
        plan_seconds=plan_seconds,
    )
