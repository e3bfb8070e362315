"""How much is asked for, and how much of it a plan should be made for (gpulets, 4.1, 4.5, 4.6).

Rates of all that clients ask for are averaged with a weight that falls by the second. What is
planned for is the highest of the last period, half a minute at most, or what the last minute's
trend comes to at the end of the next period, with headroom. `poolpipe autoscale` makes plans for
these rates, and the gateway advises GPUs by them.

Names of what clients ask for:

    a model                          `net`
    an entry, where a model has any  `net/tails`, in place of the model
    an application                   `traffic`

Here: figures and formulas. Not here: counting, and changing a plan.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.entries import demand_name, shares_of
from triton_backend.contract.plan import ModelPlan, Plan
from triton_backend.contract.workload import ModelDemand, Workload

LEAST_RATE_RPS = 0.1  # a model that is hardly asked for keeps one pipeline for first requests
PERIOD_S = 20.0  # between two plans, where it is not stated
REMEMBERED_S = 30
RISE, RISE_RPS, FALL = 0.05, 10.0, 0.10  # how far a rate moves before a plan is made
SMALL_RPS = 125.0
HEADROOM, SMALL_HEADROOM = 1.2, 1.5  # of large rates, and of those below SMALL_RPS
SMALL_RISE = 0.10  # of small rates, which vary more and have more headroom
FALL_SIGMAS = 3.0  # a rate that is not so many deviations of its own lower is low by chance
LOADING_S = 15.0  # from a decision until its plan takes over (section 4.6: 10 to 15 s)
TREND_S, LEAST_TREND_S = 60, 10
TREND_SIGMAS = 3.0  # a slope below so many of its standard errors is taken for chance
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """How much more than what was seen is planned for, and how far rates move before that.

    Attributes:
        small_rps: rates below it have the larger headroom: few requests a second vary more.
        rise_rps: a rise by so much asks for a plan, however little it is of the rate.
    """

    small_rps: float = SMALL_RPS
    rise_rps: float = RISE_RPS

    def planned_rps(self, rate_rps: float) -> float:
        """A rate with headroom: never less for more."""
        small = SMALL_HEADROOM * min(rate_rps, self.small_rps)
        return max(LEAST_RATE_RPS, HEADROOM * rate_rps, small)

    def rose(self, wanted_rps: float, planned_rps: float) -> bool:
        """True if that much more is wanted than was planned for, both with headroom."""
        is_small = planned_rps < SMALL_HEADROOM * self.small_rps
        rise_rps = wanted_rps - planned_rps
        part = SMALL_RISE if is_small else RISE
        return rise_rps > part * planned_rps or rise_rps > self.rise_rps

    def slowed(self, factor: float) -> "Sizing":
        """The same for a system in which everything takes so many times as long."""
        return Sizing(small_rps=self.small_rps / factor, rise_rps=self.rise_rps / factor)


FULL_SPEED = Sizing()


class RateTracker:
    """Rates to plan for, by name, from counts by the second."""

    def __init__(self, period_s: float, sizing: Sizing = FULL_SPEED) -> None:
        self._alpha = 2.0 / (max(1.0, period_s) + 1.0)
        self._remembered = min(REMEMBERED_S, max(1, math.ceil(period_s)))
        self._ahead_s = period_s + LOADING_S  # the end of the time that a plan made now is for
        self._sizing = sizing
        self._seconds: dict[str, int] = {}
        self._rate: dict[str, float] = {}
        self._last: dict[str, deque[float]] = {}
        self._counts: dict[str, deque[float]] = {}

    def second(self, counts: Mapping[str, float]) -> None:
        """One more second, with the requests of each name."""
        for name, count in counts.items():
            self._seconds[name] = seconds = self._seconds.get(name, 0) + 1
            weight = max(self._alpha, 1.0 / seconds)  # the mean of all, while these are few
            before = self._rate.get(name, 0.0)
            self._rate[name] = before + weight * (count - before)
            last = self._last.setdefault(name, deque(maxlen=self._remembered))
            if weight > self._alpha:
                last.clear()  # means of fewer, which are high or low by chance
            last.append(self._rate[name])
            self._counts.setdefault(name, deque(maxlen=TREND_S)).append(float(count))

    def seconds(self, now: Mapping[str, int], before: Mapping[str, int], passed_s: float) -> None:
        """The seconds between two totals; a gateway that was restarted counts from 0 again."""
        counts = {n: max(0, count - before.get(n, 0)) / passed_s for n, count in now.items()}
        for _ in range(max(1, round(passed_s))):
            self.second(counts)

    def targets_rps(self) -> dict[str, float]:
        """The highest rate of the last period, or what a rise comes to, with headroom."""
        return {
            name: self._sizing.planned_rps(max(*last, self._expected_rps(self._counts[name])))
            for name, last in self._last.items()
        }

    def now_rps(self) -> dict[str, float]:
        """The most that the rates of now may be, but for chance, with the same headroom."""
        seconds = 2.0 / self._alpha - 1.0  # a mean of so many Poisson counts varies as much
        return {
            name: self._sizing.planned_rps(rate + FALL_SIGMAS * math.sqrt(rate / seconds))
            for name, rate in self._rate.items()
        }

    def _expected_rps(self, counts: Sequence[float]) -> float:
        """Where the line through the last minute's counts ends.

        0 where it does not rise beyond chance.
        """
        if len(counts) < LEAST_TREND_S:
            return 0.0
        times_s, spread = _times(len(counts))
        values = np.array(counts)
        mean, slope = float(values.sum()) / len(counts), float(times_s @ values) / spread
        if slope <= TREND_SIGMAS * math.sqrt(mean / spread):  # Poisson counts
            return 0.0
        beside = float(((values - mean - slope * times_s) ** 2).mean())
        if slope <= TREND_SIGMAS * math.sqrt(beside / spread):  # or worse
            return 0.0
        return mean + slope * (float(times_s[-1]) + self._ahead_s)


@cache
def _times(seconds: int) -> tuple[NDArray[np.float64], float]:
    """Seconds [n] around the middle of so many, and the sum of their squares."""
    times_s = np.arange(seconds) - (seconds - 1) / 2
    return times_s, float((times_s**2).sum())


def rose(wanted: Mapping[str, float], planned: Mapping[str, float], sizing: Sizing) -> bool:
    """True if so much more of anything is wanted than was planned for that a plan is made."""
    return any(sizing.rose(load, planned[name]) for name, load in wanted.items())


def fell(now: Mapping[str, float], planned: Mapping[str, float]) -> bool:
    """True if so much less of anything is asked for now, beyond chance, than was planned for."""
    return any(load < (1 - FALL) * planned[name] for name, load in now.items())


def demand_names(workload: Workload) -> tuple[str, ...]:
    """Everything that clients ask for, in the workload's order."""
    models = [name for model in workload.models for name in names_of(model)]
    return (*models, *(one.name for one in workload.applications))


def names_of(model: ModelDemand | ModelPlan) -> list[str]:
    """Of a model: those of its entries, or its own."""
    entries = [demand_name(model.name, entry.name) for entry in model.entries]
    return entries or [model.name]


def planned_rates(plan: Plan) -> dict[str, float]:
    """Requests/s that a plan has for clients, by name."""
    rates: dict[str, float] = {}
    for model in plan.models:
        if not model.entries or shares_of(model.entries):
            rates[model.name] = plan.own_rate_rps(model.name)
        for entry in model.entries:
            rates[demand_name(model.name, entry.name)] = entry.rate_rps
    rates |= {one.name: one.application.rate_rps or 0.0 for one in plan.applications}
    return {name: rates.get(name, 0.0) for name in demand_names(plan.workload)}


def pool_factors(plan: Plan, wanted: Mapping[str, float]) -> dict[str, float]:
    """By pool, how many times as much it has to run at the wanted rates as at the planned ones.

    Pools that only run best-effort pipelines, which promise nothing, are left out. Modules run as
    many rows per request as planned.

    Args:
        plan: in force.
        wanted: requests/s by name, of every name that clients ask for.
    """
    rates = planned_rates(plan)
    planned = {name: max(rate_rps, LEAST_RATE_RPS) for name, rate_rps in rates.items()}
    more = {
        queue: wanted_rps / planned_rps
        for queue, planned_rps in _by_queue(plan, planned).items()
        for wanted_rps in (_by_queue(plan, wanted)[queue],)
    }
    variant_of = plan.workload.variant_of
    busy: dict[str, list[tuple[float, float]]] = {}
    for model, pipeline, stage, pool in plan.placed_stages():
        if pipeline.throughput_rps:
            share = pipeline.throughput_rps * stage.latency_us / (stage.batch or pipeline.batch)
            asked = variant_of.get(model.name, model.name)
            factor = more.get(demand_name(asked, pipeline.entry), 1.0)
            busy.setdefault(pool.name, []).append((share, factor))
    return {
        name: math.fsum(share * factor for share, factor in own)
        / math.fsum(share for share, _ in own)
        for name, own in busy.items()
    }


def _by_queue(plan: Plan, rates_rps: Mapping[str, float]) -> dict[str, float]:
    """Rates of models and entries, with what modules of applications ask of them."""
    applications = {one.name for one in plan.applications}
    found = {name: rate for name, rate in rates_rps.items() if name not in applications}
    for one in plan.applications:
        for module in one.application.modules:
            rows_rps = rates_rps[one.name] * module.rows_per_request
            found[module.model] = found.get(module.model, 0.0) + rows_rps
    return found


def vgpus_for(vgpus: int, factor: float) -> int:
    """vGPUs of a pool that has so many times as much to run."""
    return max(1, math.ceil(vgpus * factor - _ROUNDING))
