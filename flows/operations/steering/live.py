"""Plans of a running system that follow what clients announce, and what comes in beyond it."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from flows.operations.replanning.autoscale import PlanDeployer, bring_plans
from flows.operations.steering.policy import (
    HEADROOM,
    WATCH_S,
    Demand,
    Steering,
    entry_of,
    kind_of,
)
from triton_backend.contract.errors import InfeasibleError, InputError, PoolPipeError
from triton_backend.contract.plan import Plan

MEASURED_S = 2.0  # of which rates are counted, live,
SAID_S = 0.5  # up to so long ago: a client that has just begun or moved says so by then
CHANCE = 1.5  # standard deviations of a count that are taken for chance


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
        return [d._replace(rate_rps=d.rate_rps * factors.get(kind_of(d), 1.0)) for d in announced]

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
        kind = kind_of(demand)
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


def models_with_closed_cuts(plan: Plan) -> list[str]:
    """Models with entries, but without a pool that runs every tail.

    Triton declares the tensors of open cuts when it loads a model, so that those stay.
    """
    anywhere = {pool.name for pool in plan.pools if pool.starts_anywhere}
    return [
        model.name
        for model in plan.models
        if model.entries
        and not any(stage.pool in anywhere for one in model.pipelines for stage in one.stages)
    ]


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
    for name in models_with_closed_cuts(steering.in_force):
        say(
            f"note: {name}: no shadow pool (plan --shadow-rps), so no plan that opens or closes a"
            " cut can follow"
        )
    system.wait(0.0)
    guide = CutsGuide(steering=steering, system=system, steering_of=steering_of)
    bring_plans(guide, system, say, decisions=decisions, advisory=advisory, over=over)
