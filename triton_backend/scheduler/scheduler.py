"""The scheduler: takes events, answers decisions, performs none of them.

Here: which requests and batches there are, by the names that the shell uses. Not here: checks of
events, what an event does, integers as decisions (`kernel_api`), how anything is decided
(`policies`), time, threads, messages.

Rules for the shell: events come in the order of their `now_us`; every `Dispatch` is answered by a
`TransferDone` and a `StageDone` per stage as they really happened; of several batches whose inputs
are there and whose reserved starts have come, a worker (or link) takes the one reserved first.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from triton_backend.contract.decisions import (
    Abort,
    Decision,
    Dispatch,
    Drop,
    DropReason,
    JobDone,
    JobDropped,
    SetTimer,
    SharedBatch,
)
from triton_backend.contract.errors import InputError, InvariantError
from triton_backend.contract.events import (
    Arrival,
    BatchLost,
    Cancel,
    Emitted,
    Event,
    JobArrival,
    JobCancel,
    LinkPaceChanged,
    PaceChanged,
    Pause,
    PlanChanged,
    Resume,
    SharedBatchDone,
    SharedBatchStarted,
    StageDone,
    Timer,
    TransferDone,
    WorkerBack,
    WorkerLost,
)
from triton_backend.contract.plan import Plan
from triton_backend.contract.transition.workers import inherited_vgpus
from triton_backend.scheduler.checks import (
    check_arrival,
    check_emitted,
    check_job,
    check_link_pace,
    check_pace,
    check_report,
    check_shared_batch,
)
from triton_backend.scheduler.compiled import NONE, Records
from triton_backend.scheduler.handover import check_inherited, first_numbering, hand_over
from triton_backend.scheduler.invariants import check_invariants
from triton_backend.scheduler.kernel_api import (
    ARRIVAL,
    BATCH_LOST,
    CANCEL,
    JOB_ARRIVAL,
    JOB_CANCEL,
    PAUSE,
    REFRESH,
    RESUME,
    SETTLE,
    SHARED_BATCH_DONE,
    STAGE_DONE,
    TIMER,
    TRANSFER_DONE,
    WORKER_BACK,
    WORKER_LOST,
    answer_length,
    correct_pace,
    decode_dispatch,
    decode_drop,
    decode_job_drop,
    decode_shared_batch,
    decode_skip,
    decode_task,
    handle_event,
)
from triton_backend.scheduler.plan_rows import (
    build_topology,
    edge_rows,
    module_rows,
    with_latencies,
)
from triton_backend.scheduler.policies.registry import queue_policies
from triton_backend.scheduler.tables import (
    ABORT,
    BATCH_DONE,
    DISPATCH,
    DROP,
    JOB_DONE,
    MAKE_ROOM,
    MODULE_SKIPPED,
    NEEDS_ROOM,
    SET_TIMER,
    SHARED_BATCH,
    TASK_EMITTED,
    TASK_READY,
    UNFINISHED,
    WORDS,
    Tables,
    addresses,
    fuller,
    new_tables,
    unpack,
)
from triton_backend.scheduler.topology import (
    NO_LEAD,
    PUNCTUAL,
    LateRules,
    Lead,
    LinkPace,
    SharedBatchTimes,
    Topology,
    first_low,
)

_Handler = Callable[[Any], list[Decision]]
_Numbers = tuple[int, int, int, int, int, int]  # arguments of `handle_event` beside the memory


class _Prepared(NamedTuple):
    """The preparation of a plan change, made before its instant."""

    before: Plan
    after: Plan
    topology: Topology
    inherited: tuple[tuple[int, int], ...]


class Counted(NamedTuple):
    """Times by bucket of `TIME_BOUNDS_US` and above: how many, and their sums in µs."""

    counts: list[int]
    sums_us: list[int]


class Times(NamedTuple):
    """Times counted by the kernels.

    Attributes:
        waits: of batches by model, from the first request's arrival to the dispatch.
        modules: of tasks by application and module, from their rows' being there to the end.
    """

    waits: dict[str, Counted]
    modules: dict[tuple[str, str], Counted]


def _taken(rows: Records) -> Counted:
    """The times counted in some rows of tables, which are 0 then."""
    found = Counted(rows["times"].sum(axis=0).tolist(), rows["times_us"].sum(axis=0).tolist())
    rows["times"] = rows["times_us"] = 0
    return found


class Scheduler:
    """One scheduler for all models of a plan.

    Args:
        plan: what is served.
        policy: name of the dispatch policy of all models; None: what the plan says of each.
        nic: "shared" or "isolated" links, see `topology`.
        count_io: reserve the transfers of the input and of the answer too.
        lead: how long before its start a batch of late binding is sent.
        adjust: changes rules of late binding, for ablations.
        shared_batches: whether batches join in stages that board; else each runs there alone.
        shared_batch_times: what shared batches are allowed where messages take time.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        policy: str | None = None,
        nic: str = "shared",
        count_io: bool = False,
        lead: Lead = NO_LEAD,
        adjust: Callable[[LateRules], LateRules] = lambda rules: rules,
        shared_batches: bool = True,
        shared_batch_times: SharedBatchTimes = PUNCTUAL,
    ) -> None:
        self._shared_batches_open = shared_batches
        self._shared_batch_times = shared_batch_times
        self._nic = nic
        self._adjust = adjust
        self._lead = lead
        self._count_io = count_io
        self._policy = policy
        topology = self._adopt(plan)
        self._use(new_tables(topology, lead, (module_rows(plan, topology), edge_rows(plan))))
        self._numbering = first_numbering(plan, topology, nic)
        self._prepared: _Prepared | None = None
        self._orphans: dict[
            int, int
        ] = {}  # model of requests in flight that the plan does not have
        self._now_us = 0
        self._requests: set[int] = set()  # queued or in flight
        self._low: set[int] = set()  # of these, low ones
        self._jobs: dict[int, int] = {}  # in hand, with their slots
        self._batches: dict[int, tuple[int, Dispatch]] = {}  # in flight, with its slot
        self._shared_batches: dict[int, int] = {}  # with their slots
        self._handlers: dict[type, _Handler] = {
            Arrival: self._arrival,
            Cancel: self._cancel,
            JobArrival: self._job_arrival,
            Emitted: self._emitted,
            JobCancel: self._job_cancel,
            StageDone: self._stage_done,
            SharedBatchStarted: self._shared_batch_started,
            SharedBatchDone: self._shared_batch_done,
            TransferDone: self._transfer_done,
            WorkerLost: self._worker_lost,
            WorkerBack: self._worker_back,
            BatchLost: self._batch_lost,
            PaceChanged: self._pace_changed,
            LinkPaceChanged: self._link_pace_changed,
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
        if event.now_us < self._now_us:
            raise InputError("now_us", f"{event.now_us} lies before {self._now_us}")
        return handler(event)

    @property
    def plan_number(self) -> int:
        """Number of the plan in force: 0, and one more with every `PlanChanged`."""
        return self._numbering.number

    def prepare(self, plan: Plan) -> None:
        """Make what a change to a plan needs, which takes longer than the change itself.

        `PlanChanged` to this very object then uses it; what is decided is the same without.
        """
        inherited = inherited_vgpus(self._plan, plan)
        self._prepared = _Prepared(self._plan, plan, self._topology(plan, {}), inherited)

    def set_shared_batch_times(self, times: SharedBatchTimes) -> None:
        """From now on shared batches are allowed this.

        To be said before a change to the plan that it is for.
        """
        self._shared_batch_times = times
        counts = self._tables.counts[0]
        counts["doors_us"], counts["patience_us"] = times

    def in_flight(self) -> int:
        """Batches dispatched and not yet finished."""
        return len(self._batches)

    def has_request(self, request_id: int) -> bool:
        """True if a request is queued or in flight."""
        return request_id in self._requests

    def request_ids(self) -> tuple[int, ...]:
        """Requests queued or in flight, in order of their numbers; not the tasks of jobs."""
        return tuple(sorted(self._requests))

    def late_requests(self, batch_id: int, end_us: int) -> int:
        """Requests of a batch in flight whose deadlines lie before an instant, low ones apart.

        Raises:
            InputError: it is not in flight.
        """
        slot, _ = self._in_flight(batch_id)
        requests = self._tables.requests
        deadlines_us, after, ids = requests["deadline_us"], requests["next"], requests["id"]
        request, late = self._tables.batches["first"].item(slot), 0
        while request != NONE:
            if deadlines_us.item(request) < end_us and ids.item(request) not in self._low:
                late += 1
            request = after.item(request)
        return late

    def usual_requests(self, request_ids: Sequence[int]) -> int:
        """How many of these, queued or in flight, are no low requests."""
        return len(request_ids) - len(self._low.intersection(request_ids) if self._low else ())

    def job_ids(self) -> tuple[int, ...]:
        """Jobs in hand, in order of their numbers."""
        return tuple(sorted(self._jobs))

    def queue_lengths(self) -> tuple[int, ...]:
        """Requests that wait, per model of the plan."""
        waiting = self._tables.queues["requests"].tolist()
        low = first_low(self._tables.topology)
        both = [sum(pair) for pair in zip(waiting[:low], waiting[low:], strict=True)]
        return tuple(sum(both[q.start : q.stop]) for q in self._queues)

    def take_times(self) -> Times:
        """Times counted since the last call, and none of those again; a change of plan loses them.

        By bucket of `TIME_BOUNDS_US`; those of entries of one model together.
        """
        queues, modules = self._tables.queues, unpack(self._tables.job_memory).modules
        waits = {
            model.name: _taken(queues[own.start : own.stop])
            for model, own in zip(self._plan.models, self._queues, strict=True)
        }
        names = [
            (one.name, module.name)
            for one in self._plan.applications
            for module in one.application.modules
        ]
        ran = {name: _taken(modules[row : row + 1]) for row, name in enumerate(names)}
        return Times(waits, ran)

    def check_invariants(self) -> None:
        """Check that the tables do not contradict themselves.

        Raises:
            InvariantError: they do, which is our fault.
        """
        check_invariants(self._tables)

    def _adopt(self, plan: Plan, topology: Topology | None = None) -> Topology:
        """Take a plan as the one in force, at planned paces; returns its arrays."""
        topology = topology or self._topology(plan, {})
        self._plan = plan
        self._link_paces: dict[int, LinkPace] = {}
        self._planned_us = topology.latency_us.copy()
        self._queues = plan.queues()
        return topology

    def _topology(self, plan: Plan, link_paces: dict[int, LinkPace]) -> Topology:
        return build_topology(
            plan,
            self._nic,
            policies=queue_policies(plan, self._policy, self._adjust),
            lead=self._lead,
            count_io=self._count_io,
            link_paces=link_paces,
            shared_batches=self._shared_batches_open,
        )

    def _use(self, tables: Tables) -> None:
        self._tables = tables
        self.set_shared_batch_times(self._shared_batch_times)
        self._memory = np.zeros(WORDS + answer_length(tables), dtype=np.int64)
        self._memory[:WORDS] = addresses(tables)
        self._answer = memoryview(self._memory[WORDS:])  # type: ignore[arg-type]

    def _arrival(self, event: Arrival) -> list[Decision]:
        check_arrival(self._plan, event)
        if event.request_id in self._requests:
            raise InputError(f"request {event.request_id}", "is queued or in flight already")
        self._requests.add(event.request_id)
        if event.low:
            self._low.add(event.request_id)
        return self._take(
            ARRIVAL,
            event.now_us,
            self._queues[event.model][event.entry]
            + (first_low(self._tables.topology) if event.low else 0),
            event.request_id,
            event.deadline_us,
            event.samples,
        )

    def _cancel(self, event: Cancel) -> list[Decision]:
        if event.request_id not in self._requests:
            raise InputError(f"request {event.request_id}", "is neither queued nor in flight")
        return self._take(CANCEL, event.now_us, event.request_id)

    def _job_arrival(self, event: JobArrival) -> list[Decision]:
        check_job(self._plan, event)
        if event.job_id in self._jobs:
            raise InputError(f"job {event.job_id}", "is in hand already")
        modules = unpack(self._tables.job_memory).modules
        (first, *_) = np.flatnonzero(modules["application"] == event.application)
        self._jobs[event.job_id] = int(self._tables.counts[0]["free_job"])
        return self._take(
            JOB_ARRIVAL,
            event.now_us,
            int(first),
            event.job_id,
            event.deadline_us,
            event.samples,
        )

    def _emitted(self, event: Emitted) -> list[Decision]:
        slot = check_emitted(self._tables, event)
        self._now_us = event.now_us
        self._tables.counts[0]["now_us"] = event.now_us
        task = unpack(self._tables.job_memory).tasks[slot]
        task[TASK_EMITTED : TASK_EMITTED + len(event.rows)] = event.rows
        return []

    def _job_cancel(self, event: JobCancel) -> list[Decision]:
        slot = self._jobs.get(event.job_id)
        if slot is None:
            raise InputError(f"job {event.job_id}", "is not in hand")
        return [
            replace(decision, reason=event.reason)
            if isinstance(decision, JobDropped) and decision.job_id == event.job_id
            else decision
            for decision in self._take(JOB_CANCEL, event.now_us, slot)
        ]

    def _stage_done(self, event: StageDone) -> list[Decision]:
        slot, dispatch = self._in_flight(event.batch_id)
        check_report(event, len(dispatch.hops))
        return self._take(STAGE_DONE, event.now_us, slot, event.stage, event.end_us)

    def _shared_batch_started(self, event: SharedBatchStarted) -> list[Decision]:
        slot = self._shared_batches.get(event.shared_batch_id)
        if slot is None:
            raise InputError(f"shared batch {event.shared_batch_id}", "is not in flight")
        self._now_us = event.now_us
        self._tables.counts[0]["now_us"] = event.now_us
        self._tables.batches[slot]["pool"] = NONE  # a shared batch of no pool is boarded by none
        return []

    def _shared_batch_done(self, event: SharedBatchDone) -> list[Decision]:
        slot = self._shared_batches.get(event.shared_batch_id)
        if slot is None:
            raise InputError(f"shared batch {event.shared_batch_id}", "is not in flight")
        check_shared_batch(event)
        del self._shared_batches[event.shared_batch_id]
        return self._take(SHARED_BATCH_DONE, event.now_us, slot, event.end_us)

    def _transfer_done(self, event: TransferDone) -> list[Decision]:
        slot, dispatch = self._in_flight(event.batch_id)
        check_report(event, len(dispatch.hops) + 1)
        return self._take(TRANSFER_DONE, event.now_us, slot, event.stage, event.end_us)

    def _worker_lost(self, event: WorkerLost) -> list[Decision]:
        resource = self._numbering.resource_of(event.vgpu, event.plan)
        return [] if resource is None else self._take(WORKER_LOST, event.now_us, resource)

    def _worker_back(self, event: WorkerBack) -> list[Decision]:
        resource = self._numbering.resource_of(event.vgpu, event.plan)
        if resource is None:
            return []
        return self._take(WORKER_BACK, event.now_us, resource, event.idle_us)

    def _batch_lost(self, event: BatchLost) -> list[Decision]:
        slot = self._shared_batches.get(event.batch_id)
        if slot is None:
            slot, _ = self._in_flight(event.batch_id)
        return self._take(BATCH_LOST, event.now_us, slot)

    def _pace_changed(self, event: PaceChanged) -> list[Decision]:
        check_pace(self._plan, event)
        self._tables.counts[0]["now_us"] = event.now_us
        stage = event.model, event.pipeline, event.stage
        correct_pace(self._tables, self._planned_us, stage, event.percent, self._lead)
        return self._take(SETTLE, event.now_us)

    def _link_pace_changed(self, event: LinkPaceChanged) -> list[Decision]:
        check_link_pace(self._plan, event)
        self._link_paces[event.node] = LinkPace(event.uplink_percent, event.downlink_percent)
        made = self._topology(self._plan, self._link_paces)
        topology = with_latencies(made, self._tables.topology, self._lead)
        self._use(self._tables._replace(topology=topology))
        return self._take(REFRESH, event.now_us)

    def _timer(self, event: Timer) -> list[Decision]:
        return self._take(TIMER, event.now_us)

    def _pause(self, event: Pause) -> list[Decision]:
        return self._take(PAUSE, event.now_us)

    def _resume(self, event: Resume) -> list[Decision]:
        return self._take(RESUME, event.now_us)

    def _plan_changed(self, event: PlanChanged) -> list[Decision]:
        old, before = self._tables, self._numbering
        plan, lost = event.plan, list(event.lost)
        vgpus = sum(pool.vgpus for pool in plan.pools)
        for vgpu in lost:
            if not 0 <= vgpu < vgpus:
                raise InputError("plan change, lost", f"no vGPU {vgpu}, the plan has {vgpus}")
        topology, inherited = self._made_for(event)
        done = hand_over(old, before, (plan, topology), inherited, self._nic)
        self._adopt(plan, topology)
        self._use(done.tables)
        self._numbering, self._prepared = done.numbering, None
        self._tables.resources["lost"][lost] = 1
        gone = [self._job_left_out(old, slot, reason) for slot, reason in done.jobs_left_out]
        drops = [
            self._marked(
                Drop(
                    request_id=int(old.requests[slot]["id"]),
                    model=int(old.topology.queues[old.requests[slot]["queue"]]["model"]),
                    reason=reason,
                    deadline_us=int(old.requests[slot]["deadline_us"]),
                )
            )
            for slot, reason in done.left_out
        ]
        self._requests.difference_update(drop.request_id for drop in drops)
        self._orphans |= _orphans(old, done.tables)
        # Where nothing goes on, no index needs reservations or losses.
        decide = REFRESH if self._batches or lost else SETTLE
        return [*gone, *drops, *self._take(decide, event.now_us)]

    def _job_left_out(self, old: Tables, slot: int, reason: DropReason) -> JobDropped:
        job = unpack(old.job_memory).jobs[slot]
        job_id, deadline_us = int(job["id"]), int(job["deadline_us"])
        del self._jobs[job_id]
        return JobDropped(job_id=job_id, reason=reason, deadline_us=deadline_us)

    def _made_for(self, event: PlanChanged) -> tuple[Topology, Sequence[tuple[int, int]]]:
        """Arrays of a new plan, and the vGPUs that go on."""
        made, plan = self._prepared, event.plan
        if made is not None and made.before is self._plan and made.after is plan:
            topology, inherited = made.topology, made.inherited
        else:
            topology = self._topology(plan, {})
            inherited = ()
            if event.inherited is None and self._batches:
                inherited = inherited_vgpus(self._plan, plan)
        if event.inherited is None:
            return topology, inherited
        check_inherited(self._plan, plan, event.inherited)
        return topology, event.inherited

    def _in_flight(self, batch_id: int) -> tuple[int, Dispatch]:
        """Slot and dispatch of a batch."""
        known = self._batches.get(batch_id)
        if known is None:
            raise InputError(f"batch {batch_id}", "is not in flight")
        return known

    def _take(
        self, event: int, now_us: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0
    ) -> list[Decision]:
        """Hand a checked event to the kernels; its numbers are listed in `kernel_api`.

        Raises:
            InvariantError: the answer is longer than the room for it.
        """
        self._now_us = now_us
        length = handle_event(self._memory, event, now_us, a, b, c, d)
        if not length:
            return []
        if length > len(self._answer):
            reason = f"event {event} answered {length} integers into {len(self._answer)}"
            raise InvariantError(reason)
        return self._read(self._answer[:length].tolist(), (event, now_us, a, b, c, d))

    def _read(self, answer: list[int], event: _Numbers) -> list[Decision]:
        """Decode the answer to an event and keep account of requests and batches.

        Returns its decisions.
        """
        decided: list[Decision] = []
        at = 0
        while at < len(answer):
            kind, end, number = answer[at : at + 3]
            if kind == DISPATCH:
                dispatch = decode_dispatch(answer, at, end)
                self._batches[number] = answer[at + 3], dispatch
                decided.append(dispatch)
            elif kind == BATCH_DONE:
                self._forget(self._batches.pop(number)[1].request_ids)
            elif kind == SET_TIMER:
                decided.append(SetTimer(at_us=number))
            elif kind == SHARED_BATCH:
                decided.append(self._of_shared_batch(answer, at))
            elif kind == DROP:
                self._requests.discard(number)
                drop = self._marked(decode_drop(answer, at))
                if drop.model == NONE:
                    drop = replace(drop, model=self._orphans.pop(number))
                decided.append(drop)
            elif kind == ABORT:
                del self._batches[number]
                decided.append(Abort(batch_id=number))
            elif kind == MAKE_ROOM:  # always the last item
                decided += self._go_on(number, event)
            else:
                decided.append(self._of_job(kind, answer, at))
            at = end
        return decided

    def _go_on(self, status: int, event: _Numbers) -> list[Decision]:
        """Hand in what ended more than its answer holds again; make room where slots are short."""
        if status == UNFINISHED:
            return self._take(*event)
        self._use(fuller(self._tables))
        return self._take(SETTLE, self._now_us) if status == NEEDS_ROOM else []

    def _forget(self, ids: tuple[int, ...]) -> None:
        self._requests.difference_update(ids)
        if self._low:
            self._low.difference_update(ids)
        if self._orphans:
            self._orphans = {k: v for k, v in self._orphans.items() if k not in ids}

    def _marked(self, drop: Drop) -> Drop:
        """The drop of a request that is forgotten, and whether it was a low one."""
        if drop.request_id not in self._low:
            return drop
        self._low.remove(drop.request_id)
        return replace(drop, low=1)

    def _of_shared_batch(self, answer: list[int], at: int) -> SharedBatch:
        shared_batch = decode_shared_batch(answer, at, answer[at + 1])
        self._shared_batches[shared_batch.shared_batch_id] = answer[at + 3]
        if not shared_batch.members:
            del self._shared_batches[shared_batch.shared_batch_id]
        return shared_batch

    def _of_job(self, kind: int, answer: list[int], at: int) -> Decision:
        if kind == TASK_READY:
            return decode_task(answer, at)
        if kind == MODULE_SKIPPED:
            return decode_skip(answer, at)
        job_id = answer[at + 2]
        del self._jobs[job_id]
        return JobDone(job_id=job_id) if kind == JOB_DONE else decode_job_drop(answer, at)


def _orphans(old: Tables, new: Tables) -> dict[int, int]:
    """Requests in flight whose model has just gone, and the number it had."""
    rows = new.requests
    here = (rows["sequence"] != NONE) & (rows["batch"] != NONE) & (rows["job"] == NONE)
    gone = new.topology.queues["model"] == NONE
    slots = np.flatnonzero(here & gone[np.where(here, rows["queue"], 0)])
    models = old.topology.queues["model"][old.requests["queue"][slots]].tolist()
    ids = rows["id"][slots].tolist()
    return {number: model for number, model in zip(ids, models, strict=True) if model != NONE}
