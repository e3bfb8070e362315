"""The scheduler: told events, answers decisions, performs none of them.

Here: what each event does to the tables, and the names of requests and batches. Not here: how
anything is decided (`policies`), checks of what is told (`told`), rows as decisions (`answers`),
time, threads, messages.

Rules for the shell: events come in the order of their `now_us`; every `Dispatch` is answered by a
`TransferDone` and a `StageDone` per stage as they really happened; of several batches whose inputs
are there and whose reserved starts have come, a worker (or link) takes the one reserved first.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from triton_backend.core import feedback, queues, steps
from triton_backend.core.answers import dispatch_of, drop_of, request_ids
from triton_backend.core.compiled import FAR, NONE
from triton_backend.core.decisions import Abort, Decision, Dispatch, Drop, SetTimer
from triton_backend.core.errors import InputError
from triton_backend.core.events import (
    Arrival,
    Cancel,
    Event,
    PaceChanged,
    Pause,
    PlanChanged,
    Resume,
    StageDone,
    Timer,
    TransferDone,
    WorkerBack,
    WorkerLost,
)
from triton_backend.core.handover import hand_over
from triton_backend.core.invariants import check_invariants
from triton_backend.core.plan import Plan
from triton_backend.core.policies import policy_number
from triton_backend.core.tables import ABORTED, DISPATCHED, MORE, new_tables, with_room
from triton_backend.core.timeline import refresh
from triton_backend.core.told import check_arrival, check_pace, check_report, check_vgpu
from triton_backend.core.topology import build_topology, set_pace


class Scheduler:
    """One scheduler for all models of a plan.

    Args:
        plan: what is served.
        policy: name of the dispatch policy.
        nic: "shared" or "isolated" links, see `topology`.
        count_io: reserve the input's way to the first stage and the answer's way back too.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        policy: str = "reservation",
        nic: str = "shared",
        count_io: bool = False,
    ) -> None:
        self._nic = nic
        self._count_io = count_io
        self._policy = policy_number(policy)
        self._adopt(plan)
        self._requests: dict[int, int] = {}
        self._batches: dict[int, int] = {}
        self._timer_us: int | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            Arrival: self._arrival,
            Cancel: self._cancel,
            StageDone: self._stage_done,
            TransferDone: self._transfer_done,
            WorkerLost: self._worker_lost,
            WorkerBack: self._worker_back,
            PaceChanged: self._pace_changed,
            Timer: self._timer,
            Pause: self._pause,
            Resume: self._resume,
            PlanChanged: self._plan_changed,
        }

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self._plan

    def handle(self, event: Event) -> list[Decision]:
        """Take one event in; returns what is to be done, in order.

        Raises:
            InputError: the event names something unknown or goes back in time; nothing changed.
        """
        handler = self._handlers.get(type(event))
        if handler is None:
            raise InputError("event", f"{type(event).__name__} is not an event")
        now_us = int(self._tables.counts[0]["now_us"])
        if event.now_us < now_us:
            raise InputError("now_us", f"{event.now_us} lies before {now_us}")
        self._decided: list[Decision] = []
        handler(event)
        self._set_timer()
        return self._decided

    def in_flight(self) -> int:
        """Batches dispatched and not yet finished."""
        return len(self._batches)

    def queue_lengths(self) -> tuple[int, ...]:
        """Requests that wait, per model of the plan."""
        return tuple(self._tables.queues["requests"].tolist())

    def check_invariants(self) -> None:
        """Check that the tables do not contradict themselves.

        Raises:
            InvariantError: they do, which is our fault.
        """
        check_invariants(self._tables)

    def _adopt(self, plan: Plan) -> None:
        self._plan = plan
        topology = build_topology(plan, self._nic, count_io=self._count_io)
        self._tables = new_tables(topology, self._policy)
        self._planned_us = topology.latency_us.copy()
        self._room = np.zeros(0, dtype=np.int64)

    def _advance(self, event: Event) -> None:
        self._tables.counts[0]["now_us"] = event.now_us

    def _arrival(self, event: Arrival) -> None:
        check_arrival(self._plan, event)
        if event.request_id in self._requests:
            raise InputError(f"request {event.request_id}", "is queued or in flight already")
        self._advance(event)
        self._make_room()
        self._requests[event.request_id] = steps.arrive(
            self._tables, event.model, event.request_id, event.deadline_us, event.samples
        )
        self._settle(lambda: steps.settle(self._tables, event.model))

    def _cancel(self, event: Cancel) -> None:
        slot = self._requests.get(event.request_id)
        if slot is None:
            raise InputError(f"request {event.request_id}", "is neither queued nor in flight")
        self._advance(event)
        if self._tables.requests[slot]["batch"] != NONE:
            return
        model = int(self._tables.requests[slot]["model"])
        steps.cancel(self._tables, slot)
        self._settle(lambda: steps.settle(self._tables, model))

    def _stage_done(self, event: StageDone) -> None:
        slot = self._batch(event)
        self._advance(event)
        ids = request_ids(self._tables, slot)
        if feedback.stage_done(self._tables, slot, event.stage, event.end_us):
            self._settle(lambda: steps.settle_all(self._tables))
        self._forget(event.batch_id, slot, ids)

    def _transfer_done(self, event: TransferDone) -> None:
        slot = self._batch(event)
        self._advance(event)
        ids = request_ids(self._tables, slot)
        if feedback.transfer_done(self._tables, slot, event.stage, event.end_us):
            self._settle(lambda: steps.settle_all(self._tables))
        self._forget(event.batch_id, slot, ids)

    def _worker_lost(self, event: WorkerLost) -> None:
        check_vgpu(self._tables, event.vgpu)
        self._advance(event)
        while feedback.worker_lost(self._tables, event.vgpu) == MORE:
            self._read()
        self._settle(lambda: steps.settle_all(self._tables))

    def _worker_back(self, event: WorkerBack) -> None:
        check_vgpu(self._tables, event.vgpu)
        self._advance(event)
        feedback.worker_back(self._tables, event.vgpu)
        self._settle(lambda: steps.settle_all(self._tables))

    def _pace_changed(self, event: PaceChanged) -> None:
        check_pace(self._plan, event)
        self._advance(event)
        topology = self._tables.topology
        pipeline = topology.model_pipelines[event.model] + event.pipeline
        first, last = topology.pipeline_stages[pipeline], topology.pipeline_stages[pipeline + 1]
        row = first + event.stage
        set_pace(topology, row, -(-self._planned_us[row] * event.percent // 100))
        for vgpu in range(topology.stage_vgpus[first], topology.stage_vgpus[last]):
            refresh(self._tables, vgpu)
        self._settle(lambda: steps.settle_all(self._tables))

    def _timer(self, event: Timer) -> None:
        self._advance(event)
        self._timer_us = None
        self._settle(lambda: steps.expire(self._tables))

    def _pause(self, event: Pause) -> None:
        self._advance(event)
        self._tables.counts[0]["paused"] = 1
        self._settle(lambda: steps.settle_all(self._tables))

    def _resume(self, event: Resume) -> None:
        self._advance(event)
        self._tables.counts[0]["paused"] = 0
        self._settle(lambda: steps.settle_all(self._tables))

    def _plan_changed(self, event: PlanChanged) -> None:
        if self._batches:
            raise InputError("plan change", f"{len(self._batches)} batches are still in flight")
        self._advance(event)
        numbers = {model.name: m for m, model in enumerate(event.plan.models)}
        models = [numbers.get(model.name) for model in self._plan.models]
        old = self._tables
        self._adopt(event.plan)
        self._tables, left_out = hand_over(old, self._tables, models)
        self._decided += [drop_of(old, slot, reason) for slot, reason in left_out]
        used = np.flatnonzero(self._tables.requests["sequence"] != NONE)
        self._requests = {int(self._tables.requests[slot]["id"]): int(slot) for slot in used}
        self._settle(lambda: steps.settle_all(self._tables))

    def _batch(self, event: StageDone | TransferDone) -> int:
        slot = self._batches.get(event.batch_id)
        if slot is None:
            raise InputError(f"batch {event.batch_id}", "is not in flight")
        check_report(self._tables, slot, event)
        return slot

    def _forget(self, batch_id: int, slot: int, ids: list[int]) -> None:
        """Drop the names of a batch that has ended."""
        if self._tables.batches[slot]["number"] == batch_id:
            return
        del self._batches[batch_id]
        for request_id in ids:
            del self._requests[request_id]

    def _settle(self, decide: Callable[[], int]) -> None:
        """Decide until settled, reading what was decided and making room in between."""
        while decide() == MORE:
            self._read()
            self._make_room()
        self._read()

    def _make_room(self) -> None:
        counts = self._tables.counts[0]
        batches, requests = len(self._tables.batches), len(self._tables.requests)
        more_batches = 2 * batches if counts["free_batch"] == NONE else batches
        more_requests = 2 * requests if counts["free_request"] == NONE else requests
        if (more_batches, more_requests) != (batches, requests):
            self._tables = with_room(self._tables, batches=more_batches, requests=more_requests)

    def _read(self) -> None:
        """Turn the rows of `out` into decisions."""
        tables = self._tables
        rows = tables.out[: int(tables.counts[0]["out"])].tolist()
        tables.counts[0]["out"] = 0
        for kind, slot, reason, finish_us, position in rows:
            if kind == DISPATCHED:
                self._decided.append(self._dispatch(slot))
            elif kind == ABORTED:
                del self._batches[slot]
                self._decided.append(Abort(batch_id=slot))
            else:
                self._decided.append(self._drop(slot, reason, finish_us, position))

    def _dispatch(self, slot: int) -> Dispatch:
        needed = len(self._tables.requests) + steps.HEAD + steps.HOP * self._tables.offers.shape[1]
        if len(self._room) < needed:
            self._room = np.zeros(needed, dtype=np.int64)
        decision = dispatch_of(self._tables, slot, self._room)
        self._batches[decision.batch_id] = slot
        return decision

    def _drop(self, slot: int, reason: int, finish_us: int, position: int) -> Drop:
        decision = drop_of(self._tables, slot, reason, finish_us, position)
        del self._requests[decision.request_id]
        queues.free_request(self._tables, slot)
        return decision

    def _set_timer(self) -> None:
        at_us = steps.next_timer(self._tables)
        if at_us < FAR and at_us != self._timer_us:
            self._timer_us = at_us
            self._decided.append(SetTimer(at_us=at_us))
