"""Late binding from its definition: everything is worked out again at every instant.

No heaps, no timers, no arrays and nothing of the product: lists of requests, a table of latencies
per model, one pool of equal vGPUs that all models share, and a decision at every single instant.
For tests that compare batches one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

NEVER = 10**15
ONE = 1 << 24  # mean gaps and sizes are whole multiples of 1 / ONE


@dataclass
class Request:
    number: int
    arrival: int
    deadline: int
    samples: int


@dataclass
class Model:
    """`latency[n - 1]` of n samples; batches up to `planned` are asked for, up to all of it formed.

    `budget` and the request before, the mean gap and size of requests (in 1 / ONE) make the
    measured target. None waits for others for longer than `budget` allows.
    """

    latency: Sequence[int]
    planned: int
    budget: int = 0
    line: list[Request] = field(default_factory=list)
    served: int = -1
    before: int | None = None
    gap: int = 0
    size: int = ONE

    def came(self, now: int, samples: int) -> None:
        """Means of gaps and sizes, each request with weight 1 / max(200, requests in 5 budgets)."""
        if self.before is not None:
            gap = (now - self.before) * ONE
            self.gap = self.gap or gap
            weight = max(200, 5 * self.budget * ONE // max(self.gap, 1))
            self.gap += (gap - self.gap) // weight
            self.size += (samples * ONE - self.size) // weight
        self.before = now

    def measured(self) -> int:
        """The largest batch that fills and ends within the budget at the rate of samples.

        Least 1.
        """
        if self.gap == 0:
            return 1
        per_sample = Fraction(self.gap, self.size)
        fitting = (
            size
            for size in range(1, len(self.latency) + 1)
            if self.longest(size) + size * per_sample <= self.budget
        )
        return max(fitting, default=1)

    def waste(self, samples: int) -> Fraction:
        """Time per sample of such a batch, as a multiple of the least there is."""
        took = [Fraction(own, size) for size, own in enumerate(self.latency, 1)]
        return took[samples - 1] / min(took)

    def longest(self, samples: int) -> int:
        """Latency made monotone: a smaller batch never takes longer."""
        return max(self.latency[:samples])


@dataclass(frozen=True)
class Rules:
    opens: str  # frontrun, now, timeout, latest
    heads: str  # window, head
    rank: str  # latest, deadline, efficiency, recent
    target: str = "planned"  # or measured
    timeout: int = 0


@dataclass(frozen=True)
class Batch:
    """When, which model, which requests, on which vGPU."""

    at: int
    model: int
    requests: tuple[int, ...]
    vgpu: int


class Candidate(NamedTuple):
    """A batch that is open: until when it stays as it is, and its time on a vGPU."""

    members: list[Request]
    opens: int
    latest: int
    keep: int
    took: int


class Reference:
    def __init__(self, models: Sequence[Model], vgpus: int, rules: Rules) -> None:
        self.models = models
        self.rules = rules
        self.free = [0] * vgpus
        self.batches: list[Batch] = []
        self.drops: list[tuple[int, int]] = []

    def run(self, arrivals: Sequence[tuple[int, int, int, int]]) -> None:
        """Arrivals (instant, model, deadline, samples) in order.

        Ends when none waits any more.
        """
        waiting = list(enumerate(arrivals))
        now = 0
        while waiting or any(model.line for model in self.models):
            self.decide(now)
            while waiting and waiting[0][1][0] == now:
                number, (_, model, deadline, samples) = waiting.pop(0)
                line = self.models[model].line
                line.append(Request(number, now, deadline, samples))
                line.sort(key=lambda r: (r.deadline, r.number))
                self.models[model].came(now, samples)
                self.decide(now)
            now += 1

    def decide(self, now: int) -> None:
        while True:
            ready: list[tuple[Fraction, int, Candidate]] = []
            waiting: list[tuple[int, Candidate]] = []
            for m, model in enumerate(self.models):
                while model.line and not self.keeps(model, now):
                    self.drops.append((now, model.line.pop(0).number))
                if model.line and (found := self.candidate(model, now)):
                    if found.opens <= now:
                        ready.append((self.key(model, found.members, found.latest), m, found))
                    else:
                        waiting.append((m, found))
            idle = [v for v, at in enumerate(self.free) if at <= now]
            if not idle:
                return
            if not ready:
                ready = [
                    (self.key(self.models[m], found.members, found.latest), m, found)
                    for m, found in self.crowded(waiting, now)
                ]
                waiting = [each for each in waiting if each[0] not in {m for _, m, _ in ready}]
            if not ready:
                return
            _, m, best = min(ready, key=lambda r: (r[0], r[1]))
            m, best = self.hurried(best, waiting, now, len(idle)) or (m, best)
            members = best.members
            model = self.models[m]
            model.line = model.line[len(members) :]
            took = model.latency[sum(r.samples for r in members) - 1]
            self.free[idle[0]] = now + took
            self.batches.append(Batch(now, m, tuple(r.number for r in members), idle[0]))
            model.served = len(self.batches)

    def crowded(
        self, waiting: Sequence[tuple[int, "Candidate"]], now: int
    ) -> list[tuple[int, "Candidate"]]:
        """Those that cannot wait as long as each could alone: vGPUs are taken in turns."""
        order = sorted(waiting, key=lambda each: (each[1].opens, each[0]))
        if not order or sum(at <= now for at in self.free) >= len(order):
            return []
        turns = len(self.free)
        send = [each.opens for _, each in order]
        for place in reversed(range(len(order) - turns)):
            m, each = order[place]
            longer = self.models[m].latency[sum(r.samples for r in each.members)]  # by one sample
            send[place] = min(send[place], send[place + turns] - longer)
        return [each for each, at in zip(order, send, strict=True) if at <= now]

    def hurried(
        self, best: "Candidate", waiting: Sequence[tuple[int, "Candidate"]], now: int, idle: int
    ) -> tuple[int, "Candidate"] | None:
        """The batch that goes instead: one lost otherwise, while the best can wait."""
        busy = min((at for at in self.free if at > now), default=NEVER)
        again = min(busy, now + best.took)
        lost = [(m, each) for m, each in waiting if each.keep < again]
        saved = [(m, each) for m, each in lost if min(busy, now + each.took) <= best.keep]
        if len(lost) < idle or not saved:
            return None
        return min(saved, key=lambda each: (each[1].keep, each[0]))

    def key(self, model: Model, members: Sequence[Request], latest: int) -> Fraction:
        keys = {
            "latest": Fraction(latest),
            "deadline": Fraction(members[0].deadline),
            "efficiency": model.waste(sum(r.samples for r in members)),
            "recent": Fraction(model.served),
        }
        return keys[self.rules.rank]

    def keeps(self, model: Model, now: int) -> bool:
        """True if the head stays, by the rule for heads."""
        head = model.line[0]
        needed = self.needed(model, now)
        return needed is not None and now + model.longest(needed) <= head.deadline

    def needed(self, model: Model, now: int) -> int | None:
        """Samples that a batch with the head must be able to hold; None: it never can."""
        head, largest = model.line[0], len(model.latency)
        if head.samples > largest:
            return None
        needed = head.samples
        if self.rules.heads == "window":
            tail = 0
            for first in range(len(model.line) - 1, -1, -1):
                size = min(sum(r.samples for r in model.line[first:]), largest)
                if now + model.longest(size) > model.line[first].deadline:
                    break
                tail = size
            goal = model.planned if self.rules.target == "planned" else model.measured()
            needed = max(needed, min(tail, goal))
        return needed

    def candidate(self, model: Model, now: int) -> "Candidate | None":
        """The batch that it would send; None where the head is to be dropped."""
        needed = self.needed(model, now)
        if needed is None or not self.keeps(model, now):
            return None
        head, largest = model.line[0], len(model.latency)
        members: list[Request] = []
        for count in range(1, len(model.line) + 1):
            size = sum(r.samples for r in model.line[:count])
            if size > largest or now + model.longest(size) > head.deadline:
                break
            members = model.line[:count]
        size = sum(r.samples for r in members)
        latest = head.deadline - model.longest(size)
        keep = min(latest, head.deadline - model.longest(needed))
        took = model.latency[size - 1]
        if len(members) < len(model.line) or size == largest:
            return Candidate(members, now, latest, keep, took)
        end_by = min(head.deadline, head.arrival + model.budget)
        opens = {
            "now": now,
            "frontrun": end_by - model.longest(size + 1) + 1,
            "timeout": head.arrival + self.rules.timeout,
            "latest": end_by - model.longest(size),
        }[self.rules.opens]
        return Candidate(members, max(now, min(opens, latest)), latest, keep, took)
