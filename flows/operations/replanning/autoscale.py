"""Plans that follow the load every few seconds (gpulets, 4.1, 4.5, 4.6 and the authors' code).

Rates are averaged with a weight that falls by the second; what is planned for is the highest of the
last half minute, or what the last minute's trend comes to at the end of the next period, with
headroom. A plan is made where that has moved far enough: on as few GPUs as carry it, with as few
changes as possible, and where no GPUs carry it, for as much of it as can be. It takes over with
work in flight, once what is new has been loaded.

Here: when, and for what. Not here: how plans are made (`backtest_run.cheapest_planner`) and brought
into force (`release.rollout`).
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from flows.operations.replanning.backtest import Planner
from flows.operations.replanning.backtest_run import cheapest_planner
from flows.operations.replanning.forecast import LEAST_RATE_RPS
from flows.operations.replanning.replan import options_of, priced
from flows.planning import PlanOptions
from flows.planning.registry import planner_named
from flows.planning.stored_plans import load_interference, load_profiles
from flows.workspace import Workspace
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import US_PER_S, s_to_us
from triton_backend.contract.workload import Workload
from triton_backend.simulator.offered import Offer, offered_requests
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import PlanChange, SimOptions, rates_of
from triton_backend.simulator.world import SERVED
from warehouse.db import WarehouseInUseError

REMEMBERED_S = 30
RISE, RISE_RPS, FALL = 0.05, 10.0, 0.10  # how far a rate moves before a plan is made
PATIENCE = 2  # periods that a rate is low before a plan is made for less
SMALL_RPS = 125.0
HEADROOM, SMALL_HEADROOM = 1.2, 1.5  # of large rates, and of those below SMALL_RPS
LOADING_S = 15.0  # from a decision until its plan takes over (section 4.6: 10 to 15 s)
TREND_S, LEAST_TREND_S = 60, 10
TREND_SIGMAS = 2.0  # a slope below so many of its standard errors is taken for chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """How much more than what was seen is planned for, and how far rates move before that.

    Attributes:
        small_rps: rates below it have the larger headroom: few requests a second vary more.
        rise_rps: a rise by so much asks for a plan, however little it is of the rate.
    """

    small_rps: float = SMALL_RPS
    rise_rps: float = RISE_RPS

    def slowed(self, factor: float) -> "Sizing":
        """The same for a system in which everything takes so many times as long."""
        return Sizing(small_rps=self.small_rps / factor, rise_rps=self.rise_rps / factor)


class RateTracker:
    """Rates to plan for, by model, from counts by the second."""

    def __init__(self, period_s: float, sizing: Sizing = Sizing()) -> None:
        self._alpha = 2.0 / (max(1.0, period_s) + 1.0)
        self._ahead_s = period_s + LOADING_S  # the end of the time that a plan made now is for
        self._small_rps = sizing.small_rps
        self._rate: dict[str, float] = {}
        self._last: dict[str, deque[float]] = {}
        self._counts: dict[str, deque[float]] = {}

    def second(self, counts: Mapping[str, float]) -> None:
        """One more second, with the requests of each model."""
        for name, count in counts.items():
            before = self._rate.get(name, float(count))
            self._rate[name] = before + self._alpha * (count - before)
            last = self._last.setdefault(name, deque(maxlen=REMEMBERED_S))
            last.append(self._rate[name])
            self._counts.setdefault(name, deque(maxlen=TREND_S)).append(float(count))

    def targets_rps(self) -> dict[str, float]:
        """The highest rate of the last half minute, or what a rise comes to, with headroom."""
        found: dict[str, float] = {}
        for name, last in self._last.items():
            high = max(*last, self._expected_rps(self._counts[name]))
            factor = SMALL_HEADROOM if high < self._small_rps else HEADROOM
            found[name] = max(LEAST_RATE_RPS, factor * high)
        return found

    def _expected_rps(self, counts: Sequence[float]) -> float:
        """Where the line through the last minute's counts ends.

        0 where it does not rise beyond chance.
        """
        if len(counts) < LEAST_TREND_S:
            return 0.0
        values = np.asarray(counts)
        times_s = np.arange(len(values)) - (len(values) - 1) / 2
        spread = float((times_s**2).sum())
        mean, slope = float(values.mean()), float((times_s * values).sum()) / spread
        beside = float(((values - mean - slope * times_s) ** 2).mean())
        if slope <= TREND_SIGMAS * math.sqrt(
            max(mean, beside) / spread
        ):  # Poisson counts, or worse
            return 0.0
        return mean + slope * (float(times_s[-1]) + self._ahead_s)


@dataclass(slots=True, kw_only=True)
class Follower:
    """The plan in force and what it was made for.

    A planner that goes on from the plan it made last.

    Attributes:
        planned_rps: what the plan in force was made for, by model.
        low: periods in a row in which a rate was low.
    """

    planner: Planner
    in_force: Plan
    planned_rps: dict[str, float]
    sizing: Sizing = Sizing()
    low: int = 0

    @classmethod
    def of(cls, planner: Planner, in_force: Plan, sizing: Sizing = Sizing()) -> "Follower":
        """At first the plan was made for what it promises."""
        planned = {model.name: model.throughput_rps for model in in_force.models}
        return cls(planner=planner, in_force=in_force, planned_rps=planned, sizing=sizing)

    def moved(self, targets_rps: Mapping[str, float]) -> bool:
        """True if a period with these targets asks for another plan."""
        rises = [(t - self.planned_rps[n], self.planned_rps[n]) for n, t in targets_rps.items()]
        fell = any(rise < -FALL * planned for rise, planned in rises)
        self.low = self.low + 1 if fell else 0
        rose = any(rise > RISE * planned or rise > self.sizing.rise_rps for rise, planned in rises)
        return rose or self.low >= PATIENCE

    def next_plan(self, targets_rps: Mapping[str, float]) -> Plan | None:
        """The plan for the period to come; None where the one in force stays.

        Raises:
            InputError: no plan serves every model.
        """
        known = {name: targets_rps.get(name, LEAST_RATE_RPS) for name in self.planned_rps}
        if not self.moved(known):
            return None
        plan = self.planner(known)
        self.planned_rps, self.low = known, 0
        if plan.plan_id == self.in_force.plan_id:
            return None
        self.in_force = plan
        return plan


def follower_of(
    work: Workspace,
    cluster: Cluster,
    workload: Workload,
    in_force: Plan,
    report: Callable[[str], None],
) -> Follower:
    """The follower of a plan, with its planner and options, on the warehouse's profiles.

    Raises:
        InputError: the plan is of applications, a model was not profiled, or the planner is not
            known any more.
    """
    if in_force.applications:
        raise InputError(
            f"plan {in_force.plan_id}",
            "is of applications; autoscale follows plans of models alone",
        )
    profiles, _ = load_profiles(work, cluster, workload)
    options = options_of(in_force)
    objective = few_gpus(options)
    planner = cheapest_planner(
        profiles,
        priced(cluster) if objective == "cost" else cluster,
        workload,
        options,
        report,
        interference=load_interference(work),
        objective=objective,
        in_force=in_force,
    )
    return Follower.of(planner, in_force)


def few_gpus(options: PlanOptions) -> str:
    """The objective that takes as few GPUs as carry the rates, of the planner of these options."""
    return "gpus" if "gpus" in planner_named(options.planner).objectives else "cost"


def limited(cluster: Cluster, most_gpus: int | None) -> Cluster:
    """The first GPUs of a cluster, so many at most.

    Raises:
        InputError: none would be left.
    """
    if most_gpus is None:
        return cluster
    if most_gpus < 1:
        raise InputError("--max-gpus", f"{most_gpus} is not positive")
    left, groups = most_gpus, []
    for group in cluster.nodes:
        whole = min(group.count, left // group.gpus)
        rest = min(group.gpus, left - whole * group.gpus) if whole < group.count else 0
        left -= whole * group.gpus + rest
        groups += [replace(group, count=whole)] if whole else []
        groups += [replace(group, count=1, gpus=rest, devices=None)] if rest else []
    return replace(cluster, nodes=tuple(groups))


# In the simulator


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodResult:
    """A period: when, what was offered and in time, and the plan in force at its beginning."""

    start_s: float
    end_s: float
    offered: int
    attainment: float
    plan_id: str
    gpus: int

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A simulated run whose plans followed the load."""

    periods: tuple[PeriodResult, ...]
    attainment_by_model: Mapping[str, float]
    changes: int

    @property
    def attainment(self) -> float:
        """Requests in time / offered."""
        offered = sum(p.offered for p in self.periods)
        return sum(p.attainment * p.offered for p in self.periods) / offered if offered else 1.0

    @property
    def gpu_hours(self) -> float:
        """GPUs in use over time."""
        return sum(p.gpus * (p.end_s - p.start_s) for p in self.periods) / 3600


def follow_simulated(
    follower: Follower, options: SimOptions, period_s: float, report: Callable[[str], None]
) -> Followed:
    """Simulate the plan in force and those that follow it, period by period, with work in flight.

    Raises:
        InputError: an option does not fit, or no plan serves every model.
    """
    if options.failures or options.changes:
        raise InputError("epoch", "plans that follow the load know no failures and no other plan")
    first = follower.in_force
    options = replace(options, reference=options.reference or first)
    offer = Offer(
        arrivals=options.arrivals,
        rates_rps=rates_of(first, options),
        duration_us=s_to_us(options.duration_s),
        seed=options.seed,
    )
    requests = offered_requests(first, offer)
    seconds = int(np.ceil(options.duration_s))
    names = [model.name for model in first.models]
    counts = np.zeros((seconds, len(names)))
    np.add.at(counts, (requests["arrival_us"] // US_PER_S, requests["model"]), 1)
    tracker, changes = RateTracker(period_s, follower.sizing), list[PlanChange]()
    edges = [*np.arange(0.0, options.duration_s, period_s).tolist(), options.duration_s]
    at = 0
    for end in edges[1:-1]:
        while at + 1 <= end:
            tracker.second(dict(zip(names, counts[at].tolist(), strict=True)))
            at += 1
        report(f"planning at {end:g} s, {len(changes)} changes so far")
        busy = bool(changes) and changes[-1].at_s > end
        plan = None if busy else follower.next_plan(tracker.targets_rps())
        if plan is not None and end + LOADING_S < options.duration_s:
            changes.append(PlanChange(at_s=end + LOADING_S, plan=plan))
    report("simulating")
    result = simulate(first, replace(options, changes=tuple(changes)))
    served, arrived = result.requests["outcome"] == SERVED, result.requests["arrival_us"]
    periods: list[PeriodResult] = []
    for begin, end in pairwise(edges):
        mine = (arrived >= s_to_us(begin)) & (arrived < s_to_us(end))
        plans = [first, *(change.plan for change in changes if change.at_s <= begin)]
        periods.append(
            PeriodResult(
                start_s=begin,
                end_s=end,
                offered=int(mine.sum()),
                attainment=float(served[mine].mean()) if mine.any() else 1.0,
                plan_id=plans[-1].plan_id,
                gpus=sum(plans[-1].gpus_used.values()),
            )
        )
    return Followed(
        periods=tuple(periods),
        attainment_by_model={model.name: model.attainment for model in result.models},
        changes=len(changes),
    )


# In a running system


class PlanDeployer(Protocol):
    """The served system, as rollouts see it."""

    def wait(self, seconds: float) -> float:
        """Wait; seconds that passed since the last time, with whatever else was done meanwhile."""
        ...

    def bring(self, plan: Plan) -> str:
        """Bring a plan into force; how that ended, in words."""
        ...

    def in_force(self, known: Plan) -> Plan:
        """The plan in force: `known` itself where it is that one."""
        ...


class System(PlanDeployer, Protocol):
    """The same, with rates of models."""

    def offered(self) -> Mapping[str, int]:
        """Requests so far, by model."""
        ...


@dataclass(slots=True, kw_only=True)
class LiveState:
    """Where a run stands.

    Counts when they were last read, seconds since, seconds of the period so far.
    """

    tracker: RateTracker
    before: Mapping[str, int] = field(default_factory=dict[str, int])
    unread_s: float = 0.0
    passed_s: float = 0.0


def watch_second(state: LiveState, system: System, say: Callable[[str], None]) -> None:
    """Wait a second and count.

    A rollout, a slow machine or a gateway that is away may take several.

    Raises:
        InputError: nothing is being served any more.
    """
    passed_s = max(system.wait(1.0), 1e-3)
    state.passed_s += passed_s
    state.unread_s += passed_s
    try:
        now = system.offered()
    except InputError:
        raise
    except PoolPipeError as error:
        say(f"no rates: {error}")
        return
    # A gateway that was restarted counts from 0 again.
    counts = {n: max(0, c - state.before.get(n, 0)) / state.unread_s for n, c in now.items()}
    for _ in range(max(1, round(state.unread_s))):
        state.tracker.second(counts)
    state.before, state.unread_s = now, 0.0


class Guide(Protocol):
    """The choice of the next plan: `autoscale` by models' rates, `steer` by clients' cuts."""

    @property
    def in_force(self) -> Plan:
        """The plan that it takes to be in force."""
        ...

    def watch(self, say: Callable[[str], None]) -> None:
        """Wait until another decision is due.

        Raises:
            InputError: nothing is being served any more.
        """
        ...

    def next_plan(self) -> Plan | None:
        """The plan to be brought into force; None where the one in force stays.

        Raises:
            InputError: no plan serves what is asked for.
        """
        ...

    def wanted(self) -> str:
        """The demand in words; empty if there is nothing to print while the plan stays."""
        ...

    def failed(self) -> None:
        """The plan that it named last did not come into force."""
        ...

    def go_on_from(self, plan: Plan) -> None:
        """Another rollout brought this plan into force.

        Raises:
            InputError: it cannot be gone on from; `WarehouseInUseError`: not now.
        """
        ...


def bring_plans(
    guide: Guide,
    system: PlanDeployer,
    say: Callable[[str], None],
    *,
    decisions: int | None = None,
    advisory: bool = False,
) -> None:
    """Bring plans into force as they follow, for so many decisions or until interrupted.

    `advisory` says what would be done, and does nothing. A rollout that fails leaves the plan in
    force, and the next decision asks again. Another rollout (`replan`, a person's) may bring
    another plan: it is gone on from.

    Raises:
        InputError: nothing is being served, no plan serves what is asked for, or the plan that
            another rollout brought cannot be gone on from.
    """
    served = guide.in_force
    while decisions is None or decisions > 0:
        guide.watch(say)
        decisions = None if decisions is None else decisions - 1
        served, known = _look_at_served(guide, system, served, say)
        if not known:
            continue
        before = guide.in_force
        plan = guide.next_plan()
        wanted = guide.wanted()
        if plan is None:
            if wanted:
                say(f"{wanted}: plan {before.plan_id} stays")
            continue
        gpus = f"{sum(before.gpus_used.values())} to {sum(plan.gpus_used.values())} GPUs"
        try:
            outcome = "advice only" if advisory else system.bring(plan)
            served = served if advisory else plan
        except PoolPipeError as error:
            guide.failed()
            outcome = str(error)
        say(f"{wanted}: plan {plan.plan_id}, {gpus}: {outcome}")


def _look_at_served(
    guide: Guide, system: PlanDeployer, served: Plan, say: Callable[[str], None]
) -> tuple[Plan, bool]:
    """The plan in force, `served` where that is still it, and whether the guide goes on from it.

    Raises:
        InputError: nothing is being served, or the plan cannot be gone on from.
    """
    try:
        plan = system.in_force(served)
    except InputError:
        raise
    except PoolPipeError as error:  # a gateway that is away
        say(f"plan {served.plan_id} is taken to be in force: {error}")
        return served, True
    if plan.plan_id == served.plan_id:
        return served, True
    try:
        guide.go_on_from(plan)
    except WarehouseInUseError as error:
        say(
            f"plan {plan.plan_id} of another rollout is in force, and waits for the "
            f"warehouse: {error}"
        )
        return served, False
    say(f"plan {plan.plan_id} of another rollout is in force")
    return plan, True


@dataclass(slots=True, kw_only=True)
class RatesGuide:
    """Plans by the rates of models, period by period."""

    follower: Follower
    system: System
    period_s: float
    state: LiveState
    former: tuple[Plan, dict[str, float]]
    follower_of: Callable[[Plan], Follower]

    @property
    def in_force(self) -> Plan:
        """The follower's."""
        return self.follower.in_force

    def watch(self, say: Callable[[str], None]) -> None:
        """Count a period's requests."""
        while self.state.passed_s < self.period_s:
            watch_second(self.state, self.system, say)
        self.state.passed_s = 0.0

    def next_plan(self) -> Plan | None:
        """By the rates so far."""
        self.former = self.follower.in_force, self.follower.planned_rps
        return self.follower.next_plan(self.state.tracker.targets_rps())

    def wanted(self) -> str:
        """Rates to plan for."""
        targets = self.state.tracker.targets_rps()
        return ", ".join(f"{name} {rate:.1f} rps" for name, rate in targets.items())

    def failed(self) -> None:
        """Go on from the plan before."""
        self.follower.in_force, self.follower.planned_rps = self.former

    def go_on_from(self, plan: Plan) -> None:
        """With a follower of its own."""
        self.follower = self.follower_of(plan)


def follow_live(
    follower: Follower,
    system: System,
    period_s: float,
    say: Callable[[str], None],
    *,
    follower_of: Callable[[Plan], Follower],
    periods: int | None = None,
    advisory: bool = False,
) -> None:
    """Watch rates and bring plans into force, period after period (`bring_plans`).

    `follower_of` makes the follower of a plan that another rollout brought.

    Raises:
        InputError: nothing is being served, or no plan serves every model.
    """
    state = LiveState(tracker=RateTracker(period_s, follower.sizing), before=dict(system.offered()))
    system.wait(0.0)
    former = follower.in_force, follower.planned_rps
    guide = RatesGuide(
        follower=follower,
        system=system,
        period_s=period_s,
        state=state,
        former=former,
        follower_of=follower_of,
    )
    bring_plans(guide, system, say, decisions=periods, advisory=advisory)
