"""Plans that follow the load every few seconds (gpulets, 4.1, 4.5, 4.6 and the authors' code).

A plan is made where the rates to plan for (`scheduler.policies.demand`) have moved far enough, or
rows of an application's modules have: on as few GPUs as carry it, with as few changes as possible,
and where no GPUs carry it, for as much of it as can be. It takes over with work in flight, once
what is new has been loaded.

Here: when, and for what. Not here: how rates are measured and sized, how plans are made (`planner`)
and brought into force (`release.rollout`).
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flows.operations.replanning.demands import loads, with_rates
from flows.operations.replanning.planner import (
    Planner,
    cheapest_planner,
    least_objective,
    options_of,
)
from flows.operations.replanning.refusals import Refusals
from flows.operations.replanning.rows import Measured, most_rows, since, with_rows
from flows.planning.inputs import gpu_prices
from flows.planning.stored_plans import load_interference, load_profiles
from flows.workspace import Workspace
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.entries import demand_name
from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import US_PER_S, s_to_us
from triton_backend.contract.workload import Workload
from triton_backend.scheduler.compiled import Records
from triton_backend.scheduler.policies.demand import (
    FALL_SIGMAS,
    FULL_SPEED,
    LEAST_RATE_RPS,
    LOADING_S,
    RateTracker,
    Sizing,
    fell,
    names_of,
    planned_rates,
    rose,
)
from triton_backend.simulator.offered import Offer, offered_requests
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import PlanChange, SimOptions, rates_of
from triton_backend.simulator.world import SERVED
from warehouse.db import WarehouseInUseError

ROWS_PERIODS = 3  # of which rows of modules are counted
PATIENCE = 2  # periods that a rate is low before a plan is made for less


@dataclass(slots=True, kw_only=True)
class Follower:
    """The plan in force and what it was made for.

    A planner that goes on from the plan it made last.

    Attributes:
        planned_rps: what the plan in force was made for (`demands.loads`).
        low: periods in a row at whose end a rate was low.
    """

    planner: Planner
    in_force: Plan
    planned_rps: dict[str, float]
    sizing: Sizing = FULL_SPEED
    low: int = 0

    @classmethod
    def of(cls, planner: Planner, in_force: Plan, sizing: Sizing = FULL_SPEED) -> "Follower":
        """At first the plan was made for what it promises."""
        promised = {n: max(rps, LEAST_RATE_RPS) for n, rps in planned_rates(in_force).items()}
        workload = in_force.workload
        planned = loads(with_rates(workload, promised), workload)
        return cls(planner=planner, in_force=in_force, planned_rps=planned, sizing=sizing)

    def moved(self, wanted: Mapping[str, float], now: Mapping[str, float]) -> bool:
        """True if a period with these loads to plan for, and those at its end, asks for a plan."""
        planned = self.planned_rps
        self.low = self.low + 1 if fell(now, planned) else 0
        return rose(wanted, planned, self.sizing) or self.low >= PATIENCE

    def next_plan(
        self,
        targets_rps: Mapping[str, float],
        now_rps: Mapping[str, float] | None = None,
        rows: Measured | None = None,
    ) -> Plan | None:
        """The plan for the period to come; None where the one in force stays.

        Args:
            targets_rps: rates to plan for, by name.
            now_rps: those at the end of the period; the same where they are not given.
            rows: of modules of applications, as measured.

        Raises:
            InputError: no plan serves every model.
        """
        names = planned_rates(self.in_force)
        known = {name: targets_rps.get(name, LEAST_RATE_RPS) for name in names}
        now = {name: (now_rps or targets_rps).get(name, LEAST_RATE_RPS) for name in names}
        wanted = self._loads(known, rows or {})
        if not self.moved(wanted, self._loads(now, most_rows(rows or {}, FALL_SIGMAS))):
            return None
        plan = self.planner(known, rows)
        self.planned_rps, self.low = wanted, 0
        if plan.plan_id == self.in_force.plan_id:
            return None
        self.planned_rps = loads(with_rates(plan.workload, known), plan.workload)
        self.in_force = plan
        return plan

    def _loads(self, rates_rps: Mapping[str, float], rows: Measured) -> dict[str, float]:
        """At rates and rows, in requests of the plan in force."""
        planned = self.in_force.workload
        measured = replace(planned, applications=with_rows(planned.applications, rows))
        return loads(with_rates(measured, rates_rps), planned)


def follower_of(
    work: Workspace,
    cluster: Cluster,
    workload: Workload,
    in_force: Plan,
    report: Callable[[str], None],
) -> Follower:
    """The follower of a plan, with its planner and options, on the warehouse's profiles.

    Raises:
        InputError: a model was not profiled, the planner is not known any more, or a class lacks
            the price that the plan's objective asks for.
    """
    options = options_of(in_force)
    objective = least_objective(options, in_force.workload, cluster)
    try:
        gpu_prices(cluster, objective)
    except InputError as error:
        raise InputError(f"plan {in_force.plan_id}, {error.where}", error.reason) from error
    profiles, _ = load_profiles(work, cluster, workload)
    planner = cheapest_planner(
        profiles,
        cluster,
        workload,
        options,
        report,
        interference=load_interference(work),
        objective=objective,
        in_force=in_force,
    )
    return Follower.of(planner, in_force)


def limited(cluster: Cluster, most_gpus: int | None) -> Cluster:
    """The first GPUs of a cluster, so many at most.

    Raises:
        InputError: none would be left.
    """
    if most_gpus is None:
        return cluster
    if most_gpus < 1:
        raise InputError("option max_gpus", f"{most_gpus} is not positive")
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
    names, counts = _counts_by_second(first, requests, int(np.ceil(options.duration_s)))
    tracker, changes = RateTracker(period_s, follower.sizing), list[PlanChange]()
    edges = [*np.arange(0.0, options.duration_s, period_s).tolist(), options.duration_s]
    at = 0
    for end in edges[1:-1]:
        while at + 1 <= end:
            tracker.second(dict(zip(names, counts[at].tolist(), strict=True)))
            at += 1
        report(f"planning at {end:g} s, {len(changes)} changes so far")
        busy = bool(changes) and changes[-1].at_s > end
        plan = None if busy else follower.next_plan(tracker.targets_rps(), tracker.now_rps())
        if plan is not None and end + LOADING_S < options.duration_s:
            changes.append(PlanChange(at_s=end + LOADING_S, plan=plan))
    report("simulating")
    result = simulate(first, replace(options, changes=tuple(changes)))
    requests = result.requests[result.requests["low"] == 0]
    served, arrived = requests["outcome"] == SERVED, requests["arrival_us"]
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
        attainment_by_model={
            **{model.name: model.attainment for model in result.models},
            **{
                demand_name(model, name): one.outcome.attainment
                for model, entries in result.entries.items()
                for name, one in entries.items()
            },
            **{name: one.outcome.attainment for name, one in result.applications.items()},
        },
        changes=len(changes),
    )


def _counts_by_second(
    plan: Plan, requests: Records, seconds: int
) -> tuple[list[str], NDArray[np.float64]]:
    """Names of all that clients ask for, and [second, name] requests but low ones."""
    requests = requests[requests["low"] == 0]
    queues = [name for model in plan.models for name in names_of(model)]
    names = [*queues, *(one.name for one in plan.applications)]
    jobs = requests["application"] >= 0
    columns = np.where(jobs, len(queues) + requests["application"], requests["queue"])
    counts = np.zeros((seconds, len(names)))
    np.add.at(counts, (requests["arrival_us"] // US_PER_S, columns), 1)
    return names, counts


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
    """The same, with what clients ask for."""

    def offered(self) -> Mapping[str, int]:
        """Requests so far, by name (`demands.requests_of`)."""
        ...

    def rows(self) -> Measured:
        """Rows of modules so far (`rows.counted_rows`)."""
        ...


@dataclass(slots=True, kw_only=True)
class LiveState:
    """Where a run stands.

    Counts when they were last read, seconds since, seconds of the period and of all so far.
    """

    tracker: RateTracker
    before: Mapping[str, int] = field(default_factory=dict[str, int])
    unread_s: float = 0.0
    passed_s: float = 0.0
    now_s: float = 0.0


def watch_second(state: LiveState, system: System, say: Callable[[str], None]) -> None:
    """Wait a second and count.

    A rollout, a slow machine or a gateway that is away may take several.

    Raises:
        InputError: nothing is being served any more.
    """
    passed_s = max(system.wait(1.0), 1e-3)
    state.passed_s += passed_s
    state.now_s += passed_s
    state.unread_s += passed_s
    try:
        now = system.offered()
    except InputError:
        raise
    except PoolPipeError as error:
        say(f"no rates: {error}")
        return
    state.tracker.seconds(now, state.before, state.unread_s)
    state.before, state.unread_s = now, 0.0


class Guide(Protocol):
    """The choice of the next plan: `autoscale` by rates, `steer` by clients' cuts."""

    @property
    def in_force(self) -> Plan:
        """The plan that it takes to be in force."""
        ...

    @property
    def now_s(self) -> float:
        """Seconds that it has watched."""
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
    over: Callable[[], bool] = lambda: False,
) -> None:
    """Bring plans into force as they follow, for so many decisions, until over or interrupted.

    `over` is asked before every decision. `advisory` says what would be done, and does nothing. A
    rollout that fails leaves the plan in force, and is asked for again after a while (`Refusals`).
    Another rollout (`replan`, a person's) may bring another plan: it is gone on from.

    Raises:
        InputError: nothing is being served, no plan serves what is asked for, or the plan that
            another rollout brought cannot be gone on from.
    """
    served, refusals = guide.in_force, Refusals()
    while (decisions is None or decisions > 0) and not over():
        guide.watch(say)
        decisions = None if decisions is None else decisions - 1
        served, known = _look_at_served(guide, system, served, say)
        if not known:
            continue
        before = guide.in_force
        # A plan that could not be asked for is not made either.
        plan = None if refusals.holds(None, guide.now_s) else guide.next_plan()
        if plan is not None and refusals.holds(plan, guide.now_s):
            guide.failed()
            plan = None
        wanted = guide.wanted()
        if plan is None:
            if wanted:
                say(f"{wanted}: plan {before.plan_id} stays")
            continue
        gpus = f"{sum(before.gpus_used.values())} to {sum(plan.gpus_used.values())} GPUs"
        try:
            outcome = "advice only" if advisory else system.bring(plan)
            served, refusals = served if advisory else plan, Refusals()
        except PoolPipeError as error:
            guide.failed()
            outcome = f"{error}; asked again after {refusals.refused(plan, str(error)):g} s"
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
    """Plans by the rates of all that clients ask for, period by period.

    Attributes:
        counted: rows of modules so far, at the ends of the last periods.
        rows: of these periods.
    """

    follower: Follower
    system: System
    period_s: float
    state: LiveState
    former: tuple[Plan, dict[str, float]]
    follower_of: Callable[[Plan], Follower]
    counted: deque[Measured] = field(default_factory=lambda: deque(maxlen=ROWS_PERIODS + 1))
    rows: Measured = field(default_factory=dict[tuple[str, str], tuple[int, int]])

    @property
    def in_force(self) -> Plan:
        """The follower's."""
        return self.follower.in_force

    @property
    def now_s(self) -> float:
        """Of all seconds that were counted."""
        return self.state.now_s

    def watch(self, say: Callable[[str], None]) -> None:
        """Count a period's requests."""
        while self.state.passed_s < self.period_s:
            watch_second(self.state, self.system, say)
        self.state.passed_s = 0.0
        try:
            now = self.system.rows()
        except InputError:
            raise
        except PoolPipeError as error:
            say(f"no rows: {error}")
            return
        if any(now.get(key, (0, 0)) < before for key, before in self.counted[-1].items()):
            self.counted.clear()  # a gateway that was restarted counts from 0 again
        self.counted.append(now)
        self.rows = since(now, self.counted[0])

    def next_plan(self) -> Plan | None:
        """By the rates so far."""
        self.former = self.follower.in_force, self.follower.planned_rps
        tracker = self.state.tracker
        return self.follower.next_plan(tracker.targets_rps(), tracker.now_rps(), self.rows)

    def wanted(self) -> str:
        """Rates to plan for."""
        names = planned_rates(self.in_force)
        targets = {n: t for n, t in self.state.tracker.targets_rps().items() if n in names}
        return (
            ", ".join(f"{name} {rate:.1f} rps" for name, rate in targets.items()) or "no requests"
        )

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
    over: Callable[[], bool] = lambda: False,
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
    guide.counted.append(system.rows())
    bring_plans(guide, system, say, decisions=periods, advisory=advisory, over=over)
