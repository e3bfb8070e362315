"""Plans that follow clients as they move their cuts, within a second (Graft, sections 3 and 6).

What clients ask for are demands: a model, a cut, a latency budget, a rate. Demands of one cut and
nearly one budget are one entry, planned for 1.1 times its rate. Another plan is made

* at once where a demand comes in at a cut that has no pool for its budget, or above the planned
  rate; the plan is for the demands of the last ten seconds too, as far as all came at once,
* where it would save more than 15 % of what the objective counts, and would have for 30 s,

at most once a second. Until it is in force, a shadow pool serves what the old plan does not know.

Here: when, and for what. Not here: how plans are made, brought into force, and rates counted.
"""

import math
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from flows.clock import Stopwatch
from flows.operations.replanning.planner import options_of
from flows.planning import PlanOptions, make_plan
from flows.planning.stored_plans import load_profiles
from flows.workspace import Workspace
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.entries import Entry, covering
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.workload import LEAST_RPS, ModelDemand, Workload
from triton_backend.simulator.clients.closed_loop import percents

HEADROOM = 1.1  # planned over measured
SAVING, SAVING_S = 0.15, 30.0
KEPT_S = 10.0  # for which a demand is planned for after it has gone
LOOK_S = 5.0  # between two looks whether a plan would save
PAUSE_S = 1.0  # between two changes
STEP = 1.2  # budgets are rounded down to its powers
MOST_ENTRIES = 200  # of a model
WATCH_S = 0.25  # between two looks,


class Demand(NamedTuple):
    """Requests of one kind: at `block` of a model, with at least this budget."""

    model: str
    block: int
    budget_us: int
    rate_rps: float


Planner = Callable[[Workload, Plan], Plan]
"""A plan for a workload, from the plan in force."""


@dataclass(slots=True, kw_only=True)
class Steering:
    """The plan in force, and when another one follows.

    Attributes:
        planner: raises `InfeasibleError` with the entry's name where an entry cannot be served in
            time.
        changed_s: when the last plan was made.
        looked_s: when it was last looked whether a plan would save.
        saving_since_s: since when every look found that one would.
        demanded: demands of the last seconds, with their instants.
        left_out: entries that no pool of their own serves in time, at the last planning.
        came_in: requests per second that are known to come in, by model and entry's name, where
            that is counted. Where the demands do not fit together, those beyond that are left out,
            the largest first.
        unfit: rates of the entries that were, at the last planning.
        plan_s: what each planning took.
        last: what was planned for last, and the plan of that, or why there is none: the same
            demands, looked at again, cost no planning.
    """

    planner: Planner
    in_force: Plan
    changed_s: float = -math.inf
    looked_s: float = -math.inf
    saving_since_s: float | None = None
    demanded: deque[tuple[float, dict[Demand, float]]] = field(
        default_factory=deque[tuple[float, dict[Demand, float]]]
    )
    left_out: frozenset[tuple[str, str]] = frozenset()
    came_in: Mapping[tuple[str, str], float] | None = None
    unfit: Mapping[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    plan_s: list[float] = field(default_factory=list[float])
    last: tuple[object, Plan | InfeasibleError] = (None, InfeasibleError("demands", "none yet"))

    def next_plan(self, demands: Sequence[Demand], now_s: float) -> Plan | None:
        """The plan to be brought into force now; None where the one in force stays.

        Raises:
            InfeasibleError: the cluster cannot carry the demands.
        """
        kept = self._kept(demands, now_s)
        if now_s - self.changed_s < PAUSE_S:
            return None
        if self.exceeded(demands, kept):
            self.changed_s = now_s  # also where there is no plan
            return self._changed(self._planned(kept), now_s)
        if now_s - self.looked_s < LOOK_S:
            return None
        self.looked_s = now_s
        plan = self._planned(kept) if self._asks_less(kept) else self.in_force
        if percents(plan) > (1 - SAVING) * percents(self.in_force):
            self.saving_since_s = None
            return None
        if self.saving_since_s is None:
            self.saving_since_s = now_s
        return self._changed(plan, now_s) if now_s - self.saving_since_s >= SAVING_S else None

    def _kept(self, demands: Sequence[Demand], now_s: float) -> list[Demand]:
        """Demands of now and of the last seconds, together no more than there were at once.

        A client whose link is away for a second comes back; to plan without it and then with it
        again costs two changes, in which old and new workers are held.
        """
        rates: dict[Demand, float] = {}
        for demand in demands:
            kind = kind_of(demand)
            rates[kind] = rates.get(kind, 0.0) + demand.rate_rps
        self.demanded.append((now_s, rates))
        while self.demanded[0][0] < now_s - KEPT_S:
            self.demanded.popleft()
        most: dict[Demand, float] = {}
        for _, once in self.demanded:
            for kind, rate_rps in once.items():
                most[kind] = max(rate_rps, most.get(kind, 0.0))
        peaks: dict[str, float] = {}
        for _, once in self.demanded:
            for name in {kind.model for kind in once}:
                total = math.fsum(r for kind, r in once.items() if kind.model == name)
                peaks[name] = max(total, peaks.get(name, 0.0))
        found: list[Demand] = []
        for name, peak in peaks.items():
            own = {kind: rate_rps for kind, rate_rps in most.items() if kind.model == name}
            now = {kind: rates.get(kind, 0.0) for kind in own}
            beyond = math.fsum(own.values()) - math.fsum(now.values())
            part = (peak - math.fsum(now.values())) / beyond if beyond else 0.0
            found += [
                kind._replace(rate_rps=now[kind] + part * (rate_rps - now[kind]))
                for kind, rate_rps in own.items()
            ]
        return [demand for demand in found if demand.rate_rps > 0]

    def exceeded(self, demands: Sequence[Demand], kept: Sequence[Demand] | None = None) -> bool:
        """True if a demand has no pool of its own, or more is asked of an entry than planned.

        `kept` are the demands that a plan would be made for; those that did not fit the last one
        would not fit again.
        """
        asked: dict[tuple[str, str], float] = {}
        unfit = self._unfit_still(demands if kept is None else kept)
        for demand in demands:
            own = [
                entry
                for model in self.in_force.workload.models
                if model.name == demand.model
                for entry in model.entries
                if entry.block == demand.block
            ]
            if (demand.model, entry_of(demand).name) in self.left_out | unfit:
                continue
            if not any(entry.budget_us <= demand.budget_us for entry in own):
                return True
            budgets = {number: entry.budget_us for number, entry in enumerate(own)}
            entry = own[covering(budgets, demand.budget_us)]
            key = demand.model, entry.name
            asked[key] = asked.get(key, 0.0) + demand.rate_rps
            if asked[key] > entry.rate_rps * (1 + 1e-9):
                return True
        return False

    def _unfit_still(self, demands: Iterable[Demand]) -> frozenset[tuple[str, str]]:
        """Entries of which as much is asked as did not fit at the last planning."""
        asked = {(m, e.name): e.rate_rps for m, own in entries_of(demands).items() for e in own}
        return frozenset(k for k, rps in self.unfit.items() if asked.get(k, 0.0) > rps / HEADROOM)

    def _asks_less(self, demands: Sequence[Demand]) -> bool:
        asked = HEADROOM * math.fsum(demand.rate_rps for demand in demands)
        models = self.in_force.workload.models
        known = {(m.name, e.name): e.rate_rps for m in models for e in m.entries}
        wanted = {(m, e.name): e.rate_rps for m, own in entries_of(demands).items() for e in own}
        return asked < math.fsum(known.values()) * (1 - 1e-9) or wanted.keys() != known.keys()

    def _planned(self, demands: Sequence[Demand]) -> Plan:
        """A plan for demands.

        Those that no pool of their own serves in time are left to the shadow pool.

        Raises:
            InfeasibleError: what comes in does not fit, or it is not known what does.
        """
        entries = entries_of(demands, self.came_in or {})
        doubtful = self._doubtful(entries)
        asked = entries, doubtful, self.in_force.plan_id
        if asked != self.last[0]:
            try:
                self.last = asked, self._planned_without(entries, doubtful)
            except InfeasibleError as error:
                self.last = asked, error
        outcome = self.last[1]
        if isinstance(outcome, InfeasibleError):
            raise outcome.with_traceback(None)
        return outcome

    def _planned_without(
        self,
        entries: Mapping[str, Sequence[Entry]],
        doubtful: Sequence[tuple[tuple[str, str], float]],
    ) -> Plan:
        """A plan for entries, without as few as possible of the doubtful ones.

        Raises:
            InfeasibleError: it does not fit even without all of them.
        """
        watch = Stopwatch()
        # How many of the doubtful ones are left out; so many do not suffice; what was found with so
        # many.
        without, fails, found = 0, -1, None
        while True:
            unfit = dict(doubtful[:without])
            try:
                found = without, unfit, *self._planned_in_time(self._without(entries, unfit))
            except InfeasibleError:
                fails = without
                if fails == len(doubtful):
                    raise
            if found is None:  # twice as many every time: a planning takes long
                without = min(max(2 * without, 1), len(doubtful))
            elif found[0] - fails > 1:
                without = (found[0] + fails + 1) // 2
            else:
                break
        _, self.unfit, plan, self.left_out = found
        self.plan_s.append(watch.seconds())
        return plan

    def _planned_in_time(
        self, entries: Mapping[str, Sequence[Entry]]
    ) -> tuple[Plan, frozenset[tuple[str, str]]]:
        """A plan for entries, and those left out that no pool of their own serves in time.

        Raises:
            InfeasibleError: they do not fit.
        """
        left_out = set[tuple[str, str]]()
        while True:
            wanted = with_entries(self.in_force.workload, entries, left_out)
            try:
                return self.planner(wanted, self.in_force), frozenset(left_out)
            except InfeasibleError as error:
                late = {
                    (model.name, entry.name)
                    for model in wanted.models
                    for entry in model.entries
                    if error.where == f"workload model {model.name!r}, entry {entry.name}"
                }
                if not late:
                    raise
                left_out |= late

    def _doubtful(
        self, entries: Mapping[str, Sequence[Entry]]
    ) -> list[tuple[tuple[str, str], float]]:
        """Entries of which more is asked than comes in, and their rates.

        Those that lack most first.
        """
        if self.came_in is None:
            return []
        lacks: dict[tuple[str, str], tuple[float, float]] = {}
        for name, own in entries.items():
            for entry in own:
                lacking = entry.rate_rps - HEADROOM * self.came_in.get((name, entry.name), 0.0)
                if lacking > 0:
                    lacks[name, entry.name] = lacking, entry.rate_rps
        ordered = sorted(lacks, key=lambda key: (-lacks[key][0], key))
        return [(key, lacks[key][1]) for key in ordered]

    def _without(
        self, entries: Mapping[str, Sequence[Entry]], unfit: Container[tuple[str, str]]
    ) -> dict[str, list[Entry]]:
        """Entries with what comes in alone of those that do not fit."""
        came_in = self.came_in or {}
        found: dict[str, list[Entry]] = {}
        for name, own in entries.items():
            for entry in own:
                key = name, entry.name
                rate_rps = HEADROOM * came_in.get(key, 0.0) if key in unfit else entry.rate_rps
                if rate_rps >= LEAST_RPS:
                    found.setdefault(name, []).append(replace(entry, rate_rps=rate_rps))
        return found

    def _changed(self, plan: Plan, now_s: float) -> Plan | None:
        self.changed_s, self.saving_since_s = now_s, None
        if plan.plan_id == self.in_force.plan_id:
            return None
        self.in_force = plan
        return plan


def entry_of(demand: Demand) -> Entry:
    """The entry of a demand: its cut, its budget rounded down, 1.1 times its rate."""
    power = _power(demand.budget_us)
    return Entry(
        name=f"b{demand.block}-{power}",
        block=demand.block,
        budget_us=_budget_us(power),
        rate_rps=HEADROOM * demand.rate_rps,
    )


def kind_of(demand: Demand) -> Demand:
    """A demand as all are that its entry serves: the same budget, at no rate."""
    return demand._replace(budget_us=_budget_us(_power(demand.budget_us)), rate_rps=0.0)


def _power(budget_us: int) -> int:
    """Of the largest rounded budget that this one covers."""
    power = max(int(math.log(max(budget_us, 1), STEP)), 0)
    power += _budget_us(power + 1) <= budget_us
    return power - (_budget_us(power) > budget_us)


def _budget_us(power: int) -> int:
    return max(math.floor(STEP**power), 1)


def entries_of(
    demands: Iterable[Demand], came_in: Mapping[tuple[str, str], float] | None = None
) -> dict[str, list[Entry]]:
    """Entries by model: demands of one cut and nearly one budget together.

    Where there are too many, those of which most comes in, by model and name, then the busiest.
    """
    known_rps = came_in or {}
    found: dict[str, dict[str, Entry]] = {}
    for demand in demands:
        if demand.rate_rps * HEADROOM < LEAST_RPS:
            continue
        own, entry = found.setdefault(demand.model, {}), entry_of(demand)
        known = own.get(entry.name)
        rate_rps = entry.rate_rps + (known.rate_rps if known else 0.0)
        own[entry.name] = replace(entry, rate_rps=rate_rps)

    def busiest(name: str) -> list[Entry]:
        def less(entry: Entry) -> tuple[float, float]:
            return -known_rps.get((name, entry.name), 0.0), -entry.rate_rps

        return sorted(found[name].values(), key=less)[:MOST_ENTRIES]

    return {name: sorted(busiest(name), key=lambda e: (e.block, e.budget_us)) for name in found}


def with_entries(
    workload: Workload,
    entries: Mapping[str, Sequence[Entry]],
    left_out: Container[tuple[str, str]] = (),
) -> Workload:
    """The workload with these entries; a model without demand keeps one of hardly any rate.

    Models without entries stay as they are.
    """

    def steered(model: ModelDemand) -> ModelDemand:
        if not model.entries:
            return model
        own = [e for e in entries.get(model.name, ()) if (model.name, e.name) not in left_out]
        last = max(e.block for e in model.entries)
        idle = Entry(name="idle", block=last, budget_us=model.slo_us, rate_rps=LEAST_RPS)
        return replace(model, entries=tuple(own) or (idle,))

    return replace(workload, models=tuple(map(steered, workload.models)))


def planner_of(
    profiles: Mapping[str, ModelProfile], cluster: Cluster, options: PlanOptions
) -> Planner:
    """Plans by the planner and options of a plan.

    What is in force stays in its place where it can.
    """

    def plan(workload: Workload, in_force: Plan) -> Plan:
        return make_plan(profiles, cluster, workload, replace(options, previous=in_force))

    return plan


def steering_of(work: Workspace, in_force: Plan) -> Steering:
    """The steering of a plan, with its planner and options, on the warehouse's profiles.

    Raises:
        InputError: it has no entries, or a model was not profiled.
    """
    if not in_force.workload.has_entries:
        raise InputError(f"plan {in_force.plan_id}", "has no entries to steer")
    profiles, _ = load_profiles(work, in_force.cluster, in_force.workload)
    planner = planner_of(profiles, in_force.cluster, options_of(in_force))
    return Steering(planner=planner, in_force=in_force)
