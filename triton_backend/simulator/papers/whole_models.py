"""Whole models on vGPUs without reservations, for rules of others: clock, vGPUs, batches, result.

A rule hears of three things: a request came, a vGPU is free, an instant it asked for has come. It
keeps its own queues and calls `start`, `preempt`, `drop` and `wake`. At one instant ends come
first, then the instants asked for, then arrivals. Inputs and answers cost nothing, as by default
elsewhere.

Plain Python: these rules are compared with, not served; 100,000 requests take some seconds.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Protocol

import numpy as np

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.compiled import NONE, Integers, Records
from triton_backend.simulator.cluster.workers import ONE
from triton_backend.simulator.papers.unreserved import Clock, refuse, result_of
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.scenario import SimOptions
from triton_backend.simulator.world import DROPPED, LATE, SERVED, USE_RECORD

_END, _WAKE = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A model on a pool.

    Attributes:
        number: its place among all rows; one per pipeline, in plan order.
        vgpus: numbers of the pool's vGPUs.
        latency_us: of batch b at b - 1; the last is the largest batch.
        planned: batch.
        rate_rps: planned.
    """

    number: int
    model: int
    vgpus: range
    latency_us: tuple[int, ...]
    planned: int
    rate_rps: float

    def takes_us(self, samples: int) -> int:
        """Latency of a batch."""
        return self.latency_us[samples - 1]

    @property
    def largest(self) -> int:
        """Samples of the largest batch."""
        return len(self.latency_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that waits or runs; `number` is its place among all of the run."""

    number: int
    model: int
    samples: int
    arrival_us: int
    deadline_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The run on a vGPU."""

    number: int
    row: Row
    requests: tuple[Request, ...]
    start_us: int

    @property
    def samples(self) -> int:
        """Of all its requests."""
        return samples_of(self.requests)


class Rule(Protocol):
    """The decision of a baseline."""

    def arrive(self, run: "Run", request: Request) -> None:
        """A request came."""
        ...

    def freed(self, run: "Run", vgpu: int) -> None:
        """A vGPU ended its batch."""
        ...

    def due(self, run: "Run", subject: int) -> None:
        """An instant has come that `wake` asked for."""
        ...


@dataclass(slots=True, kw_only=True)
class Run:
    """A run in progress: the world that a rule acts on."""

    rows: tuple[Row, ...]
    records: Records
    factors: Sequence[int]
    running: list[Batch | None]
    busy_us: Integers
    now_us: int = 0
    batches: int = 0
    steps: int = 0
    events: list[tuple[int, int, int, int, int]] = field(
        default_factory=list[tuple[int, int, int, int, int]]
    )
    uses: list[tuple[int, int, int, int, int, int, int]] = field(
        default_factory=list[tuple[int, int, int, int, int, int, int]]
    )

    def start(self, vgpu: int, row: Row, requests: Iterable[Request]) -> None:
        """Run requests as one batch on a vGPU that is free."""
        batch = Batch(number=self.batches, row=row, requests=tuple(requests), start_us=self.now_us)
        factor = self.factors[self.batches % len(self.factors)]
        end_us = self.now_us + max(1, row.takes_us(batch.samples) * factor // ONE)
        self.batches += 1
        self.running[vgpu] = batch
        self._push(end_us, _END, vgpu, batch.number)

    def preempt(self, vgpu: int) -> tuple[Request, ...]:
        """Break off what runs on a vGPU; its work is lost, its requests are answered."""
        return self._stop(vgpu).requests

    def wake(self, at_us: int, subject: int) -> None:
        """Ask for a call at an instant; what was asked for comes even if it is needed no more."""
        self._push(at_us, _WAKE, subject, NONE)

    def drop(self, request: Request) -> None:
        """Give a request up."""
        record = self.records[request.number]
        record["outcome"] = DROPPED
        record["finish_us"] = self.now_us

    def until_the_end(self, rule: Rule) -> None:
        """Let everything happen."""
        for number, (model, samples, arrival_us, deadline_us) in enumerate(
            self.records[["model", "samples", "arrival_us", "deadline_us"]].tolist()
        ):
            self._before(arrival_us, rule)
            self.now_us = arrival_us
            self.steps += 1
            request = Request(
                number=number,
                model=model,
                samples=samples,
                arrival_us=arrival_us,
                deadline_us=deadline_us,
            )
            rule.arrive(self, request)
        self._before(None, rule)

    def _before(self, at_us: int | None, rule: Rule) -> None:
        """All events up to an instant and at it; None: all."""
        while self.events and (at_us is None or self.events[0][0] <= at_us):
            self.now_us, kind, _, subject, number = heappop(self.events)
            self.steps += 1
            if kind == _WAKE:
                rule.due(self, subject)
                continue
            batch = self.running[subject]
            if batch is not None and batch.number == number:  # else it was broken off
                self._answer(self._stop(subject))
                rule.freed(self, subject)

    def _answer(self, batch: Batch) -> None:
        for request in batch.requests:
            record = self.records[request.number]
            record["outcome"] = SERVED if self.now_us <= request.deadline_us else LATE
            record["finish_us"] = self.now_us
            record["dispatch_us"] = batch.start_us
            record["batch_id"] = batch.number
            record["batch_samples"] = batch.samples

    def _stop(self, vgpu: int) -> Batch:
        """A vGPU is free from now on; returns what ran there."""
        batch = self.running[vgpu]
        assert batch is not None
        self.running[vgpu] = None
        self.busy_us[vgpu] += self.now_us - batch.start_us
        self.uses.append(
            (vgpu, batch.number, batch.start_us, self.now_us, batch.samples, batch.row.model, 0)
        )
        return batch

    def _push(self, at_us: int, kind: int, subject: int, number: int) -> None:
        # Equal instants: ends, then wakes, each in the order of vGPUs or subjects.
        heappush(self.events, (at_us, kind, subject, subject, number))


def simulate_whole(
    rule_of: Callable[[tuple[Row, ...], SimOptions], Rule],
    takes: Sequence[str],
    plan: Plan,
    options: SimOptions,
    requests: Records,
    factors: Integers,
    clock_ns: Clock,
) -> SimResult:
    """A run of a rule.

    Args:
        rule_of: makes the rule of a run.
        takes: options of late binding that the rule takes.
        plan: what serves; whole models.
        options: what is offered and how.
        requests: `world.REQUEST_RECORD` rows by arrival; their outcomes are filled in.
        factors: what table latencies are multiplied with, in turn, in 1 / `ONE`.
        clock_ns: where the wall time is wanted.

    Raises:
        InputError: an option that needs reservations, or a plan with stages, entries or
            applications.
    """
    refuse(plan, options, takes, links=False)
    rows = rows_of(plan, options)
    run = Run(
        rows=rows,
        records=requests,
        factors=factors.tolist(),
        running=[None] * len(plan.vgpus()),
        busy_us=np.zeros(len(plan.vgpus()), dtype=np.int64),
    )
    start_ns = clock_ns() if clock_ns else 0
    run.until_the_end(rule_of(rows, options))
    wall_seconds = (clock_ns() - start_ns) / 1e9 if clock_ns else None
    return result_of(
        plan,
        options,
        requests,
        np.asarray(run.uses, dtype=USE_RECORD),
        run.busy_us,
        now_us=run.now_us,
        steps=run.steps,
        wall_seconds=wall_seconds,
    )


def rows_of(plan: Plan, options: SimOptions) -> tuple[Row, ...]:
    """Every model on every pool that runs it.

    Raises:
        InputError: a pipeline has several stages.
    """
    first = np.cumsum([0, *(pool.vgpus for pool in plan.pools)]).tolist()
    numbers = {pool.name: number for number, pool in enumerate(plan.pools)}
    rows: list[Row] = []
    for model, planned in enumerate(plan.models):
        for pipeline in planned.pipelines:
            if len(pipeline.stages) != 1:
                reason = f"{options.policy!r} runs whole models, a pipeline has several stages"
                raise InputError(f"model {planned.name!r}, policy", reason)
            (stage,) = pipeline.stages
            pool = numbers[stage.pool]
            rows.append(
                Row(
                    number=len(rows),
                    model=model,
                    vgpus=range(first[pool], first[pool + 1]),
                    latency_us=stage.latency_us_by_batch,
                    planned=stage.batch or pipeline.batch,
                    rate_rps=pipeline.throughput_rps,
                )
            )
    return tuple(rows)


def enqueue(queue: deque[Request], request: Request) -> None:
    """Put a request into a queue, in the order of deadlines (ties: arrival)."""
    place = len(queue)
    key = (request.deadline_us, request.number)
    while place and (queue[place - 1].deadline_us, queue[place - 1].number) > key:
        place -= 1
    queue.insert(place, request)


def samples_of(requests: Iterable[Request]) -> int:
    """Samples of all of some requests."""
    return sum(request.samples for request in requests)


def within(queue: Iterable[Request], most: int) -> list[Request]:
    """The longest run of whole requests from the head that holds at most so many samples."""
    found: list[Request] = []
    for request in queue:
        most -= request.samples
        if most < 0:
            break
        found.append(request)
    return found


def take(queue: deque[Request], requests: Sequence[Request]) -> None:
    """Take requests that stand at the head out of a queue."""
    for _ in requests:
        queue.popleft()
