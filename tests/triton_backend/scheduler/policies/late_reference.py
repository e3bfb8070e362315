"""Late binding from its definition: everything is worked out anew at every instant.

No heaps, no arrays and nothing of the product: lists of requests, a table of latencies per model, one
pool of equal vGPUs that all models share. For tests that compare batches one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

NEVER = 10**15


@dataclass
class Request:
    number: int
    arrival: int
    deadline: int
    samples: int


@dataclass
class Model:
    """`latency[n - 1]` of n samples; batches up to `planned` are asked for, up to all of it formed."""

    latency: Sequence[int]
    planned: int
    line: list[Request] = field(default_factory=list)
    served: int = -1

    def longest(self, samples: int) -> int:
        """Latency made monotone: a smaller batch never takes longer."""
        return max(self.latency[:samples])


@dataclass(frozen=True)
class Rules:
    opens: str  # frontrun, now, timeout, latest
    heads: str  # window, head
    rank: str  # latest, recent
    timeout: int = 0


@dataclass(frozen=True)
class Batch:
    """When, which model, which requests, on which vGPU."""

    at: int
    model: int
    requests: tuple[int, ...]
    vgpu: int


class Reference:
    def __init__(self, models: Sequence[Model], vgpus: int, rules: Rules) -> None:
        self.models = models
        self.rules = rules
        self.free = [0] * vgpus
        self.batches: list[Batch] = []
        self.drops: list[tuple[int, int]] = []

    def run(self, arrivals: Sequence[tuple[int, int, int, int]]) -> None:
        """Arrivals (instant, model, deadline, samples) in order; ends when nothing is left to do."""
        waiting = list(enumerate(arrivals))
        now = -1
        while True:
            instants = [a[0] for _, a in waiting[:1]]
            instants += [at for at in self.free if at > now]
            for model in self.models:
                chosen = self.candidate(model, max(now, 0)) if model.line else None
                if chosen:
                    instants += [at for at in chosen[1:3] if at > now]
                    instants.append(chosen[2] + 1)
            instants = [at for at in instants if at > now]
            if not instants:
                return
            now = min(instants)
            self.decide(now)
            while waiting and waiting[0][1][0] == now:
                number, (_, model, deadline, samples) = waiting.pop(0)
                line = self.models[model].line
                line.append(Request(number, now, deadline, samples))
                line.sort(key=lambda r: (r.deadline, r.number))
                self.decide(now)

    def decide(self, now: int) -> None:
        while True:
            ready: list[tuple[int, int, list[Request]]] = []
            for m, model in enumerate(self.models):
                while model.line and not self.keeps(model, now):
                    self.drops.append((now, model.line.pop(0).number))
                if model.line:
                    members, opens, latest = self.candidate(model, now) or ([], NEVER, NEVER)
                    if opens <= now:
                        ready.append((self.key(model, latest), m, members))
            idle = [v for v, at in enumerate(self.free) if at <= now]
            if not ready or not idle:
                return
            _, m, members = min(ready, key=lambda r: (r[0], r[1]))
            model = self.models[m]
            model.line = model.line[len(members) :]
            took = model.latency[sum(r.samples for r in members) - 1]
            self.free[idle[0]] = now + took
            self.batches.append(Batch(now, m, tuple(r.number for r in members), idle[0]))
            model.served = len(self.batches)

    def key(self, model: Model, latest: int) -> int:
        return latest if self.rules.rank == "latest" else model.served

    def keeps(self, model: Model, now: int) -> bool:
        """Whether the head stays, by the rule for heads."""
        head, largest = model.line[0], len(model.latency)
        if head.samples > largest:
            return False
        needed = head.samples
        if self.rules.heads == "window":
            tail = 0
            for first in range(len(model.line) - 1, -1, -1):
                size = min(sum(r.samples for r in model.line[first:]), largest)
                if now + model.longest(size) > model.line[first].deadline:
                    break
                tail = size
            needed = max(needed, min(tail, model.planned))
        return now + model.longest(needed) <= head.deadline

    def candidate(self, model: Model, now: int) -> tuple[list[Request], int, int] | None:
        """Members, when it opens, the latest; None where the head is to be dropped."""
        if not self.keeps(model, now):
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
        if len(members) < len(model.line) or size == largest:
            return members, now, latest
        opens = {
            "now": now,
            "frontrun": head.deadline - model.longest(size + 1) + 1,
            "timeout": head.arrival + self.rules.timeout,
            "latest": latest,
        }[self.rules.opens]
        return members, max(now, min(opens, latest)), latest
