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
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from flows.clock import Stopwatch
from flows.operations.replanning.autoscale import PlanDeployer, bring_plans
from flows.operations.replanning.planner import options_of
from flows.planning import PlanOptions, make_plan
from flows.planning.stored_plans import load_profiles
from flows.workspace import Workspace
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.entries import Entry, covering
from triton_backend.contract.errors import InfeasibleError, InputError, PoolPipeError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.units import US_PER_S
from triton_backend.contract.workload import LEAST_RPS, ModelDemand, Workload
from triton_backend.simulator.clients.client import ClientSpec
from triton_backend.simulator.clients.closed_loop import ClosedLoop, percents
from triton_backend.simulator.scenario import SimOptions

HEADROOM = 1.1  # planned over measured
SAVING, SAVING_S = 0.15, 30.0
KEPT_S = 10.0  # for which a demand is planned for after it has gone
LOOK_S = 5.0  # between two looks whether a plan would save
PAUSE_S = 1.0  # between two changes
STEP = 1.2  # budgets are rounded down to its powers
MOST_ENTRIES = 200  # of a model
WATCH_S = 0.25  # between two looks,
MEASURED_S = 2.0  # of which rates are counted, live,
SAID_S = 0.5  # up to so long ago: a client that has just begun or moved says so by then
CHANCE = 1.5  # standard deviations of a count that are taken for chance
START_S = 2.0  # simulated: from a plan to its new workers' readiness


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

    def next_plan(self, demands: Sequence[Demand], now_s: float) -> Plan | None:
        """The plan to be brought into force now; None where the one in force stays.

        Raises:
            InfeasibleError: the cluster cannot carry the demands.
        """
        kept = self._kept(demands, now_s)
        if now_s - self.changed_s < PAUSE_S:
            return None
        if self.exceeded(demands, kept):
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
            kind = _kind(demand)
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
        watch = Stopwatch()
        entries = entries_of(demands, self.came_in or {})
        doubtful = self._doubtful(entries)
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


def _kind(demand: Demand) -> Demand:
    """Demands that are one entry, at no rate."""
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


# In the simulator


@dataclass(frozen=True, slots=True, kw_only=True)
class SteeredRun:
    """A closed loop that ran, with what it cost and how it was steered.

    Attributes:
        loop: the clients' counts.
        steering: None where the plan stayed.
        changes: of plan.
        unsteered: why a change was not made, each once.
    """

    loop: ClosedLoop
    steering: Steering | None
    changes: int = 0
    unsteered: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The object of `simulate --clients --json`, beside policy, seed and duration."""
        client_counts = self.loop.client_counts
        offered = sum(t.offered for t in client_counts)
        feasible, reached = (
            sum(t.feasible for t in client_counts),
            sum(t.reached for t in client_counts),
        )
        return {
            "offered": offered,
            "attainment": sum(t.served for t in client_counts) / offered if offered else 1.0,
            "feasible": feasible,
            "attainment_feasible": sum(t.feasible_served for t in client_counts) / feasible
            if feasible
            else 1.0,
            "possible": (possible := sum(t.possible for t in client_counts)),
            "attainment_possible": sum(t.possible_served for t in client_counts) / possible
            if possible
            else 1.0,
            "tried": sum(t.tried for t in client_counts),
            "tried_served": sum(t.tried_served for t in client_counts),
            "missed": dict(sum((t.missed for t in client_counts), Counter[str]())),
            "reached": reached,
            "attainment_reached": sum(t.reached_served for t in client_counts) / reached
            if reached
            else 1.0,
            "accepted_and_late": self.loop.late_after_accepting(),
            "mean_percent": self.loop.mean_percent(),
            "changes": self.changes,
            "plan_ms": _quantiles([] if self.steering is None else self.steering.plan_s),
            "unsteered": list(self.unsteered),
            "clients": {
                client.spec.name: {
                    "model": client.spec.model,
                    "offered": counts.offered,
                    "feasible": counts.feasible,
                    "feasible_share": counts.feasible / counts.offered if counts.offered else 1.0,
                    "served": counts.served,
                    "attainment": counts.served / counts.offered if counts.offered else 1.0,
                    "feasible_served": counts.feasible_served,
                    "late": counts.late,
                    "not_begun": counts.not_begun,
                    "on_device": counts.device,
                    "refused": counts.refused,
                    "moves": counts.changes,
                    "cuts": {str(cut): count for cut, count in sorted(counts.cuts.items())},
                    "latency_ms": _quantiles([us / US_PER_S for us in counts.total_us], (50, 99)),
                }
                for client, counts in zip(self.loop.clients, client_counts, strict=True)
            },
        }


def _quantiles(seconds: Sequence[float], which: tuple[int, ...] = (50, 99, 100)) -> dict[str, Any]:
    """In ms; None where there is nothing."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return {f"p{q}": 1e3 * ordered[round(last * q / 100)] if ordered else None for q in which}


@dataclass(frozen=True, slots=True, kw_only=True)
class SteerTimes:
    """How long a simulated change takes.

    Planning as measured (None) or stated, then new workers' start.
    """

    plan_s: float | None = None
    start_s: float = START_S


def steer_simulated(
    plan: Plan,
    clients: Sequence[ClientSpec],
    options: SimOptions,
    steering: Steering | None,
    times: SteerTimes,
    report: Callable[[str], None],
    *,
    foresight: bool = False,
) -> tuple[ClosedLoop, int, tuple[str, ...]]:
    """Clients against a plan, and plans that follow them.

    The loop, changes, and why some were not made. With `foresight` clients decide by what their
    links will do.

    Raises:
        InputError: clients and plan do not fit.
    """
    loop = ClosedLoop(plan, clients, options, foresight=foresight)
    changes, unsteered = 0, dict[str, None]()
    looks = 0
    while (now_s := looks * WATCH_S) < options.duration_s:
        looks += 1
        now_s = looks * WATCH_S
        loop.advance(round(now_s * US_PER_S))
        if now_s % 10 == 0:
            report(f"at {now_s:g} s, {changes} changes so far")
        if steering is None or loop.changing:
            continue
        watch = Stopwatch()
        demands = [Demand(a.model, a.block, a.budget_us, a.rate_rps) for a in loop.announced()]
        try:
            following = steering.next_plan(demands, now_s)
        except InfeasibleError as error:
            unsteered[str(error)] = None
            continue
        if following is not None:
            planning_s = watch.seconds() if times.plan_s is None else times.plan_s
            loop.change(following, round((now_s + planning_s + times.start_s) * US_PER_S))
            changes += 1
    loop.finish()
    return loop, changes, tuple(unsteered)


# In a running system


class SteeredSystem(PlanDeployer, Protocol):
    """The served system, as steering sees it."""

    def offered(self) -> Mapping[tuple[str, str], int]:
        """Requests so far, by model and entry."""
        ...

    def announced(self) -> Sequence[Demand]:
        """The demand that clients announce."""
        ...


@dataclass(slots=True, kw_only=True)
class CutsGuide:
    """Plans by what clients announce, and by what comes in beyond that."""

    steering: Steering
    system: SteeredSystem
    steering_of: Callable[[Plan], Steering]
    now_s: float = 0.0
    demands: tuple[Demand, ...] = ()
    former: Plan | None = None
    counts: deque[tuple[float, Mapping[tuple[str, str], int]]] = field(
        default_factory=deque[tuple[float, Mapping[tuple[str, str], int]]]
    )
    said: deque[Mapping[tuple[str, int], float]] = field(
        default_factory=deque[Mapping[tuple[str, int], float]]
    )  # at the instants of `counts`
    kinds: deque[Mapping[Demand, float]] = field(default_factory=deque[Mapping[Demand, float]])
    # And by kind, at the same instants. Entries of the plan in force, by model and name, and since
    # when:
    since_s: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])

    @property
    def in_force(self) -> Plan:
        """The steering's."""
        return self.steering.in_force

    def watch(self, say: Callable[[str], None]) -> None:
        """Wait a moment, then ask for demands; a gateway that is away changes none."""
        self.now_s += self.system.wait(WATCH_S)
        try:
            counts, announced = dict(self.system.offered()), self.system.announced()
        except InputError:
            raise
        except PoolPipeError as error:
            say(f"no rates: {error}")
            return
        last = self.counts[-1][1] if self.counts else {}
        # Entries of the plan before last are not counted any more.
        if any(counts[key] < n for key, n in last.items() if key in counts):
            self.counts.clear()  # a gateway that was restarted counts from 0 again
            self.said.clear()
            self.kinds.clear()
        self.counts.append((self.now_s, counts))
        self.said.append(announced_rps(announced))
        self.kinds.append(_rates_of_kinds(announced))
        while self.now_s - self.counts[0][0] > MEASURED_S + SAID_S:
            self.counts.popleft()
            self.said.popleft()
            self.kinds.popleft()
        entries = [(m.name, e.name) for m in self.in_force.models for e in m.entries]
        self.since_s = {key: self.since_s.get(key, self.now_s) for key in entries}
        rates_rps, span_s = self._rates()
        self.steering.came_in = rates_rps
        believed = self._believed(announced, rates_rps, span_s)
        said, now_believed = announced_rps(announced), announced_rps(believed)
        # Rates that are not believed hide no arrivals, at entries of others either.
        hidden = {
            key: rps - said.get(key, 0.0) + now_believed.get(key, 0.0)
            for key, rps in self._said_rps().items()
        }
        self.demands = (*believed, *excess_demand(self.in_force, hidden, rates_rps, span_s))

    def _believed(
        self,
        announced: Sequence[Demand],
        rates_rps: Mapping[tuple[str, str], float],
        span_s: float,
    ) -> list[Demand]:
        """The announced rates, limited by the measured ones where a client has been long enough.

        Anybody may announce anything. Counted is what comes in at a demand's own entry, or where it
        has none at its cut, beyond what others have entries for. What is new is believed, and what
        is at a closed cut: its client cannot have sent it.
        """
        if self.now_s - self.counts[0][0] < MEASURED_S:
            return list(announced)
        left_rps: dict[tuple[str, int], float] = {}
        for model in self.in_force.models:
            for entry in model.entries:
                came_rps = rates_rps.get((model.name, entry.name), 0.0)
                cut = model.name, entry.block
                left_rps[cut] = left_rps.get(cut, 0.0) + came_rps
        came_in: dict[Demand, float] = {}
        for kind, said in self.kinds[-1].items():
            key, cut = (kind.model, entry_of(kind).name), (kind.model, kind.block)
            if key in self.since_s and cut in left_rps:
                came_in[kind] = rates_rps.get(key, 0.0)
                left_rps[cut] -= min(said, came_in[kind])
        factors: dict[Demand, float] = {}
        for kind, said in self.kinds[-1].items():
            cut = kind.model, kind.block
            since_s = self.since_s.get((kind.model, entry_of(kind).name), 0.0)
            if said and cut in left_rps and self.now_s - since_s >= MEASURED_S:
                lasting_rps = min(each.get(kind, 0.0) for each in self.kinds)
                came_rps = came_in.get(kind, max(left_rps[cut], 0.0))
                chance_rps = (1 + CHANCE * math.sqrt(came_rps * span_s)) / span_s
                believed_rps = min(lasting_rps, came_rps + chance_rps) + said - lasting_rps
                factors[kind] = believed_rps / said
        return [d._replace(rate_rps=d.rate_rps * factors.get(_kind(d), 1.0)) for d in announced]

    def _said_rps(self) -> dict[tuple[str, int], float]:
        """The most that was announced at each cut while what is counted came in, or since.

        Without it a client that moves would be planned for at its former cut too, as one that
        announced
        nothing there, or at its next one before it could announce that: two plans for one move.
        """
        keys = {key for said in self.said for key in said}
        return {key: max(said.get(key, 0.0) for said in self.said) for key in keys}

    def _rates(self) -> tuple[dict[tuple[str, str], float], float]:
        """Requests per second of the last seconds but the very last, by model and entry.

        Of how many seconds.
        """
        begin_s, first = self.counts[0]
        end_s, last = max(
            ((at_s, n) for at_s, n in self.counts if at_s <= self.now_s - SAID_S),
            key=lambda counted: counted[0],
            default=self.counts[0],
        )
        if end_s <= begin_s:
            return {}, MEASURED_S
        span_s = end_s - begin_s
        # One whose plan has come back counts from 0 again.
        return {key: max(n - first.get(key, 0), 0) / span_s for key, n in last.items()}, span_s

    def next_plan(self) -> Plan | None:
        """By the demands of now.

        Where the cluster cannot carry what comes in of them, the plan stays.
        """
        self.former = self.in_force
        try:
            return self.steering.next_plan(self.demands, self.now_s)
        except InfeasibleError:
            return None

    def wanted(self) -> str:
        """Demands, where a plan was made for them."""
        if self.former is self.in_force:
            return ""
        shown = [f"{d.model} from {d.block} {d.rate_rps:.1f} rps" for d in self.demands]
        return ", ".join(shown) or "nothing"

    def failed(self) -> None:
        """Go on from the plan before."""
        if self.former is not None:
            self.steering.in_force = self.former

    def go_on_from(self, plan: Plan) -> None:
        """With a steering of its own, which knows what came in so far."""
        came_in = self.steering.came_in
        self.steering = self.steering_of(plan)
        self.steering.came_in = came_in


def _rates_of_kinds(announced: Iterable[Demand]) -> dict[Demand, float]:
    """Requests per second that are announced, by what becomes one entry."""
    found: dict[Demand, float] = {}
    for demand in announced:
        kind = _kind(demand)
        found[kind] = found.get(kind, 0.0) + demand.rate_rps
    return found


def announced_rps(announced: Iterable[Demand]) -> dict[tuple[str, int], float]:
    """Requests per second that are announced, by model and cut."""
    said: dict[tuple[str, int], float] = {}
    for demand in announced:
        key = demand.model, demand.block
        said[key] = said.get(key, 0.0) + demand.rate_rps
    return said


def excess_demand(
    plan: Plan,
    announced_rps: Mapping[tuple[str, int], float],
    rates_rps: Mapping[tuple[str, str], float],
    span_s: float = MEASURED_S,
) -> list[Demand]:
    """Demand at each cut beyond what clients announced there, with the budgets of its entries.

    Counts of a few seconds, `span_s`, are never quite what is sent: one request more or less, and
    where many are expected so many standard deviations of theirs, are chance.
    """
    said = dict(announced_rps)
    found: list[Demand] = []
    for model in plan.models:
        for entry in model.entries:
            rate_rps, key = rates_rps.get((model.name, entry.name), 0.0), (model.name, entry.block)
            left = said.get(key, 0.0)
            said[key] = max(left - rate_rps, 0.0)
            chance_rps = (1 + CHANCE * math.sqrt(left * span_s)) / span_s
            if rate_rps - left > max((HEADROOM - 1) * rate_rps, chance_rps):
                found.append(Demand(model.name, entry.block, entry.budget_us, rate_rps - left))
    return found


def steer_live(
    steering: Steering,
    system: SteeredSystem,
    say: Callable[[str], None],
    *,
    steering_of: Callable[[Plan], Steering],
    decisions: int | None = None,
    advisory: bool = False,
    over: Callable[[], bool] = lambda: False,
) -> None:
    """Watch clients and bring plans into force as they move, so many looks or until interrupted.

    `steering_of` makes the steering of a plan that another rollout brought.

    Raises:
        InputError: nothing is being served.
    """
    system.wait(0.0)
    guide = CutsGuide(steering=steering, system=system, steering_of=steering_of)
    bring_plans(guide, system, say, decisions=decisions, advisory=advisory, over=over)
