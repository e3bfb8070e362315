"""The scheduler's state as flat arrays: reservations, batches, requests and queues.

Records are numbered by slot and reused; a link from one record to another is a slot or `NONE`. All
instants are µs. An interval has no number of its own: batch slot, stage and kind say which it is.

    interval number = (batch slot x hops + stage) x KINDS + kind        (`interval_of`)

                    batch slot 0                            batch slot 1
    stage           0           1           2 = hops - 1    0           1
    kind            V   U   D   V   U   D   V   U   D       V   U   D   V   U   D
    number          0   1   2   3   4   5   6   7   8       9  10  11  12  13  14

V is the run of the stage on its vGPU. U and D are the transfer *into* the stage: on the uplink of
the vGPU before and on the downlink of its own. A pipeline of s stages has s + 1 hops: at hop s
there is only U, the answer's transfer, where that is counted; at stage 0 the input's: D alone, or
U too where its rows come from modules on one other node.

Jobs (applications) have a record, a row of *parts*, one for each of its modules and then one for
each edge between them, and a row of numbers for every request that is a task:

    jobs     [job slot]        state, deadline, what is open           parts   [job slot, part]
    tasks    [request slot]    module, first row, limit, neighbours in its job, then what it emitted

Kernels know `Tables` by address (`packed`): the holder of the addresses keeps the tables too.
"""

from typing import NamedTuple, cast

import numpy as np

from triton_backend.contract.decisions import DropReason
from triton_backend.contract.units import TIME_BOUNDS_US
from triton_backend.scheduler.compiled import FAR, NONE, Integers, Record, Records, inlined
from triton_backend.scheduler.packed import by_address, pack, views, words_of
from triton_backend.scheduler.topology import (
    EDGE,
    MODULE,
    NO_LEAD,
    PIPELINE,
    POOL,
    QUEUE_PLAN,
    RATE_SHIFT,
    STAGE,
    TIMES,
    Lead,
    Topology,
    block_count,
    part_count,
    resource_count,
)
from triton_backend.scheduler.topology import VGPU as VGPU_ROW

# Purpose of an interval.
VGPU = 0
UPLINK = 1
DOWNLINK = 2
KINDS = 3

# Kinds of decisions. The first three are rows of `Tables.out`; all are items of the answer that
# `kernel_api` makes of an event, where their layout is drawn.
DISPATCH = 0  # row: batch slot
DROP = 1  # row: request slot, reason, earliest finish or FAR, queue position
ABORT = 2  # row: batch number, its slot (free already)
BATCH_DONE = 3  # no decision: the last report of a batch came
SET_TIMER = 4
MAKE_ROOM = 5  # no decision: slots are short
TASK_READY = 6  # row: request id, part, first row, rows
MODULE_SKIPPED = 7  # row: part, reason or NONE
JOB_DONE = 8  # row: job id
JOB_DROPPED = 9  # row: job slot, reason; that of a task is a row of DROP
SHARED_BATCH = (
    10  # row: slot, number; where the slot has another number now the shared batch is over
)
OUT_COLUMNS = 5
OUT_ROWS = 256

# Reasons of drops as the integers that kernels write.
DEADLINE = int(DropReason.DEADLINE)
TOO_LARGE = int(DropReason.TOO_LARGE)
CANCELLED = int(DropReason.CANCELLED)
WORKER_LOST = int(DropReason.WORKER_LOST)
DEADLY = int(DropReason.DEADLY)
MOST_DEATHS = 2  # vGPUs that die while they run a request before it is dropped
MODEL_REMOVED = int(DropReason.MODEL_REMOVED)
OVERLOAD = int(DropReason.OVERLOAD)
ROWS_DIFFER = int(DropReason.ROWS_DIFFER)

# Answers of a kernel that decides.
SETTLED = 0
NEEDS_ROOM = 1  # out of batch slots or rows of `out`: empty `out`, make room, call again
UNFINISHED = 2  # of an event, which ends more than an answer holds: the same event again

INTERVAL = np.dtype(
    [
        (name, np.int64)
        for name in (
            "start_us",
            "end_us",
            "next",
            "previous",  # of a place: 1 once its rows are there
            "resource",
            "pending",
            "shared_batch",  # of a run that is a place: the slot of its shared batch; else NONE
            "row",  # of a place: its first row
        )
    ]
)
RESOURCE = np.dtype([(name, np.int64) for name in ("first", "last", "lost", "idle_us")])
BATCH = np.dtype(
    [
        (name, np.int64)
        for name in (
            "number",  # counts up; NONE while the slot is free
            "pipeline",  # NONE where an earlier plan dispatched it
            "stages",
            "samples",
            "requests",
            "first",  # request slots are chained by `next`
            "last",
            "dispatch_us",
            "next_free",
            # of a shared batch: rows of the joint run; 0 of a batch. Its `samples` are those taken
            "capacity",
            "pool",  # of a shared batch: whose batches board; NONE where an earlier plan opened it
            "aboard",  # the first member's run (an interval); NONE only while it is opened
            "missing",  # members whose rows are not there
            "arrival_us",  # when the last of them was to come
            "leave_us",  # until when it waits for them, at least until its start
            "next_shared_batch",
        )
    ]
)
REQUEST = np.dtype(
    [
        (name, np.int64)
        for name in (
            "id",
            "queue",
            "arrival_us",
            "deadline_us",
            "gather_by_us",  # when its batch must end for it to wait for others (`queues`)
            "samples",
            "sequence",  # order of arrival; NONE while the slot is free
            "retried",  # a vGPU on its path died
            "deaths",  # vGPUs that died while they ran it
            "batch",  # batch slot, NONE while queued
            "job",  # job slot, of a task; else NONE
            "next",
            "previous",
        )
    ]
)
QUEUE = np.dtype(
    [
        (name, np.int64)
        for name in (
            "first",
            "last",
            "requests",
            "samples",
            "timer_us",  # FAR where none is set
            "expired",  # sequence of the head whose wait is over
            "until_us",  # its last moment, where a queue waits
            "arrived_us",  # of the last request; NONE before the first
            "gap",  # mean time between requests; 0 while it is not known
            "size",  # mean samples of a request
            "touched",  # 1 where it was given requests, or lost some, since it was settled
        )
    ]
    + TIMES  # of its batches, from the first request's arrival to the dispatch
)
# States of a job.
LIVE = 0
DEAD = 1  # dropped; tasks in batches end with them
OVER = 2  # all modules have ended or were skipped; tasks of skipped ones may be in batches

JOB = np.dtype(
    [
        (name, np.int64)
        for name in (
            "id",
            "state",  # NONE while the slot is free
            "arrival_us",
            "deadline_us",
            "samples",
            "first_module",  # row of the topology
            "modules_left",  # parts that have not ended
            "open",  # tasks queued or in a batch
            "listed",  # parts in the list of those to be looked at
            "first_task",  # request slot; tasks are chained by `tasks`
            "next",  # of the free slots
        )
    ]
)
# States of a module's part.
AWAITS = 0  # a module before it has not ended
READY = 1  # listed: its rows are to be cut into tasks
OPEN = 2  # all its rows are
ENDED = 3  # listed: what comes after it is to be released
CLOSED = 4

PART = np.dtype(
    [
        (name, np.int64)
        for name in (
            "state",
            "parents_left",
            "rows",  # to run; NONE before they are known. Of an edge: given over it so far
            "cut",  # rows that are tasks already
            "open",  # tasks of it queued or in a batch
            "skipped",  # NONE; else the reason for which it was dropped
            "next",  # in the list
        )
    ]
)
# Columns of `tasks`.
TASK_MODULE = 0  # place in its application
TASK_ROW = 1  # first row
TASK_LIMIT = 2  # the last instant at which it may end
TASK_NEXT = 3  # request slots of its job
TASK_PREVIOUS = 4
TASK_EMITTED = 5  # from here on: rows to every module after its own; NONE where it did not say
SLOT_BITS = 24  # of a task's id, from the right: its request slot
OFFER = np.dtype(
    [
        (name, np.int64)
        for name in (
            "vgpu",
            "uplink",
            "downlink",
            "move_start_us",
            "move_end_us",
            "start_us",
            "end_us",
            "key_us",  # key of the order of vGPUs
            "shared_batch",  # slot of the shared batch that is boarded; NONE where one is opened
            "capacity",  # of that shared batch, where the stage boards
            "displaced",  # the member whose rows are taken, which joins a later shared batch; NONE
        )
    ]
)
QUOTE = np.dtype([(name, np.int64) for name in ("samples", "wait_us", "finish_us")])
CANDIDATE = np.dtype(
    [
        (name, np.int64)
        for name in (
            "state",  # see `policies.late`
            "first",  # the request that its batch begins with
            "behind",  # samples of the queue from that one on
            "samples",
            "latest_us",  # the last instant at which it can be sent
            "keep_us",  # the last instant until which it stays as it is, at most that
            "target",  # samples that a batch shall have, where the rate is measured
            "key",  # rank among a pool's ready candidates
            "served",  # number of the batch that the pipeline sent last; NONE before the first
        )
    ]
)
HEAP = np.dtype(
    [
        (name, np.int64)
        for name in (
            "item",  # [place] row of the item that stands here; see `policies.late`
            "place",  # [item] where it stands; NONE: nowhere
            "key",  # [item] what it is ordered by
            "ready_count",  # [pool]
            "touched",  # [pool] 1 where a candidate became ready, or others wait than before
            "waiting_count",  # [pool] candidates that wait to open
            "next_sent",  # [place] candidate that goes then, where they are put in order
            "send_us",  # [place] and when, at the latest
        )
    ]
)
COUNTS = np.dtype(
    [
        (name, np.int64)
        for name in (
            "now_us",
            "batches",  # numbers given so far
            "requests",  # sequences given so far
            "in_flight",
            "free_batch",
            "free_request",
            "out",
            "armed_timer_us",  # of the last `SetTimer`; FAR before the first and once it fired
            "paused",
            "timers",  # items in the heap of timers
            "early",  # queues of early binding; those of late binding have the heap of timers
            "lead_us",  # of late binding: how long before its start a batch is sent,
            "lead_us_per_sample",  # and more for each of its samples
            "probes",
            "served",
            "dropped",
            "unsettled",  # parts in the list and queues touched,
            "touched_late",  # and of these queues those of late binding
            "first_listed",  # part that is to be looked at, numbered through all jobs
            "last_listed",
            "free_job",
            "tasks",  # numbers given so far
            "jobs",  # jobs that came
            "jobs_done",
            "jobs_dropped",
            "boards",  # stages that board of any pipeline, at most
            "first_shared_batch",
            "hold",  # 1 while a probe lets shared batches that it opens wait for company,
            "alone",  # and boards none
            "doors_us",  # no batch boards so long before the start (`SharedBatchTimes`)
            "patience_us",  # a shared batch waits so long at least for a late member
            "low",  # 1 once a low request came
            "short",  # 1 where a look at batches to come found too few free batch slots
        )
    ]
)


class JobTables(NamedTuple):
    """Tables of jobs.

    Attributes:
        modules: [module] `MODULE`, application after application.
        edges: [edge] `EDGE`, by the module that they come from.
        jobs: [job slot] jobs in hand; free slots are chained.
        parts: [job slot, part] of its modules, then of its edges.
        tasks: [request slot, column] what requests that are tasks have besides.
    """

    modules: Records
    edges: Records
    jobs: Records
    parts: Records
    tasks: Integers


class Tables(NamedTuple):
    """Topology and state of one scheduler.

    Resources are vGPUs (as `Plan.vgpus` numbers them), then links, then what only batches of
    earlier plans still use (`handover`); hops are the most stages of any batch + 1; blocks are
    groups of `BLOCK` vGPUs of a stage.

    Attributes:
        intervals: [interval] reserved times, chained per resource in the order of their starts.
        resources: [resource] ends of those chains; `lost` is 1 while a vGPU is gone; nothing begins
            there before `idle_us`.
        free_from_us: [vGPU] no job of its stage can start before; FAR while it is lost.
        block_from_us: [block] least `free_from_us` of its vGPUs.
        batches: [batch slot] batches in flight; free slots are chained.
        requests: [request slot] requests queued or in flight; free slots are chained.
        job_memory: `JobTables`, packed: a call between kernels hands every array over, and few need
            these. Empty where no plan so far had applications.
        queues: [queue] requests that wait, as a chain of request slots.
        offers: [pipeline, hop] what the last probe of a pipeline found.
        quotes: [pipeline] samples, waiting time and finish of that offer; FAR where none.
        candidates: [pipeline] the batch that its queue would send now, of late binding.
        waiting_keep_us: [place of a candidate] its `keep_us` while it waits to open, else FAR:
            close together, because every batch that is sent reads all of its pool.
        heaps: [2 x pipelines + pools] timers and ready candidates of late binding.
        paths: [batch slot, hop] vGPU.
        pending: [interval] work list of the propagation of delays.
        out: [row, `OUT_COLUMNS`] kind and numbers of decisions not yet read.
        counts: [1] all that there is one of.
    """

    topology: Topology
    intervals: Records
    resources: Records
    free_from_us: Integers
    block_from_us: Integers
    batches: Records
    requests: Records
    job_memory: Integers
    queues: Records
    offers: Records
    quotes: Records
    candidates: Records
    waiting_keep_us: Integers
    heaps: Records
    paths: Integers
    pending: Integers
    out: Integers
    counts: Records


def new_tables(
    topology: Topology,
    lead: Lead = NO_LEAD,
    rows: tuple[Records, Records] | None = None,
    *,
    batches: int = 256,
    requests: int = 1024,
    jobs: int = 256,
    hops: int = 0,
    others: int = 0,
) -> Tables:
    """Empty tables with room for so many batches, requests and jobs at a time.

    `rows` are `module_rows` and `edge_rows` of a plan with applications; without there are no jobs.

    `hops` is the least that a batch slot has, where batches of other plans have more than the
    topology's own; `others` are resources that the topology does not know, numbered past its own.
    """
    hops = max(hops, int(topology.pipelines["stages"].max(initial=0)) + 1)
    pipelines = len(topology.pipelines)
    resources = np.zeros(resource_count(topology) + others, dtype=RESOURCE)
    resources["first"] = resources["last"] = NONE
    queues = np.zeros(len(topology.queues), dtype=QUEUE)
    queues["first"] = queues["last"] = queues["expired"] = NONE
    queues["arrived_us"] = NONE
    queues["gap"], queues["size"] = topology.queues["gap"], 1 << RATE_SHIFT
    queues["timer_us"] = FAR
    candidates = np.zeros(pipelines, dtype=CANDIDATE)
    candidates["served"] = NONE
    counts = np.zeros(1, dtype=COUNTS)
    counts["lead_us"], counts["lead_us_per_sample"] = lead
    counts["early"] = (topology.queues["late"] == 0).sum()
    counts["boards"] = topology.pipelines["boards"].max(initial=0)
    counts["first_shared_batch"] = NONE
    heaps = np.zeros(2 * pipelines + len(topology.pools), dtype=HEAP)
    heaps["place"] = NONE
    counts["free_batch"] = counts["free_request"] = counts["free_job"] = NONE
    counts["first_listed"] = counts["last_listed"] = NONE
    modules, edges = rows or (np.zeros(0, dtype=MODULE), np.zeros(0, dtype=EDGE))
    counts["armed_timer_us"] = FAR
    empty = Tables(
        topology=topology,
        intervals=np.zeros(0, dtype=INTERVAL),
        resources=resources,
        free_from_us=np.zeros(len(topology.vgpus), dtype=np.int64),
        block_from_us=np.zeros(block_count(topology), dtype=np.int64),
        batches=np.zeros(0, dtype=BATCH),
        requests=np.zeros(0, dtype=REQUEST),
        job_memory=np.zeros(0, dtype=np.int64),
        queues=queues,
        offers=np.zeros((pipelines, hops), dtype=OFFER),
        quotes=np.zeros(pipelines, dtype=QUOTE),
        candidates=candidates,
        waiting_keep_us=np.full(pipelines, FAR, dtype=np.int64),
        heaps=heaps,
        paths=np.zeros((0, hops), dtype=np.int64),
        pending=np.zeros(0, dtype=np.int64),
        out=np.zeros((OUT_ROWS, OUT_COLUMNS), dtype=np.int64),
        counts=counts,
    )
    if len(modules):
        none = JobTables(
            modules=modules,
            edges=edges,
            jobs=np.zeros(0, dtype=JOB),
            parts=np.zeros((0, part_count(modules, edges)), dtype=PART),
            tasks=np.zeros((0, task_columns(modules)), dtype=np.int64),
        )
        empty = empty._replace(job_memory=pack(none))
    return with_room(empty, batches=batches, requests=requests, jobs=jobs)


def with_room(tables: Tables, *, batches: int, requests: int, jobs: int) -> Tables:
    """The same state with more free slots; the old tables are not to be used any more."""
    hops = tables.offers.shape[1]
    old_batches, old_requests = len(tables.batches), len(tables.requests)
    intervals = _longer(tables.intervals, batches * hops * KINDS)
    intervals["resource"][len(tables.intervals) :] = NONE
    intervals["shared_batch"][len(tables.intervals) :] = NONE
    batch_rows = _longer(tables.batches, batches)
    batch_rows["number"][old_batches:] = NONE
    request_rows = _longer(tables.requests, requests)
    request_rows["sequence"][old_requests:] = NONE
    counts = tables.counts
    counts[0]["short"] = 0
    memory = tables.job_memory
    if len(memory):
        now = unpack(memory)
        job_rows = _longer(now.jobs, jobs)
        job_rows["state"][len(now.jobs) :] = NONE
        free_job = int(counts[0]["free_job"])
        counts[0]["free_job"] = _chain(job_rows, "next", len(now.jobs), free_job)
        parts, tasks = _more_rows(now.parts, jobs), _more_rows(now.tasks, requests)
        memory = pack(now._replace(jobs=job_rows, parts=parts, tasks=tasks))
    counts[0]["free_batch"] = _chain(
        batch_rows, "next_free", old_batches, int(counts[0]["free_batch"])
    )
    counts[0]["free_request"] = _chain(
        request_rows, "next", old_requests, int(counts[0]["free_request"])
    )
    return tables._replace(
        intervals=intervals,
        batches=batch_rows,
        requests=request_rows,
        job_memory=memory,
        paths=np.concatenate(
            [tables.paths, np.full((batches - old_batches, hops), NONE, dtype=np.int64)]
        ),
        pending=np.zeros(len(intervals), dtype=np.int64),
    )


def task_columns(modules: Records) -> int:
    """Columns of `JobTables.tasks`: what every task has, and one for each module after its own."""
    return TASK_EMITTED + int((modules["end_edge"] - modules["first_edge"]).max(initial=0))


def _longer(records: Records, length: int) -> Records:
    grown = np.zeros(max(length, len(records)), dtype=records.dtype)
    grown[: len(records)] = records
    return grown


def _more_rows(array: Records, rows: int) -> Records:
    grown = np.zeros((max(rows, len(array)), array.shape[1]), dtype=array.dtype)
    grown[: len(array)] = array
    return grown


def fuller(tables: Tables) -> Tables:
    """The same state with twice the slots of what has none free."""
    counts = tables.counts[0]

    def lengths(records: Records, free: str) -> int:
        return len(records) * (2 if counts[free] == NONE else 1)

    return with_room(
        tables,
        batches=len(tables.batches) * (2 if lacks_batches(tables) else 1),
        requests=lengths(tables.requests, "free_request"),
        jobs=lengths(unpack(tables.job_memory).jobs, "free_job"),
    )


def _chain(records: Records, link: str, first_new: int, first_free: int) -> int:
    """Chain the new slots in front of the free ones; returns the first free slot."""
    if first_new == len(records):
        return first_free
    records[link][first_new:] = np.arange(first_new + 1, len(records) + 1)
    records[link][-1] = first_free
    return first_new


@inlined
def lacks_batches(tables: Tables) -> bool:
    """True if fewer slots are free than one dispatch may take, or a low batch asked for.

    Its own, and one per shared batch that it opens. Where it boards, another may open one.
    """
    counts = tables.counts[0]
    if counts["short"] == 1:
        return True
    slot = counts["free_batch"]
    for _ in range(2 * counts["boards"]):
        if slot == NONE:
            break
        slot = tables.batches[slot]["next_free"]
    return slot == NONE


@inlined
def lacks_slots(tables: Tables) -> bool:
    """True if no slot is free of something that the next event may need one of."""
    counts = tables.counts[0]
    return counts["free_request"] == NONE or (
        len(tables.job_memory) > 0 and counts["free_job"] == NONE
    )


@inlined
def interval_of(tables: Tables, batch: int, stage: int, kind: int) -> int:
    """Number of the interval that a batch slot reserves at a stage, see the head of this file."""
    return (batch * tables.offers.shape[1] + stage) * KINDS + kind


@inlined
def count_time(row: Record, took_us: int) -> None:
    """Count a time in a row that has `TIMES`."""
    bucket = 0
    while bucket < len(TIME_BOUNDS_US) and TIME_BOUNDS_US[bucket] < took_us:
        bucket += 1
    row["times"][bucket] += 1
    row["times_us"][bucket] += took_us


@inlined
def add_decision(
    tables: Tables, kind: int, slot: int, reason: int, finish_us: int, position: int
) -> None:
    """Add one row of `out`; there must be room (`head.out_of_room`)."""
    row = tables.counts[0]["out"]
    tables.out[row, 0] = kind
    tables.out[row, 1] = slot
    tables.out[row, 2] = reason
    tables.out[row, 3] = finish_us
    tables.out[row, 4] = position
    tables.counts[0]["out"] = row + 1


# The tables by address.

EXAMPLE = new_tables(
    Topology(
        queues=np.zeros(1, dtype=QUEUE_PLAN),
        pipelines=np.zeros(1, dtype=PIPELINE),
        stages=np.zeros(1, dtype=STAGE),
        pools=np.zeros(1, dtype=POOL),
        vgpus=np.zeros(1, dtype=VGPU_ROW),
        latency_us=np.zeros((1, 1), dtype=np.int64),
        move_us=np.zeros((1, 1, 1), dtype=np.int64),
        answer_us=np.zeros((1, 1, 1), dtype=np.int64),
        path_us=np.zeros((1, 1), dtype=np.int64),
    )
)


def addresses(tables: Tables) -> list[int]:
    """Address and lengths of every array, as `tables_at` reads them."""
    return words_of(tables, EXAMPLE)


WORDS = len(addresses(EXAMPLE))
_tables_at = by_address(EXAMPLE)


@inlined
def tables_at(memory: Integers) -> Tables:
    """The tables whose `addresses` the first `WORDS` integers of `memory` are."""
    return _tables_at(memory)


NO_JOBS = JobTables(
    modules=np.zeros(0, dtype=MODULE),
    edges=np.zeros(0, dtype=EDGE),
    jobs=np.zeros(0, dtype=JOB),
    parts=np.zeros((0, 0), dtype=PART),
    tasks=np.zeros((0, 0), dtype=np.int64),
)


def unpack(memory: Integers) -> JobTables:
    """The arrays of `JobTables` that memory holds, for Python; they keep it.

    None where it is empty.
    """
    return cast("JobTables", views(memory, NO_JOBS)) if len(memory) else NO_JOBS


_jobs_at = by_address(NO_JOBS)


@inlined
def jobs_of(tables: Tables) -> JobTables:
    """All of jobs, for kernels; there must be applications."""
    return _jobs_at(tables.job_memory)
