"""Clients and server in one virtual time.

Time goes on in ticks. In each, clients do what falls into it; what they send is offered to the
server, which then catches up; a client that was answered hears of it at the next tick at the
earliest. So no part knows anything before it happened, and answers are known at most one tick late.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from triton_backend.contract.entries import covering
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.shares import percent_of
from triton_backend.contract.transition.memory import transition
from triton_backend.contract.units import US_PER_S
from triton_backend.scheduler.compiled import NONE
from triton_backend.simulator.clients.client import (
    ClientCounts,
    ClientSpec,
    Missed,
    Sent,
    VirtualClient,
)
from triton_backend.simulator.run import Stepwise
from triton_backend.simulator.scenario import SimOptions
from triton_backend.simulator.world import DROPPED, OPEN, REQUEST_RECORD

CLOSED_TICK_US = 10_000
_COUNTED = 20  # requests over which the rate of a queue is measured


class Announced(NamedTuple):
    """A client's announcement: model, cut, least budget there, and rate."""

    client: str
    model: str
    block: int
    budget_us: int
    rate_rps: float


@dataclass(slots=True, kw_only=True)
class _Line:
    """A queue of the plan in force.

    Its planned rate, whether it has pools of its own, clients that came lately.
    """

    rate_rps: float
    own: bool
    arrivals_us: deque[int] = field(default_factory=lambda: deque(maxlen=_COUNTED))

    def why(self) -> Missed:
        """Why a request of it was refused."""
        if not self.own:
            return Missed.SHADOW
        if len(self.arrivals_us) < _COUNTED:
            return Missed.WITHIN
        lasted_s = (self.arrivals_us[-1] - self.arrivals_us[0]) / US_PER_S
        return Missed.ABOVE if self.rate_rps * lasted_s < _COUNTED - 1 else Missed.WITHIN


class ClosedLoop:
    """Clients against a plan, which may be changed on the way.

    Args:
        plan: what serves at first.
        clients: those that ask.
        options: of the scheduler; nothing but the clients offers load.
        foresight: clients decide with hindsight.

    Raises:
        InputError: a client's model is not in the plan, or has another number of blocks.
    """

    def __init__(
        self,
        plan: Plan,
        clients: Sequence[ClientSpec],
        options: SimOptions,
        *,
        foresight: bool = False,
    ) -> None:
        for spec in clients:
            blocks = plan.model(spec.model).blocks
            if len(spec.upload_bytes) != blocks:
                reason = f"{len(spec.upload_bytes)} cuts, {spec.model} has {blocks} blocks"
                raise InputError(f"client {spec.name!r}", reason)
        self._server = Stepwise(plan, options)
        self._end_us = round(options.duration_s * US_PER_S)
        self._now_us = 0
        self._events: list[tuple[int, int, Callable[[int, Any], None], Any]] = []
        self._sequence = 0
        self._coming: list[tuple[int, int, Sent]] = []
        self._asked: dict[int, tuple[Sent, _Line]] = {}
        self._next: tuple[int, Plan] | None = None
        self._held: list[tuple[int, float]] = []  # percents of GPUs from an instant on
        self._read_plan()
        self._hold(plan)
        self.clients = [
            VirtualClient(
                number,
                spec,
                _phase_us(options.seed, number, spec.fps),
                self._end_us,
                later=self._later,
                send=self._send,
                open_cuts=self._open_cuts,
                foresight=foresight,
            )
            for number, spec in enumerate(clients)
        ]

    @property
    def plan(self) -> Plan:
        """In force."""
        return self._server.plan

    @property
    def changing(self) -> bool:
        """True if another plan is on its way."""
        return self._next is not None

    @property
    def client_counts(self) -> list[ClientCounts]:
        """By client."""
        return [client.counts for client in self.clients]

    def announced(self) -> list[Announced]:
        """The announcements of all clients that send."""
        found: list[Announced] = []
        for client in self.clients:
            said = client.announced(self._now_us)
            if said is not None:
                found.append(Announced(client.spec.name, client.spec.model, *said))
        return found

    def change(self, plan: Plan, at_us: int) -> None:
        """Bring a plan into force; until then its new workers start beside those there are."""
        self._next = (max(at_us, self._now_us), plan)
        change = transition(self.plan, plan)
        vgpus = plan.vgpus()
        starting = math.fsum(plan.pools[vgpus[number].pool].share for number in change.starts)
        self._held.append((self._now_us, percents(self.plan) + percent_of(round(starting))))

    def advance(self, until_us: int) -> None:
        """Let everything happen that happens before an instant."""
        until_us = min(until_us, self._end_us)
        while self._now_us < until_us:
            if self._next is not None and self._next[0] <= self._now_us:
                self._take_over(self._next[1])
            self._tick(min(self._now_us + CLOSED_TICK_US, until_us))

    def finish(self) -> None:
        """Go on until every request has its outcome."""
        self.advance(self._end_us)
        while self._events or self._coming or self._asked:
            self._tick(self._now_us + CLOSED_TICK_US)

    def mean_percent(self) -> float:
        """Percents of GPUs held, in the mean over time; new workers count from their start."""
        times = [at for at, _ in self._held] + [self._end_us]
        spans = np.diff(np.minimum(times, self._end_us))
        return float(np.dot(spans, [held for _, held in self._held]) / max(self._end_us, 1))

    def late_after_accepting(self) -> int:
        """Requests that were dispatched and ended after their deadline."""
        rows = self._server.requests
        ended = rows[(rows["outcome"] != OPEN) & (rows["outcome"] != DROPPED)]
        return int((ended["finish_us"] > ended["deadline_us"]).sum())

    # One tick

    def _tick(self, until_us: int) -> None:
        while self._events and self._events[0][0] < until_us:
            at_us, _, function, argument = heapq.heappop(self._events)
            function(at_us, argument)
        rows: list[tuple[Sent, int, int, int]] = []
        while self._coming and self._coming[0][0] < until_us:
            at_us, _, sent = heapq.heappop(self._coming)
            cuts = self._queues.get((sent.model, sent.block))
            if cuts is None:
                self._later(max(at_us, until_us), self._refused, (sent, Missed.CLOSED))
            else:
                model, queue = cuts[covering(self._budgets(cuts), sent.budget_us)]
                rows.append((sent, at_us, model, queue))
                self._lines[queue].arrivals_us.append(at_us)
        if rows:
            first = len(self._server.requests)
            self._server.offer(_records(rows))
            self._asked |= {
                first + k: (sent, self._lines[queue]) for k, (sent, _, _, queue) in enumerate(rows)
            }
        self._server.advance(until_us)
        self._now_us = until_us
        self._hear()

    def _hear(self) -> None:
        """Tell clients what became of their requests."""
        if not self._asked:
            return
        numbers = np.fromiter(self._asked, dtype=np.int64, count=len(self._asked))
        rows = self._server.requests[numbers]
        for k in np.flatnonzero(rows["outcome"] != OPEN).tolist():
            sent, line = self._asked.pop(int(numbers[k]))
            rtt_us = self.clients[sent.client].spec.rtt_us
            at_us = int(rows["finish_us"][k]) + rtt_us - rtt_us // 2
            heard_us = max(at_us, self._now_us)
            if rows["outcome"][k] == DROPPED:
                self._later(heard_us, self._refused, (sent, line.why()))
            else:
                self._later(heard_us, self._answered, (sent, at_us))

    def _answered(self, now_us: int, said: tuple[Sent, int]) -> None:
        sent, at_us = said
        self.clients[sent.client].answered(now_us, at_us, sent.number)

    def _refused(self, now_us: int, said: tuple[Sent, Missed]) -> None:
        sent, why = said
        self.clients[sent.client].refused(now_us, sent.number, why)

    def _later(self, at_us: int, function: Callable[[int, Any], None], argument: Any) -> None:
        heapq.heappush(self._events, (at_us, self._sequence, function, argument))
        self._sequence += 1

    def _send(self, sent: Sent) -> None:
        heapq.heappush(self._coming, (sent.arrival_us, self._sequence, sent))
        self._sequence += 1

    # The plan in force

    def _take_over(self, plan: Plan) -> None:
        self._server.change(plan, self._now_us)
        self._next = None
        self._read_plan()
        self._hold(plan)

    def _hold(self, plan: Plan) -> None:
        self._held.append((self._now_us, percents(plan)))

    def _read_plan(self) -> None:
        """Queues of every cut, and the least time of its tail."""
        self._queues: dict[tuple[str, int], list[tuple[int, int]]] = {}  # model and queue
        self._budget_us: dict[int, int] = {}
        self._tails: dict[str, dict[int, int]] = {}
        self._lines: list[_Line] = []
        anywhere = {pool.name for pool in self.plan.pools if pool.starts_anywhere}
        queue = 0
        for number, model in enumerate(self.plan.models):
            self._tails[model.name] = self.plan.least_tails_us(model.name)
            for entry in model.queues:
                self._queues.setdefault((model.name, entry.block), []).append((number, queue))
                self._budget_us[queue] = entry.budget_us
                own = any(
                    p.entry == entry.name and any(s.pool not in anywhere for s in p.stages)
                    for p in model.pipelines
                )
                self._lines.append(_Line(rate_rps=entry.rate_rps, own=own))
                queue += 1

    def _budgets(self, cuts: Sequence[tuple[int, int]]) -> dict[int, int]:
        return {at: self._budget_us[queue] for at, (_, queue) in enumerate(cuts)}

    def _open_cuts(self, model: str) -> Mapping[int, int]:
        return self._tails[model]


def percents(plan: Plan) -> float:
    """Percents of GPUs that a plan's vGPUs hold."""
    return percent_of(sum(pool.share * pool.vgpus for pool in plan.pools))


def _phase_us(seed: int, number: int, fps: float) -> int:
    """When a client's first request is due: somewhere in its first period."""
    return int(np.random.default_rng([seed, number]).uniform(0, US_PER_S / fps))


def _records(rows: Sequence[tuple[Sent, int, int, int]]) -> np.ndarray:
    found = np.zeros(len(rows), dtype=REQUEST_RECORD)
    found["dispatch_us"] = found["batch_id"] = found["application"] = NONE
    found["samples"] = 1
    found["arrival_us"] = [at_us for _, at_us, _, _ in rows]
    found["deadline_us"] = [at_us + sent.budget_us for sent, at_us, _, _ in rows]
    found["model"] = [model for _, _, model, _ in rows]
    found["queue"] = [queue for _, _, _, queue in rows]
    return found
