"""One compiled call per event: events become integers, integers become decisions.

    Arrival(...) --check_arrival--> handle_event(memory, ARRIVAL, now_us, a, b, c, d)
                              1. the event enters the tables       (the steps below, `feedback`)
                              2. queues are settled                (`policies`)
                              3. decisions are written as integers
    [Dispatch(...), Drop(...)] <--decode_dispatch, decode_drop-- answer

At 500 requests/s nothing of the scheduler is left in the CPU's caches by the next event, so an
event costs what it touches: one array (the addresses of all others, then room for the answer) and
six integers go in, one length comes back. The simulator is compiled code itself and calls the same
steps without the answer.

Here: numbers of events, what each does, and the layout of the answer.
Not here: checks of what a shell says (`checks`), how anything is decided (`policies`), requests and
batches by name (`scheduler`).
"""

import numpy as np

from triton_backend.contract.decisions import (
    Dispatch,
    Drop,
    DropReason,
    Hop,
    JobDropped,
    Member,
    ModuleSkipped,
    SharedBatch,
    TaskReady,
)
from triton_backend.contract.plan import StagePlace
from triton_backend.scheduler.compiled import FAR, NONE, Integers, entry, inlined, kernel
from triton_backend.scheduler.feedback import (
    leave_behind,
    lose,
    shared_batch_done,
    stage_done,
    transfer_done,
    worker_back,
    worker_lost,
)
from triton_backend.scheduler.jobs import cancel_job, new_job, release
from triton_backend.scheduler.plan_rows import set_pace
from triton_backend.scheduler.policies.late import (
    MEASURED,
    measure_rate,
    next_late_timer,
    settle_due_late,
    settle_freed,
    settle_late,
    settle_queue,
    settle_touched,
)
from triton_backend.scheduler.policies.low import SENT, send_low
from triton_backend.scheduler.policies.registry import decide
from triton_backend.scheduler.queues import (
    drop,
    enqueue,
    free_batch,
    free_request,
    measure_gap,
    new_request,
)
from triton_backend.scheduler.reservations.shared_batches import batch_of, shared_batch_timer
from triton_backend.scheduler.reservations.timeline import refresh
from triton_backend.scheduler.tables import (
    ABORT,
    BATCH_DONE,
    CANCELLED,
    DISPATCH,
    DROP,
    JOB_DONE,
    JOB_DROPPED,
    KINDS,
    MAKE_ROOM,
    MODULE_SKIPPED,
    NEEDS_ROOM,
    OUT_ROWS,
    SET_TIMER,
    SETTLED,
    SHARED_BATCH,
    TASK_LIMIT,
    TASK_MODULE,
    TASK_READY,
    TOO_LARGE,
    UNFINISHED,
    VGPU,
    WORDS,
    Tables,
    add_decision,
    interval_of,
    jobs_of,
    lacks_slots,
    tables_at,
)
from triton_backend.scheduler.topology import LOW, Lead, first_low, vgpus_of

# Events by the names of their classes, and what their numbers a .. d are.
SETTLE = 0  # no event: decide for all queues, after a change of pace or plan, or `MAKE_ROOM`
ARRIVAL = 1  # queue, request id, deadline, samples
CANCEL = 2  # request id
STAGE_DONE = 3  # batch slot, stage, end
TRANSFER_DONE = 4  # batch slot, stage, end
WORKER_LOST = 5  # vGPU
WORKER_BACK = 6  # vGPU, when it is idle
BATCH_LOST = 7  # batch slot
TIMER = 8
PAUSE = 9
RESUME = 10
REFRESH = 11  # no event: `SETTLE` where vGPUs were lost or reserved without the kernels
JOB_ARRIVAL = 12  # first module, job id, deadline, samples
JOB_CANCEL = 13  # job slot
SHARED_BATCH_DONE = 14  # batch slot of the shared batch, end

# Which queues to settle: one by its number, none of them (NONE), or
ALL = -2
DUE = -3  # those whose timer has come
FREED = -4  # all: something ended off its plan

# The answer is a row of items. An item begins with its kind and with where the next one begins:
#
#   +0           +1   +2      +3     +4           +5        +6         +7          HEAD
#   DISPATCH     end  number  slot   model        pipeline  samples    requests    ids, hops
#   DROP         end  id      model  deadline_us  reason    finish_us  position
#   ABORT        end  number
#   TASK_READY   end  id      job    module       first_row rows       of_rows
#   MODULE_SKIPPED    end  job  module  reason or NONE  finish_us  position
#   JOB_DONE     end  job
#   JOB_DROPPED  end  job     module or NONE  deadline_us  reason  finish_us  position
#   BATCH_DONE   end  number
#   SHARED_BATCH end  number slot   start_us     end_us    capacity              members
#   SET_TIMER    end  at_us
#   MAKE_ROOM    end  status                        NEEDS_ROOM: and `SETTLE` again afterwards
#                                                   UNFINISHED: no room, the same event again
#
# `ids` are as many as `requests`; then HOP integers for each stage of the path:
#
#   vGPU   transfer_start_us   transfer_end_us   start_us   end_us
#
# and MEMBER integers for each member of a shared batch; a shared batch that is over has none:
#
#   batch number   stage   first row   rows
HEAD = 8
HOP = 5
MEMBER = 4


def answer_length(tables: Tables) -> int:
    """Integers that the longest answer takes: what all rows of `Tables.out` say, once.

    A row says most of a dispatch, whose ids are counted apart, or of a shared batch with a member
    in every place.
    """
    topology = tables.topology
    capacity = int(
        max(topology.stages["capacity"].max(initial=0), tables.batches["capacity"].max(initial=0))
    )
    dispatch = HEAD + max(HOP * tables.offers.shape[1], MEMBER * capacity)
    return OUT_ROWS * dispatch + len(tables.requests) + 3 * len(tables.batches) + 4 * HEAD


@entry
def handle_event(memory: Integers, event: int, now_us: int, a: int, b: int, c: int, d: int) -> int:  # noqa: C901, PLR0912 - a branch per event; numbers are handed over at less cost one by one
    """Take one event in, decide, and write the answer; returns how many integers it has.

    Args:
        memory: `WORDS` integers that say where the tables are (`tables.addresses`), then room for
            the answer, `answer_length` integers.
        event: one of the events above.
        now_us: the instant of its delivery; never goes back.
        a: the event's own numbers, as listed above; so
        b: are the others,
        c: 0 where
        d: it has fewer.
    """
    tables = tables_at(memory)
    answer = memory[WORDS:]
    counts = tables.counts[0]
    counts["now_us"] = now_us
    length = 0
    queues = ALL
    lost = SETTLED
    if event == ARRIVAL:
        queues = tables.requests[arrive(tables, a, b, c, d)]["queue"]
    elif event in (STAGE_DONE, TRANSFER_DONE):
        number = tables.batches[a]["number"]
        if event == STAGE_DONE:
            deviates = stage_done(tables, a, b, c)
        else:
            deviates = transfer_done(tables, a, b, c)
        # A run that ends as reserved frees nothing new for the queues.
        queues = FREED if deviates else NONE
        if tables.batches[a]["number"] == NONE and not _was_aborted(tables, number):
            length = _item(answer, length, BATCH_DONE, number)
    elif event == SHARED_BATCH_DONE:
        queues = FREED if shared_batch_done(tables, a, b) else NONE
    elif event == TIMER:
        counts["armed_timer_us"] = FAR
        queues = DUE
    elif event == CANCEL:
        queues = _cancel(tables, a)
    elif event == WORKER_LOST:
        lost = worker_lost(tables, a)
    elif event == WORKER_BACK:
        worker_back(tables, a, b)
    elif event == BATCH_LOST:
        lost = lose(tables, a)
    elif event == REFRESH:
        lost = _refresh_all(tables)
    elif event == JOB_ARRIVAL:
        new_job(tables, b, a, c, d)
        queues = NONE
    elif event == JOB_CANCEL:
        cancel_job(tables, a)
        queues = NONE
    elif event == PAUSE:
        counts["paused"] = 1
    elif event == RESUME:
        counts["paused"] = 0
    if lost == NEEDS_ROOM:
        length = _write_decisions(tables, answer, length)
        return _item(answer, length, MAKE_ROOM, UNFINISHED)
    status = _settle_some(tables, queues)
    if status == SETTLED and counts["unsettled"] > 0:
        status = settle_jobs(tables)
    length = _write_decisions(tables, answer, length)
    return _write_end(tables, answer, length, status)


# The steps. Each changes the tables and leaves what was decided in `Tables.out`; those that decide
# answer NEEDS_ROOM when they ran out of batch slots or rows: empty `out`, make room, settle again.


@kernel
def settle_one(tables: Tables, queue: int) -> int:
    """Decide for one queue; `SETTLED` or `NEEDS_ROOM`."""
    late = tables.topology.queues[queue]["late"]
    if late == 1:
        return settle_queue(tables, queue)
    return _settle_low(tables, queue) if late == LOW else _settle_one_early(tables, queue)


@inlined
def _settle_one_early(tables: Tables, queue: int) -> int:
    plan = tables.topology.queues[queue]
    if tables.counts[0]["paused"] == 1 and plan["model"] != NONE:
        tables.queues[queue]["timer_us"] = FAR
        return SETTLED
    return decide(tables, queue, plan["policy"])


@kernel
def _settle_low(tables: Tables, queue: int) -> int:
    """Decide for a queue of low requests.

    Others that wait decide again, because a batch was sent beside them.
    """
    status = SENT
    while status == SENT:
        status = send_low(tables, queue)
        if status == SENT:
            for other in range(_early_queues(tables)):
                waits = tables.queues[other]["first"] != NONE
                early = tables.topology.queues[other]["late"] == 0
                if waits and early and _settle_one_early(tables, other) == NEEDS_ROOM:
                    return NEEDS_ROOM
    return status


@kernel
def _settle_all_low(tables: Tables, due_us: int) -> int:
    """Decide for the queues of low requests whose timer comes by an instant."""
    if tables.counts[0]["low"] == 1:
        for queue in range(first_low(tables.topology), len(tables.queues)):
            waits = tables.queues[queue]["first"] != NONE
            due = waits and tables.queues[queue]["timer_us"] <= due_us
            if due and _settle_low(tables, queue) == NEEDS_ROOM:
                return NEEDS_ROOM
    return SETTLED


@kernel
def settle_jobs(tables: Tables) -> int:
    """Release modules that can run and decide for touched queues until neither is left."""
    counts = tables.counts[0]
    active = True  # a pass that finds neither ends it, whatever is counted
    while active and counts["unsettled"] > 0:
        active = counts["first_listed"] != NONE
        if active and release(tables) == NEEDS_ROOM:
            return NEEDS_ROOM
        for queue in range(_early_queues(tables)):
            if tables.queues[queue]["touched"] == 1 and tables.topology.queues[queue]["late"] == 0:
                active = True
                tables.queues[queue]["touched"] = 0
                counts["unsettled"] -= 1
                if settle_one(tables, queue) == NEEDS_ROOM:
                    return NEEDS_ROOM
        late = counts["touched_late"]
        if late > 0 and settle_touched(tables) == NEEDS_ROOM:
            return NEEDS_ROOM
        active = active or counts["touched_late"] < late
    return SETTLED


@kernel
def settle_all(tables: Tables) -> int:
    """Decide for every queue, in their order, those of late binding after others, low ones last."""
    if _settle_early(tables) == NEEDS_ROOM or settle_late(tables) == NEEDS_ROOM:
        return NEEDS_ROOM
    return _settle_all_low(tables, FAR)


@kernel
def settle_after_deviation(tables: Tables) -> int:
    """Decide after something ended off its plan: queues are as they were, reservations are not."""
    if _settle_early(tables) == NEEDS_ROOM or settle_freed(tables) == NEEDS_ROOM:
        return NEEDS_ROOM
    return _settle_all_low(tables, FAR)


@kernel
def _settle_early(tables: Tables) -> int:
    for queue in range(_early_queues(tables)):
        if tables.topology.queues[queue]["late"] == 0 and settle_one(tables, queue) == NEEDS_ROOM:
            return NEEDS_ROOM
    return SETTLED


@kernel
def settle_due(tables: Tables) -> int:
    """A timer fired: decide for the queues whose time has come, which wait no longer."""
    now = tables.counts[0]["now_us"]
    left = False
    if tables.counts[0]["first_shared_batch"] != NONE:
        left = leave_behind(tables)
    for number in range(_early_queues(tables)):
        queue = tables.queues[number]
        if queue["timer_us"] <= now:
            if queue["until_us"] <= now:
                queue["expired"] = tables.requests[queue["first"]]["sequence"]
            if settle_one(tables, number) == NEEDS_ROOM:
                return NEEDS_ROOM
    if left:
        return settle_after_deviation(tables)
    if settle_due_late(tables) == NEEDS_ROOM:
        return NEEDS_ROOM
    return _settle_all_low(tables, now)


@inlined
def next_timer(tables: Tables) -> int:
    """Earliest timer of all queues, FAR where none is set."""
    earliest = next_late_timer(tables)
    for queue in range(_early_queues(tables)):
        earliest = min(earliest, tables.queues[queue]["timer_us"])
    if tables.counts[0]["low"] == 1:
        for queue in range(first_low(tables.topology), len(tables.queues)):
            earliest = min(earliest, tables.queues[queue]["timer_us"])
    if tables.counts[0]["first_shared_batch"] != NONE:
        earliest = min(earliest, shared_batch_timer(tables))
    return earliest


@inlined
def _early_queues(tables: Tables) -> int:
    """Queues to look through for those of early binding: all, or none where there are none.

    Hundreds of models that are bound late would otherwise be looked through at every event.
    """
    return first_low(tables.topology) if tables.counts[0]["early"] > 0 else 0


@inlined
def _was_aborted(tables: Tables, number: int) -> bool:
    """True if this decision aborts a batch; one that failed may end in a shared batch, too."""
    for row in range(tables.counts[0]["out"]):
        if tables.out[row, 0] == ABORT and tables.out[row, 1] == number:
            return True
    return False


@inlined
def arrive(tables: Tables, queue: int, request_id: int, deadline_us: int, samples: int) -> int:
    """A request came; a request slot must be free. Returns its slot; decides nothing yet.

    A low one comes to the queue of low requests (`topology.first_low`). Where batches board shared
    ones it joins the others.
    """
    counts = tables.counts[0]
    if tables.topology.queues[queue]["late"] == LOW:
        counts["low"] = 1
        if counts["boards"] > 0:
            queue -= first_low(tables.topology)
    slot = new_request(tables, queue, request_id, deadline_us, samples)
    enqueue(tables, slot)
    if samples > tables.topology.queues[queue]["largest"]:
        drop(tables, slot, TOO_LARGE, FAR)
    elif tables.topology.queues[queue]["target"] == MEASURED:
        measure_rate(tables, queue, samples)
    else:
        measure_gap(tables, queue, samples)
    return slot


@inlined
def _cancel(tables: Tables, request_id: int) -> int:
    """Drop a request (queued or in flight) if it is queued; returns which queues to settle.

    Its slot is searched for: cancels are rare, and an index would cost every request.
    """
    requests = tables.requests
    slot = 0
    while requests[slot]["id"] != request_id or requests[slot]["sequence"] == NONE:
        slot += 1
    queue = requests[slot]["queue"]
    if requests[slot]["batch"] != NONE:
        if tables.counts[0]["first_shared_batch"] == NONE or not _give_rows_back(tables, slot):
            return NONE
        queue = FREED
    drop(tables, slot, CANCELLED, FAR)
    return queue


@kernel
def _give_rows_back(tables: Tables, request: int) -> bool:
    """Take a request out of its batch into its queue, where that frees a place and stops no run.

    It is alone in its batch, nothing of which runs or should run already, and one of its shared
    batches has not left.
    """
    slot = tables.requests[request]["batch"]
    batch, now = tables.batches[slot], tables.counts[0]["now_us"]
    if batch["requests"] > 1 or tables.requests[request]["job"] != NONE:
        return False
    sits = False
    for hop in range(batch["stages"]):
        i = interval_of(tables, slot, hop, VGPU)
        if tables.intervals[i]["shared_batch"] != NONE:
            sits = True
            i = interval_of(tables, tables.intervals[i]["shared_batch"], 0, VGPU)
        if tables.intervals[i]["resource"] != NONE and tables.intervals[i]["start_us"] <= now:
            return False
    if sits:
        add_decision(tables, ABORT, batch["number"], slot, FAR, 0)
        enqueue(tables, request)
        free_batch(tables, slot)
    return sits


@kernel
def _refresh_all(tables: Tables) -> int:
    """Index every vGPU again and abort what needs one that is lost; as `worker_lost` returns."""
    for vgpu in range(len(tables.topology.vgpus)):
        refresh(tables, vgpu)
    for vgpu in range(len(tables.topology.vgpus)):
        if tables.resources[vgpu]["lost"] == 1 and worker_lost(tables, vgpu) == NEEDS_ROOM:
            return NEEDS_ROOM
    return SETTLED


@inlined
def _settle_some(tables: Tables, queues: int) -> int:
    """Decide for one queue, `ALL`, all after a deviation (`FREED`), those `DUE`, or none."""
    if queues == ALL:
        return settle_all(tables)
    if queues == FREED:
        return settle_after_deviation(tables)
    if queues == DUE:
        return settle_due(tables)
    return SETTLED if queues == NONE else settle_one(tables, queues)


def correct_pace(
    tables: Tables, planned_us: Integers, stage: StagePlace, percent: int, lead: Lead
) -> None:
    """A stage is planned with so many percent of its planned latency from now on.

    What was decided stays; the caller has queues settled again. `planned_us` is [stage row, n].
    """
    topology, (model, number, place) = tables.topology, stage
    queues = topology.queues[topology.pipelines["queue"]]["model"]
    (row,) = np.flatnonzero((queues == model) & (topology.pipelines["number"] == number))
    pipeline = topology.pipelines[row]
    first, stages = int(pipeline["first_stage"]), int(pipeline["stages"])
    paced_us = -(-planned_us[first + place] * percent // 100)
    set_pace(topology, first + place, paced_us, lead)
    for pool in set(topology.stages["pool"][first : first + stages].tolist()):
        for vgpu in vgpus_of(topology, pool):
            refresh(tables, vgpu)


# The answer: rows of `Tables.out` as items, see its layout above.


@kernel
def _write_decisions(tables: Tables, answer: Integers, at: int) -> int:
    """Write what was decided and empty `out`; returns where the next item begins."""
    for row in range(tables.counts[0]["out"]):
        kind, slot = tables.out[row, 0], tables.out[row, 1]
        if kind == DISPATCH:
            at = _write_dispatch(tables, answer, at, slot)
        elif kind in (ABORT, JOB_DONE, BATCH_DONE):
            at = _item(answer, at, kind, slot)
        elif kind == SHARED_BATCH:
            at = _write_shared_batch(tables, answer, at, row)
        elif kind != DROP:
            at = _write_job_item(tables, answer, at, row)
        elif tables.requests[slot]["job"] != NONE:
            at = _write_task_drop(tables, answer, at, row)
            free_request(tables, slot)
        else:
            request = tables.requests[slot]
            answer[at] = DROP
            answer[at + 1] = at + HEAD
            answer[at + 2] = request["id"]
            answer[at + 3] = tables.topology.queues[request["queue"]]["model"]
            answer[at + 4] = request["deadline_us"]
            for k in range(3):  # reason, finish, position
                answer[at + 5 + k] = tables.out[row, 2 + k]
            free_request(tables, slot)
            at += HEAD
    tables.counts[0]["out"] = 0
    return at


@kernel
def _write_job_item(tables: Tables, answer: Integers, at: int, row: int) -> int:
    """Write one of `TASK_READY`, `MODULE_SKIPPED` and `JOB_DROPPED`.

    Returns where the next begins.
    """
    known = jobs_of(tables)
    out = tables.out[row]
    width = known.parts.shape[1]
    kind = out[0]
    if kind == TASK_READY:
        slot, place = out[2] // width, out[2] % width
        _fill(answer, at, kind, out[1], known.jobs[slot]["id"])
        answer[at + 4] = place
        answer[at + 5] = out[3]
        answer[at + 6] = out[4]
        answer[at + 7] = known.parts[slot, place]["rows"]
    elif kind == MODULE_SKIPPED:
        _fill(answer, at, kind, known.jobs[out[1] // width]["id"], out[1] % width)
        answer[at + 4] = out[2]
        answer[at + 5] = out[3]
        answer[at + 6] = out[4]
    else:
        _fill(answer, at, kind, known.jobs[out[1]]["id"], NONE)
        answer[at + 4] = known.jobs[out[1]]["deadline_us"]
        for k in range(3):  # reason, finish, position
            answer[at + 5 + k] = out[2 + k]
    return at + HEAD


@kernel
def _write_task_drop(tables: Tables, answer: Integers, at: int, row: int) -> int:
    """Write what the drop of a task means for its job; returns where the next item begins."""
    known = jobs_of(tables)
    request = tables.out[row, 1]
    job = known.jobs[tables.requests[request]["job"]]
    place = known.tasks[request, TASK_MODULE]
    k = at + 4
    if known.modules[job["first_module"] + place]["optional"] == 1:
        _fill(answer, at, MODULE_SKIPPED, job["id"], place)
    else:
        _fill(answer, at, JOB_DROPPED, job["id"], place)
        answer[k] = known.tasks[request, TASK_LIMIT]
        k += 1
    for column in range(2, 5):  # reason, finish, position
        answer[k] = tables.out[row, column]
        k += 1
    return at + HEAD


@inlined
def _fill(answer: Integers, at: int, kind: int, one: int, other: int) -> None:
    """The first numbers of an item that is `HEAD` long."""
    answer[at] = kind
    answer[at + 1] = at + HEAD
    answer[at + 2] = one
    answer[at + 3] = other


@inlined
def _write_dispatch(tables: Tables, answer: Integers, at: int, batch: int) -> int:
    """Write a batch just dispatched; returns where the next item begins."""
    topology = tables.topology
    row = tables.batches[batch]
    pipeline = row["pipeline"]
    first = at
    answer[at] = DISPATCH
    answer[at + 2] = row["number"]
    answer[at + 3] = batch
    answer[at + 4] = topology.queues[topology.pipelines[pipeline]["queue"]]["model"]
    answer[at + 5] = topology.pipelines[pipeline]["number"]
    answer[at + 6] = row["samples"]
    answer[at + 7] = row["requests"]
    at += HEAD
    request = row["first"]
    while request != NONE:
        answer[at] = tables.requests[request]["id"]
        request = tables.requests[request]["next"]
        at += 1
    before = row["dispatch_us"]
    for hop in range(topology.pipelines[pipeline]["stages"]):
        i = interval_of(tables, batch, hop, VGPU)
        move = i + 2  # the downlink is reserved whenever anything is moved
        if tables.intervals[i]["shared_batch"] != NONE:
            i = interval_of(tables, tables.intervals[i]["shared_batch"], 0, VGPU)
        moves = tables.intervals[move]["resource"] != NONE
        answer[at] = tables.paths[batch, hop]
        answer[at + 1] = tables.intervals[move]["start_us"] if moves else before
        answer[at + 2] = tables.intervals[move]["end_us"] if moves else before
        answer[at + 3] = tables.intervals[i]["start_us"]
        answer[at + 4] = tables.intervals[i]["end_us"]
        before = tables.intervals[i]["end_us"]
        at += HOP
    answer[first + 1] = at
    return at


@kernel
def _write_shared_batch(tables: Tables, answer: Integers, at: int, row: int) -> int:
    """Write how a shared batch is now; returns where the next item begins."""
    slot, number = tables.out[row, 1], tables.out[row, 2]
    _fill(answer, at, SHARED_BATCH, number, slot)
    first = at
    for k in range(4, HEAD):
        answer[at + k] = 0
    at += HEAD
    if tables.batches[slot]["number"] == number:
        run = tables.intervals[interval_of(tables, slot, 0, VGPU)]
        answer[first + 4] = run["start_us"]
        answer[first + 5] = run["end_us"]
        answer[first + 6] = tables.batches[slot]["capacity"]
        member = tables.batches[slot]["aboard"]
        while member != NONE:
            batch = tables.batches[batch_of(tables, member)]
            answer[at] = batch["number"]
            answer[at + 1] = member // KINDS % tables.offers.shape[1]
            answer[at + 2] = tables.intervals[member]["row"]
            answer[at + 3] = batch["samples"]
            member = tables.intervals[member]["next"]
            at += MEMBER
    answer[first + 1] = at
    return at


@inlined
def _write_end(tables: Tables, answer: Integers, at: int, status: int) -> int:
    """Write when to come back, and what room is short; returns where the answer ends."""
    counts = tables.counts[0]
    timer = next_timer(tables)
    if timer < FAR and timer != counts["armed_timer_us"]:
        counts["armed_timer_us"] = timer
        at = _item(answer, at, SET_TIMER, timer)
    if status == NEEDS_ROOM or lacks_slots(tables):
        at = _item(answer, at, MAKE_ROOM, status)
    return at


@inlined
def _item(answer: Integers, at: int, kind: int, number: int) -> int:
    """Write an item of one number; returns where the next one begins."""
    answer[at] = kind
    answer[at + 1] = at + 3
    answer[at + 2] = number
    return at + 3


# Items of the answer as decisions. Nothing changes here.


def decode_dispatch(answer: list[int], at: int, end: int) -> Dispatch:
    """The dispatch that lies at `at` .. `end` of an answer."""
    number, _, model, pipeline, samples, requests = answer[at + 2 : at + HEAD]
    ids = at + HEAD
    hops = ids + requests
    return Dispatch(
        batch_id=number,
        model=model,
        pipeline=pipeline,
        request_ids=tuple(answer[ids:hops]),
        samples=samples,
        hops=tuple([Hop(*answer[k : k + HOP]) for k in range(hops, end, HOP)]),
    )


def decode_drop(answer: list[int], at: int) -> Drop:
    """The drop that lies at `at` of an answer; its finish is FAR where none was possible.

    Its model is NONE where the plan in force does not have it.
    """
    request_id, model, deadline_us, reason, finish_us, position = answer[at + 2 : at + HEAD]
    return Drop(
        request_id=request_id,
        model=model,
        reason=DropReason(reason),
        deadline_us=deadline_us,
        best_finish_us=None if finish_us >= FAR else finish_us,
        queue_position=position,
    )


def decode_shared_batch(answer: list[int], at: int, end: int) -> SharedBatch:
    """The shared batch that lies at `at` .. `end` of an answer."""
    number, _, start_us, end_us, capacity = answer[at + 2 : at + HEAD - 1]
    members = [Member(*answer[k : k + MEMBER]) for k in range(at + HEAD, end, MEMBER)]
    return SharedBatch(
        shared_batch_id=number,
        start_us=start_us,
        end_us=end_us,
        capacity=capacity,
        members=tuple(sorted(members, key=lambda place: place.first_row)),
    )


def decode_task(answer: list[int], at: int) -> TaskReady:
    """The task that lies at `at` of an answer."""
    request_id, job_id, module, first_row, rows, of_rows = answer[at + 2 : at + HEAD]
    return TaskReady(
        request_id=request_id,
        job_id=job_id,
        module=module,
        first_row=first_row,
        rows=rows,
        of_rows=of_rows,
    )


def decode_skip(answer: list[int], at: int) -> ModuleSkipped:
    """The skipped module that lies at `at` of an answer."""
    job_id, module, reason, finish_us, position = answer[at + 2 : at + HEAD - 1]
    return ModuleSkipped(
        job_id=job_id,
        module=module,
        reason=None if reason == NONE else DropReason(reason),
        best_finish_us=None if finish_us >= FAR else finish_us,
        queue_position=position,
    )


def decode_job_drop(answer: list[int], at: int) -> JobDropped:
    """The dropped job that lies at `at` of an answer."""
    job_id, module, deadline_us, reason, finish_us, position = answer[at + 2 : at + HEAD]
    return JobDropped(
        job_id=job_id,
        reason=DropReason(reason),
        deadline_us=deadline_us,
        module=None if module == NONE else module,
        best_finish_us=None if finish_us >= FAR else finish_us,
        queue_position=position,
    )
