"""A shell that serves jobs with exact latencies and checks the scheduler's promises."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from triton_backend.contract.decisions import (
    FIRST_TASK,
    Abort,
    Decision,
    Dispatch,
    Drop,
    JobDone,
    JobDropped,
    ModuleSkipped,
    SetTimer,
    SharedBatch,
    TaskReady,
)
from triton_backend.contract.events import (
    Arrival,
    Emitted,
    Event,
    JobArrival,
    PlanChanged,
    StageDone,
    Timer,
    TransferDone,
)
from triton_backend.scheduler.scheduler import Scheduler

Rows = Callable[[int, str, str, int, int], int]
"""Rows that a piece gives: job, module, child, first row and rows of the piece."""


def row_by_row(_job: int, _module: str, _child: str, _first: int, rows: int) -> int:
    """Every module gives as many rows as it runs."""
    return rows


@dataclass
class Hand:
    """A job in hand: its deadline, and what is known of its modules by their names."""

    application: int
    samples: int
    deadline_us: int
    tasks: dict[str, list[TaskReady]] = field(default_factory=dict[str, list[TaskReady]])
    ended: dict[str, int] = field(default_factory=dict[str, int])  # rows
    given: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    skipped: dict[str, ModuleSkipped] = field(default_factory=dict[str, ModuleSkipped])


class JobShell:
    """Virtual time, one scheduler, and every request and job that it was given.

    Attributes:
        ends: by job, when it was answered (done) or the decision that dropped it.
        log: every decision with the instant at which it came.
        items: events and decisions, in order.
    """

    def __init__(self, scheduler: Scheduler, rows: Rows = row_by_row) -> None:
        self.scheduler = scheduler
        self.rows = rows
        self.now_us = 0
        self.checks = True
        self.hand: dict[int, Hand] = {}
        self.tasks: dict[int, TaskReady] = {}
        self.batches: dict[int, Dispatch] = {}
        self.ends: dict[int, int | JobDropped] = {}
        self.late: list[int] = []
        self.requests: dict[int, int | Drop] = {}
        self.finished: dict[int, Hand] = {}
        self.log: list[tuple[int, Decision]] = []
        self.items: list[Event | Decision] = []
        self.timer_us: int | None = None
        self._reports: list[tuple[int, int, int, int, bool]] = []
        self._count = 0

    def apply(self, event: Event) -> list[Decision]:
        """Hand an event over and carry out what is decided."""
        self.now_us = event.now_us
        decided = self.scheduler.handle(event)
        self.items += [event, *decided]
        for decision in decided:
            self.log.append((self.now_us, decision))
            self._obey(decision)
        if isinstance(event, PlanChanged):
            self.timer_us = self.timer_us or event.now_us
        if self.checks:
            self.scheduler.check_invariants()
            assert self.scheduler.job_ids() == tuple(sorted(self.hand))
        return decided

    def arrive(
        self, at_us: int, job_id: int, slack_us: int, application: int = 0, samples: int = 1
    ) -> list[Decision]:
        """A job comes, after everything until then has happened."""
        self.run(at_us)
        self.hand[job_id] = Hand(application, samples, at_us + slack_us)
        return self.apply(
            JobArrival(
                now_us=at_us,
                job_id=job_id,
                application=application,
                deadline_us=at_us + slack_us,
                samples=samples,
            )
        )

    def request(self, at_us: int, request_id: int, model: int, slack_us: int) -> None:
        """A request of a model by itself comes."""
        self.run(at_us)
        self.apply(
            Arrival(now_us=at_us, request_id=request_id, model=model, deadline_us=at_us + slack_us)
        )

    def run(self, until_us: int = 1 << 40) -> None:
        """Let things end and timers fire, until then or until nothing is left."""
        while True:
            timer = self.timer_us if self.timer_us is not None else 1 << 50
            report = self._reports[0][0] if self._reports else 1 << 50
            at = min(timer, report)
            if at > until_us or at == 1 << 50:
                return
            if report <= timer:
                self._report()
            else:
                self.timer_us = None
                self.apply(Timer(now_us=max(timer, self.now_us)))

    def outcomes(self) -> dict[int, str]:
        """By job: done, late, or the reason of its drop."""
        return {
            job: end.reason.text
            if isinstance(end, JobDropped)
            else ("late" if job in self.late else "done")
            for job, end in self.ends.items()
        }

    def module(self, job_id: int, place: int) -> str:
        """Name of a module."""
        applications = self.scheduler.plan.applications
        return applications[self.hand[job_id].application].application.modules[place].name

    def _obey(self, decision: Decision) -> None:  # noqa: C901 - a case per decision
        match decision:
            case TaskReady():
                self._ready(decision)
            case Dispatch():
                for request in decision.request_ids:
                    assert request < FIRST_TASK or request in self.tasks, "named before it is known"
                    assert request < FIRST_TASK or self.tasks[request].job_id in self.hand
                self.batches[decision.batch_id] = decision
                for stage, hop in enumerate(decision.hops):
                    if hop.transfer_end_us > hop.transfer_start_us:
                        self._push(hop.transfer_end_us, decision.batch_id, stage, run=False)
                    self._push(hop.end_us, decision.batch_id, stage, run=True)
            case Abort():
                del self.batches[decision.batch_id]
            case SetTimer():
                self.timer_us = decision.at_us
            case Drop():
                self.requests[decision.request_id] = decision
            case ModuleSkipped():
                name = self.module(decision.job_id, decision.module)
                self.hand[decision.job_id].skipped[name] = decision
            case JobDone():
                self._done(decision.job_id)
            case SharedBatch():
                raise AssertionError(decision)
            case JobDropped():
                self.ends[decision.job_id] = decision
                self.finished[decision.job_id] = self.hand.pop(decision.job_id)

    def _ready(self, task: TaskReady) -> None:
        hand = self.hand[task.job_id]
        name = self.module(task.job_id, task.module)
        known = hand.tasks.setdefault(name, [])
        assert task.first_row == sum(before.rows for before in known)
        assert task.rows > 0
        known.append(task)
        self.tasks[task.request_id] = task
        application = self.scheduler.plan.applications[hand.application].application
        for parent in application.module(name).parents:
            assert parent in hand.skipped or hand.ended[parent] == sum(
                before.rows for before in hand.tasks[parent]
            ), "released before a parent has ended"

    def _done(self, job_id: int) -> None:
        hand = self.hand.pop(job_id)
        self.finished[job_id] = hand
        application = self.scheduler.plan.applications[hand.application].application
        for module in application.modules:
            pieces = hand.tasks.get(module.name, [])
            if module.name in hand.skipped:
                assert hand.skipped[module.name].reason is None or module.optional
                continue
            assert sum(piece.rows for piece in pieces) == pieces[0].of_rows
            assert hand.ended[module.name] == pieces[0].of_rows
            most = (module.max_rows or 1) * hand.samples
            if not application.rows_vary(module):
                assert pieces[0].of_rows == round(module.rows_per_request) * hand.samples
            else:
                given = {min(most, hand.given[parent, module.name]) for parent in module.parents}
                assert given == {pieces[0].of_rows}
        self.ends[job_id] = self.now_us
        if self.now_us > hand.deadline_us:
            self.late.append(job_id)

    def _push(self, at_us: int, batch_id: int, stage: int, *, run: bool) -> None:
        heapq.heappush(self._reports, (at_us, self._count, batch_id, stage, run))
        self._count += 1

    def _report(self) -> None:
        at_us, _, batch_id, stage, run = heapq.heappop(self._reports)
        batch = self.batches.get(batch_id)
        if batch is None:  # aborted
            return
        hop = batch.hops[stage]
        start_us = hop.start_us if run else hop.transfer_start_us
        last = run and stage == len(batch.hops) - 1
        now_us = max(at_us, self.now_us)
        if last:
            for request in batch.request_ids:
                self._end(now_us, request)
            del self.batches[batch_id]
        done = StageDone if run else TransferDone
        self.apply(
            done(now_us=now_us, batch_id=batch_id, stage=stage, start_us=start_us, end_us=at_us)
        )

    def _end(self, now_us: int, request: int) -> None:
        if request < FIRST_TASK:
            self.requests[request] = now_us
            return
        task = self.tasks.pop(request)
        if task.job_id not in self.hand:
            return  # dropped meanwhile
        hand = self.hand[task.job_id]
        name = self.module(task.job_id, task.module)
        application = self.scheduler.plan.applications[hand.application].application
        children = [module for module in application.modules if name in module.parents]
        rows = [
            self.rows(task.job_id, name, child.name, task.first_row, task.rows)
            for child in children
        ]
        hand.ended[name] = hand.ended.get(name, 0) + task.rows
        for child, given in zip(children, rows, strict=True):
            key = name, child.name
            hand.given[key] = hand.given.get(key, 0) + given
        if rows != [task.rows] * len(children):
            self.apply(Emitted(now_us=now_us, request_id=request, rows=tuple(rows)))
