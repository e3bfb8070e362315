"""The run itself: every request leaves at its instant, whatever came back so far (open loop).

Here: keeping to the schedule, timing, classifying and checking answers. Not here: the schedule,
the wire, the sums. The clock is the event loop's, which is the host's monotonic clock; the loop
waits with `select`, because `epoll` rounds waits up to whole milliseconds.
"""

import asyncio
import gc
import selectors
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from triton_backend.contract.units import US_PER_S, s_to_us, us_to_s
from triton_backend.serving.loadgen.client import Answer, Client, Status
from triton_backend.serving.loadgen.payload import Arrays, Payload, relative_error, without_dropped
from triton_backend.serving.loadgen.record import RECORD, Checks, LoadRun, RequestOutcome
from triton_backend.serving.loadgen.schedule import Schedule
from triton_backend.serving.transport.sched_tuning import ask_for_exact_timers, ask_for_short_slices

T = TypeVar("T")
LEAD_S = 0.05  # the first instant lies this far ahead, so that the first request is not late
BURST = 16  # requests sent in one go when behind, before answers are looked at again
PROGRESS_S = 1.0
RETRY_S = 0.1  # usual first wait of gRPC's own retries


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoad:
    """Requests of one model and what is asked of their answers.

    Attributes:
        deadline_us: an answer after it is late, where its request has no deadline of its own.
        send_deadline: whether the request carries it as its `timeout`.
        priority: of every request; 2 and above is low.
        client: name that every request says; empty: none.
        tolerance: largest relative error of a right answer.
        optional: by output of an optional module, the output that says whether it was dropped.
        entries: names of the model's entries.
        turns: the order of requests, by number, over and over; none: one after the other.
        asked_as: the name on the wire, where it is another: of a size, that of the whole model; of
            a version, with it (`NAME:2`).
    """

    name: str
    requests: Sequence[Payload]
    deadline_us: int
    send_deadline: bool = False
    priority: int = 0
    client: str = ""
    tolerance: float = 1e-4
    optional: Mapping[str, str] = field(default_factory=dict[str, str])
    entries: tuple[str, ...] = ()
    turns: Sequence[int] = ()
    asked_as: str = ""

    def deadline_of(self, choice: int) -> int:
        """When an answer to one of the requests is late."""
        own = self.requests[choice].deadline_us
        return self.deadline_us if own is None else own


@dataclass(slots=True, kw_only=True)
class Drive:
    """One run in progress.

    Attributes:
        give_up_s: a request is failed when its answer takes this much longer than its deadline.
        retries: a request that fails or is dropped is sent again after `RETRY_S`, so often at most.
        progress: called with (seconds since the start, sent, answered) about once a second.
    """

    client: Client
    schedule: Schedule
    loads: Sequence[ModelLoad]
    duration_us: int
    give_up_s: float = 10.0
    retries: int = 0
    progress: Callable[[float, int, int], None] | None = None
    _messages: Counter[str] = field(default_factory=Counter[str], init=False)
    _checks: dict[str, Checks] = field(default_factory=dict[str, Checks], init=False)
    _answered: int = field(default=0, init=False)
    _sent_again: int = field(default=0, init=False)
    _start_s: float = field(default=0.0, init=False)
    _stop: bool = field(default=False, init=False)
    _sent_us: list[int] = field(default_factory=list[int], init=False)
    _entry: list[int] = field(default_factory=list[int], init=False)
    _done_us: list[int] = field(default_factory=list[int], init=False)
    _outcomes: list[int] = field(default_factory=list[int], init=False)
    _all_sent: asyncio.Future[None] | None = field(default=None, init=False)

    def stop(self) -> None:
        """Send nothing more; `run` returns when what is under way is answered."""
        self._stop = True

    async def run(self) -> LoadRun:
        """Send everything, wait for every answer."""
        loop = asyncio.get_running_loop()
        wire = [self._encode(load) for load in self.loads]
        rows = np.zeros(len(self.schedule), RECORD)
        rows["model"], rows["intended_us"] = self.schedule.model, self.schedule.intended_us
        self._checks = {
            load.name: Checks() for load in self.loads if load.requests[0].expected is not None
        }
        gc.collect()
        gc.freeze()
        self._start_s = loop.time() + LEAD_S
        reporter = asyncio.create_task(self._report(rows))
        try:
            sent = await self._send_all(wire)
        finally:
            reporter.cancel()
            gc.unfreeze()
        rows = rows[:sent]
        rows["sent_us"], rows["done_us"] = self._sent_us, self._done_us[:sent]
        rows["outcome"], rows["entry"] = self._outcomes[:sent], self._entry
        return LoadRun(
            models=self.schedule.models,
            deadline_us=tuple(load.deadline_us for load in self.loads),
            entries={load.name: load.entries for load in self.loads if load.entries},
            records=rows,
            started_monotonic_us=s_to_us(self._start_s),
            duration_us=self.duration_us,
            messages=self._messages,
            checks=self._checks,
            sent_again=self._sent_again,
        )

    def _encode(self, load: ModelLoad) -> list[bytes]:
        return [
            self.client.encode(
                load.asked_as or load.name,
                request.inputs,
                deadline_us=load.deadline_of(choice) if load.send_deadline else None,
                priority=load.priority,
                client=load.client,
            )
            for choice, request in enumerate(load.requests)
        ]

    async def _send_all(self, wire: list[list[bytes]]) -> int:
        """Requests of a model are taken in turn. Returns how many were sent, all answered."""
        loop = asyncio.get_running_loop()
        turns = [load.turns or range(len(load.requests)) for load in self.loads]
        turn = [0] * len(wire)
        sent = 0
        intended_us = self.schedule.intended_us.tolist()
        self._done_us, self._outcomes = [0] * len(intended_us), [0] * len(intended_us)
        for model, at_us in zip(self.schedule.model.tolist(), intended_us, strict=True):
            ahead_s = at_us / US_PER_S + self._start_s - loop.time()
            if ahead_s > 0 or sent % BURST == 0:
                await asyncio.sleep(max(ahead_s, 0))
            if self._stop:
                break
            choice = turns[model][turn[model] % len(turns[model])]
            turn[model] += 1
            self._send(sent, model, choice, wire[model][choice], at_us)
            sent += 1
        self._all_sent = loop.create_future()
        self._end_if_all_answered(sent)
        await self._all_sent
        return sent

    def _send(self, row: int, model: int, choice: int, request: bytes, intended_us: int) -> None:
        load = self.loads[model]
        deadline_us = load.deadline_of(choice)
        give_up_s = us_to_s(deadline_us) + self.give_up_s
        left = self.retries

        def send() -> None:
            self.client.send(request, give_up_s=give_up_s, done=done)

        def done(answer: Answer) -> None:
            nonlocal left
            if answer.status != Status.OK and left > 0:
                left -= 1
                self._sent_again += 1
                asyncio.get_running_loop().call_later(RETRY_S, send)
                return
            done_us = self._now_us()
            self._done_us[row] = done_us
            in_time = done_us - intended_us <= deadline_us
            self._outcomes[row] = self._outcome(load, answer, choice, in_time=in_time)
            self._answered += 1
            self._end_if_all_answered(len(self._sent_us))

        self._sent_us.append(self._now_us())
        self._entry.append(load.requests[choice].entry)
        send()

    def _end_if_all_answered(self, sent: int) -> None:
        end = self._all_sent
        if end is not None and self._answered == sent and not end.done():
            end.set_result(None)

    def _now_us(self) -> int:
        return s_to_us(asyncio.get_running_loop().time() - self._start_s)

    def _outcome(
        self, load: ModelLoad, answer: Answer, choice: int, *, in_time: bool
    ) -> RequestOutcome:
        if answer.status != Status.OK:
            self._messages[answer.message] += 1
            return (
                RequestOutcome.DROPPED if answer.status == Status.REFUSED else RequestOutcome.FAILED
            )
        expected = load.requests[choice].expected
        if expected is not None and not self._right(load, answer, expected):
            return RequestOutcome.FAILED
        return RequestOutcome.SERVED if in_time else RequestOutcome.LATE

    def _right(self, load: ModelLoad, answer: Answer, expected: Arrays) -> bool:
        checks = self._checks[load.name]
        checks.responses += 1
        try:
            got = self.client.decode(answer)
            wanted = without_dropped(expected, got, load.optional)
            error = relative_error(got, wanted)
            checks.without_optional += any(
                len(wanted[name]) < len(expected[name]) for name in wanted
            )
        except ValueError as reason:
            self._messages[f"{load.name}: answer cannot be read: {reason}"] += 1
            error = float("inf")
        if error <= load.tolerance:
            checks.max_relative_error = max(checks.max_relative_error, error)
            return True
        self._messages[f"{load.name}: wrong answer (relative error above {load.tolerance:g})"] += 1
        checks.wrong += 1
        checks.max_relative_error = max(checks.max_relative_error, error)
        return False

    async def _report(self, rows: Any) -> None:
        loop = asyncio.get_running_loop()
        while self.progress is not None:
            await asyncio.sleep(PROGRESS_S)
            sent = int(np.searchsorted(rows["intended_us"], self._now_us()))
            self.progress(loop.time() - self._start_s, sent, self._answered)


def run_precisely(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on an event loop whose waits are precise to some ten microseconds.

    On busy cores too: what this process waits for a processor would count as the server's.
    """
    ask_for_short_slices()
    ask_for_exact_timers()
    with asyncio.Runner(
        loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())
    ) as runner:
        return runner.run(main)
