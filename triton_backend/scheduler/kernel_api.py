"""One call per event: what was told goes in as integers, what was decided comes out as integers.

`act_at` takes the step of an event, settles the lines, and writes everything that Python has to know
into one array; `answers` reads it there. It refuses nothing: whether an event can be so is checked
before (`told`). Not here: the steps themselves, which the simulator takes too (`steps`, `feedback`).
"""

from triton_backend.scheduler.array_pointers import WORDS, tables_at
from triton_backend.scheduler.compiled import FAR, NONE, Integers, entry, inlined, kernel
from triton_backend.scheduler.feedback import (
    abort,
    stage_done,
    transfer_done,
    worker_back,
    worker_lost,
)
from triton_backend.scheduler.queues import free_request
from triton_backend.scheduler.steps import arrive, cancel, expire, next_timer, settle, settle_all
from triton_backend.scheduler.tables import (
    ABORTED,
    DISPATCHED,
    MORE,
    OUT_ROWS,
    SETTLED,
    VGPU,
    Tables,
    interval_of,
)

# Events, and what their numbers a .. d are.
SETTLE = 0  # nothing happened: decide on
ARRIVED = 1  # model, request id, deadline, samples
GIVEN_UP = 2  # request id
REPORTED = 3  # batch slot, stage, end, 1: the way into the stage, 0: the stage itself
LOST = 4  # vGPU
BACK = 5  # vGPU
TIMED = 6
PAUSED = 7  # 1: dispatch nothing more, 0: dispatch again
LOST_BATCH = 8  # batch slot

# Lines to decide for, besides that of one model and NONE.
ALL = -2
DUE = -3

# Items of the answer besides DISPATCHED, DROPPED and ABORTED; each begins with its kind and with
# where the next one begins.
ENDED = 3  # batch number: its last report came
TIMER = 4  # instant
SHORT = 5  # make room; MORE: and let it decide on (`SETTLE`)

HEAD = 8  # integers of a dispatch before the ids of its requests
HOP = 5  # integers of a dispatch per hop


def answer_length(tables: Tables) -> int:
    """Integers that the longest answer takes."""
    dispatch = HEAD + HOP * tables.offers.shape[1]
    return OUT_ROWS * dispatch + len(tables.requests) + 3 * len(tables.batches) + 4 * HEAD


@entry
def act_at(memory: Integers, event: int, now_us: int, a: int, b: int, c: int, d: int) -> int:  # noqa: C901, PLR0913, PLR0917 - a branch per event; numbers are handed over at less cost one by one
    """Take one event in; `memory` is the tables' addresses and the room for the answer.

    Returns how many integers the answer has.
    """
    tables = tables_at(memory)
    answer = memory[WORDS:]
    tables.counts[0]["now_us"] = now_us
    length = 0
    lines = ALL
    if event == ARRIVED:
        arrive(tables, a, b, c, d)
        lines = a
    elif event == REPORTED:
        number = tables.batches[a]["number"]
        lines = _report(tables, a, b, c, d)
        if tables.batches[a]["number"] == NONE:
            length = _item(answer, length, ENDED, number)
    elif event == TIMED:
        tables.counts[0]["told_us"] = FAR
        lines = DUE
    elif event == GIVEN_UP:
        lines = _cancel(tables, a)
    elif event == LOST:
        while worker_lost(tables, a) == MORE:
            length = _decided(tables, answer, length)
    elif event == BACK:
        worker_back(tables, a)
    elif event == LOST_BATCH:
        abort(tables, a)
    elif event == PAUSED:
        tables.counts[0]["paused"] = a
    status = _settle(tables, lines)
    length = _decided(tables, answer, length)
    return _close(tables, answer, length, status)


@inlined
def _report(tables: Tables, batch: int, stage: int, end_us: int, moved: int) -> int:
    """A stage, or the way into one, is over; returns the lines to look at."""
    if moved == 1:
        deviates = transfer_done(tables, batch, stage, end_us)
    else:
        deviates = stage_done(tables, batch, stage, end_us)
    return ALL if deviates else NONE


@inlined
def _cancel(tables: Tables, request_id: int) -> int:
    """Drop a request (queued or in flight) if it is queued; returns the line to look at."""
    requests = tables.requests
    slot = 0
    while requests[slot]["id"] != request_id or requests[slot]["sequence"] == NONE:
        slot += 1
    if requests[slot]["batch"] != NONE:
        return NONE
    cancel(tables, slot)
    return requests[slot]["model"]


@inlined
def _settle(tables: Tables, lines: int) -> int:
    """Decide for one model's line, `ALL`, those whose timer is `DUE`, or none of them."""
    if lines == ALL:
        return settle_all(tables)
    if lines == DUE:
        return expire(tables)
    return SETTLED if lines == NONE else settle(tables, lines)


@inlined
def _close(tables: Tables, answer: Integers, at: int, status: int) -> int:
    """Write when to come back, and what room is short; returns where the answer ends."""
    counts = tables.counts[0]
    timer = next_timer(tables)
    if timer < FAR and timer != counts["told_us"]:
        counts["told_us"] = timer
        at = _item(answer, at, TIMER, timer)
    if status == MORE or counts["free_request"] == NONE:
        at = _item(answer, at, SHORT, status)
    return at


@inlined
def _item(answer: Integers, at: int, kind: int, number: int) -> int:
    """Write an item of one number; returns where the next one begins."""
    answer[at] = kind
    answer[at + 1] = at + 3
    answer[at + 2] = number
    return at + 3


@kernel
def _decided(tables: Tables, answer: Integers, at: int) -> int:
    """Write what was decided and empty `out`; returns where the next item begins."""
    for row in range(tables.counts[0]["out"]):
        kind, slot = tables.out[row, 0], tables.out[row, 1]
        if kind == DISPATCHED:
            at = _dispatched(tables, answer, at, slot)
        elif kind == ABORTED:
            at = _item(answer, at, ABORTED, slot)
        else:
            request = tables.requests[slot]
            answer[at] = kind
            answer[at + 1] = at + HEAD
            answer[at + 2] = request["id"]
            answer[at + 3] = request["model"]
            answer[at + 4] = request["deadline_us"]
            for k in range(3):  # reason, finish, position
                answer[at + 5 + k] = tables.out[row, 2 + k]
            free_request(tables, slot)
            at += HEAD
    tables.counts[0]["out"] = 0
    return at


@inlined
def _dispatched(tables: Tables, answer: Integers, at: int, batch: int) -> int:
    """Write a batch just dispatched; returns where the next item begins.

    Number, slot, model, pipeline, samples, requests; their ids; per hop vGPU, transfer start and
    end, start and end.
    """
    topology = tables.topology
    row = tables.batches[batch]
    pipeline = row["pipeline"]
    model = topology.pipeline_model[pipeline]
    first = at
    answer[at] = DISPATCHED
    answer[at + 2] = row["number"]
    answer[at + 3] = batch
    answer[at + 4] = model
    answer[at + 5] = pipeline - topology.model_pipelines[model]
    answer[at + 6] = row["samples"]
    answer[at + 7] = row["requests"]
    at += HEAD
    request = row["first"]
    while request != NONE:
        answer[at] = tables.requests[request]["id"]
        request = tables.requests[request]["next"]
        at += 1
    before = row["dispatch_us"]
    for hop in range(topology.pipeline_stages[pipeline + 1] - topology.pipeline_stages[pipeline]):
        i = interval_of(tables, batch, hop, VGPU)
        move = i + 2  # the downlink is reserved whenever anything is moved
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
