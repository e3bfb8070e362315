"""The backtest of replanning over a table of counts: its planner, and a check by simulation.

Every period is planned for the least cost at the rates that were forecast (every GPU counts the
same where no prices are stated); where the cluster cannot carry them, for the most it can carry.
The backtest itself counts fluid, what a plan's vGPUs can carry against a minute's rate; single
minutes drawn from it are therefore simulated, request by request with the SLO, and both figures
stand side by side.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from flows.operations.replanning.backtest import Backtest, Period, backtest
from flows.operations.replanning.forecast import ForecastOptions
from flows.operations.replanning.planner import cheapest_planner, priced
from flows.operations.replanning.rates import RateHistory, read_counts
from flows.operations.replanning.simulated import arrivals_for, outcomes
from flows.planning import PlanOptions, make_plan
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InputError
from triton_backend.contract.profiles import InterferenceModel, ModelProfile
from triton_backend.contract.units import US_PER_S
from triton_backend.contract.workload import Workload
from triton_backend.scheduler.policies.demand import demand_names, planned_rates
from triton_backend.simulator.run import SimOptions, simulate

PEAK_SHARE = 0.97  # of what the whole cluster serves, where no peak is stated


@dataclass(frozen=True, slots=True, kw_only=True)
class BacktestOptions:
    """The days and options to replay.

    Attributes:
        series: model to its columns of the table, which add up; a model not named has a column of
            its own name.
        peak_rps: highest rate of each model; models not named get 0.97 of what the cluster serves.
        simulated_minutes: how many intervals to simulate, as far as there are so many; half of them
            are those with the highest rates in all, the others are drawn from `seed` among those
            with requests.
    """

    table: Path
    interval_s: int
    period_s: int
    warm_up_s: int
    series: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    peak_rps: Mapping[str, float] = field(default_factory=dict[str, float])
    forecast: ForecastOptions = field(default_factory=ForecastOptions)
    planning: PlanOptions = field(default_factory=PlanOptions)
    simulated_minutes: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Requests of the simulated intervals.

    Offered, served in time, and served by the fluid count.
    """

    intervals: int
    offered: int
    served: int
    fluid_served: float

    def to_dict(self) -> dict[str, Any]:
        """Plain form, with fractions of what was offered."""
        offered = max(self.offered, 1)
        return {
            "intervals": self.intervals,
            "offered": self.offered,
            "served_fraction": self.served / offered,
            "fluid_fraction": self.fluid_served / offered,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtested:
    """The figures, the rates they are of, and the two samples (the busiest, and any)."""

    found: Backtest
    history: RateHistory
    busiest: Sample | None
    drawn: Sample | None

    def to_dict(self) -> dict[str, Any]:
        """Plain form, as `replan --backtest --json` prints it."""
        out = self.found.to_dict()
        if self.busiest is not None and self.drawn is not None:
            out["simulated"] = {"busiest": self.busiest.to_dict(), "drawn": self.drawn.to_dict()}
        return out


def run_backtest(
    profiles: Mapping[str, ModelProfile],
    cluster: Cluster,
    workload: Workload,
    asked: BacktestOptions,
    report: Callable[[str], None] = lambda _: None,
    *,
    interference: Mapping[str, InterferenceModel] | None = None,
) -> Backtested:
    """Replay a table.

    Raises:
        InputError: the table cannot be used, an option names a model that the workload does not
            have, or the inputs do not fit together.
    """
    names = demand_names(workload)
    for option, given in (("--map", asked.series), ("--peak", asked.peak_rps)):
        for unknown in sorted(set(given) - set(names)):
            reason = f"{unknown!r} is not in the workload; it has {', '.join(names)}"
            raise InputError(option, reason)
    history = read_counts(
        asked.table,
        interval_s=asked.interval_s,
        series={name: asked.series.get(name, (name,)) for name in names},
    )
    whole = make_plan(profiles, cluster, workload, asked.planning, interference=interference)
    most = planned_rates(whole)
    peaks = {name: asked.peak_rps.get(name, PEAK_SHARE * most[name]) for name in names}
    history = history.scaled_to_peak(peaks)
    found = backtest(
        history,
        cheapest_planner(
            profiles,
            priced(cluster),
            workload,
            asked.planning,
            lambda what: report(f"backtesting: {what}"),
            interference=interference,
        ),
        period_s=asked.period_s,
        warm_up_s=asked.warm_up_s,
        options=asked.forecast,
    )
    busiest, drawn = _samples(found, history, asked, report)
    return Backtested(found=found, history=history, busiest=busiest, drawn=drawn)


def _samples(
    found: Backtest,
    history: RateHistory,
    asked: BacktestOptions,
    report: Callable[[str], None],
) -> tuple[Sample | None, Sample | None]:
    if not asked.simulated_minutes:
        return None, None
    others = asked.simulated_minutes // 2
    first = found.periods[0].first
    total = np.nansum(history.rps[first:], axis=1)
    busiest = first + np.argsort(total, kind="stable")[others - asked.simulated_minutes :]
    rng, asking = np.random.default_rng(asked.seed), np.flatnonzero(total > 0)
    drawn = first + rng.choice(asking, size=min(others, len(asking)), replace=False)
    return (
        _simulated(found, history, busiest.tolist(), asked.seed, report),
        _simulated(found, history, drawn.tolist(), asked.seed, report),
    )


def _simulated(
    found: Backtest,
    history: RateHistory,
    intervals: list[int],
    seed: int,
    report: Callable[[str], None],
) -> Sample:
    offered = served = 0
    fluid = 0.0
    for number, at in enumerate(sorted(intervals), start=1):
        report(f"backtesting: simulating {number} of {len(intervals)}")
        period = _period_of(found, at)
        rates = np.nan_to_num(history.rps[at])
        instants = _instants(history, rates, np.random.default_rng([seed, at]))
        asked = period.plan.workload
        run = SimOptions(
            arrivals=arrivals_for(period.plan, asked, instants),
            duration_s=float(history.interval_s),
            seed=seed,
        )
        result = simulate(period.plan, replace(run, keep_uses=False))
        arrived = np.array([len(instants[name]) for name in history.names])
        offered += int(arrived.sum())
        served += sum(one.served for one in outcomes(period.plan, asked, result).values())
        capacity = np.array(period.capacity_rps) * history.interval_s
        fluid += float(np.minimum(arrived, capacity).sum())
    return Sample(intervals=len(intervals), offered=offered, served=served, fluid_served=fluid)


def _period_of(found: Backtest, at: int) -> Period:
    return next(p for p in found.periods if p.first <= at < p.first + p.intervals)


def _instants(
    history: RateHistory, rates: np.ndarray, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Poisson arrivals (µs) of every model over one interval."""
    span_us = history.interval_s * US_PER_S
    counts = rng.poisson(rates * history.interval_s)
    return {
        name: np.sort(rng.integers(0, span_us, size=count)).astype(np.int64)
        for name, count in zip(history.names, counts.tolist(), strict=True)
    }
