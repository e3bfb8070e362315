"""The simulated world as flat arrays: arrivals, what runs where, and what is recorded of it."""

from typing import NamedTuple

import numpy as np

from triton_backend.scheduler.admission import WORK, no_admission
from triton_backend.scheduler.compiled import NONE, Integers, Record, Records, inlined
from triton_backend.scheduler.packed import by_address, pack, views, words_of
from triton_backend.scheduler.policies.variants import VARIANT
from triton_backend.scheduler.tables import EXAMPLE as TABLES
from triton_backend.scheduler.tables import OFFER, OUT_ROWS, Tables
from triton_backend.scheduler.topology import resource_count
from triton_backend.simulator.heap import EVENT, sift_up

# Outcomes of a request.
OPEN = 0
SERVED = 1
LATE = 2
DROPPED = 3

# How parts of a GPU slow each other down (`workers`).
PLANNED = 0
OVERLAP = 1
OFF = 2

# Phases of a batch.
RESTING = 0  # its next step is in the heap
WAITING_VGPU = 1
RUNNING = 2
WAITING_LINK = 3
MOVING = 4
ABOARD = 5  # its rows are where the shared batch is that it sits in, which has a phase of its own

# Columns of `World.queues`.
NOW = 0
SHARED_BATCHES = 1
SHARED_BATCH_SAMPLES = 2
SHARED_BATCH_ENTRIES = 3
QUEUE_COLUMNS = 4

REQUEST_RECORD = np.dtype(
    [
        ("model", np.int32),  # NONE of a job
        ("queue", np.int32),  # of the plan that the run began with, numbered as `topology` does
        ("application", np.int32),  # of that plan; NONE where a model is asked for by itself
        ("samples", np.int32),
        ("arrival_us", np.int64),
        ("deadline_us", np.int64),
        ("dispatch_us", np.int64),  # its batch's first stage began; NONE where it never did
        ("finish_us", np.int64),  # answer, or instant of the drop
        ("batch_id", np.int64),  # NONE where it has none
        ("batch_samples", np.int32),
        ("outcome", np.int8),
        ("reason", np.int8),
        ("low", np.int8),  # 1 of a low request
    ]
)
TASK_RECORD = np.dtype(
    [
        ("request", np.int64),  # the job
        ("module", np.int32),  # its place in the application
        ("plan", np.int32),  # changes before it was released
        ("rows", np.int32),
        ("ready_us", np.int64),
        ("dispatch_us", np.int64),  # NONE where it was never run
        ("finish_us", np.int64),  # NONE where it did not end
        ("batch_id", np.int64),
        ("batch_samples", np.int32),
    ]
)
USE_RECORD = np.dtype(
    [
        ("vgpu", np.int32),
        ("batch_id", np.int64),
        ("start_us", np.int64),
        ("end_us", np.int64),
        ("samples", np.int32),
        ("model", np.int32),
        (
            "plan",
            np.int32,
        ),  # changes before the dispatch: vGPUs and models are numbered by that plan
    ]
)
SEAT = np.dtype([(name, np.int64) for name in ("factor", "susceptibility", "pressure")])
"""Planned values of a stage on its pool, in 1 / `workers.ONE`."""
LOADING = np.dtype([(name, np.int64) for name in ("place", "load_us")])
"""Of a stage that is loaded on demand: its place among them, NONE of others; its load."""
MEMORY = np.dtype([(name, np.int64) for name in ("room", "loads")])
"""Of a resource: bytes for stages that are loaded on demand, loads so far."""
HOP = np.dtype(
    [
        *((name, np.int64) for name in OFFER.names or ()),
        ("number", np.int64),
        *((name, np.int64) for name in SEAT.names or ()),
        *((name, np.int64) for name in LOADING.names or ()),
        ("lasts_us", np.int64),
    ]
)
"""The kind of an offer, the vGPU's number in the plan that dispatched, its seat and its loading;
`vgpu` is the resource now, `lasts_us` the time of its stage by the table."""
RUN = np.dtype(
    [
        (name, np.int64)
        for name in (
            "number",
            "plan",  # changes before its dispatch
            "model",  # in that plan
            "stages",
            "stage",
            "phase",
            "samples",
            "low",  # 1 where all of its requests are low
            "since_us",
            "due_us",  # when its stage ends; events for another instant are void
            "work",  # left of its stage, `workers.WORK` to the µs
            "pace",  # the factor at which that is done since `paced_us`
            "paced_us",
            "next",
        )
    ]
)
RAN = np.dtype([(name, np.int64) for name in ("stage", "vgpu", "samples", "took_us")])
"""A run that ended: its stage row and vGPU in the plan in force."""
OVERRUN = np.dtype([(name, np.int64) for name in ("model", "late_us")])
"""A batch that was answered: its model in the plan in force, how long after its planned end."""
CURSOR = np.dtype(
    [
        (name, np.int64)
        for name in (
            "arrival",  # next row of `requests`
            "events",  # rows of the heap in use
            "sequence",
            "uses",
            "tasks",  # records in use
            "keep_uses",
            "plan",
            "moves_waiting",
            "factor",  # next row of `factors`
            "again",  # decide before anything else: room was made, or the plan changes
            "stop_us",
            "decisions",
            "batches",  # sent when the last decision was timed
            "steps",
            "draining",  # stop as soon as nothing is in flight
            "interference",  # PLANNED, OVERLAP or OFF
            "room",  # events that one step may add
            "workers",  # 1: a worker was lost or is back, which `variants` do not know of
            "ran",  # runs noted so far
            "overruns",  # the same
        )
    ]
)


class JobWorld(NamedTuple):
    """Tables of jobs.

    Attributes:
        tasks: [task] records, in the order in which tasks were released; `cursor.tasks` of them.
        task_of: [request slot] the record of the task that it is.
        rows: [request, part] rows that go over every edge of a job's application
            (`JobTables.parts`).
        first_modules: [application of the first plan] its first in the plan in force, or NONE.
        work: [module] `admission.WORK` of that plan.
    """

    tasks: Records
    task_of: Integers
    rows: Integers
    first_modules: Integers
    work: Records


class World(NamedTuple):
    """Everything the event loop reads and writes.

    Attributes:
        tables: the scheduler's; the loop changes them through the scheduler's own steps only.
        requests: [request] all requests of the run by arrival; a request's id is its row.
        job_memory: `JobWorld`, packed; empty where no plan so far had applications.
        heap: [event] future events, `cursor.events` of them; see `heap`.
        runs: [batch slot] where the batch is.
        hops: [batch slot, hop] as dispatched; what happens follows these, not the tables.
        running: [vGPU] the batch slot that runs there, or NONE.
        waiting: [vGPU] the first batch slot of those that wait for it, by reserved start.
        carrying: [resource] the batch slot that a link carries, or NONE.
        moves: [`cursor.moves_waiting`] batch slots whose next transfer waits for a link.
        busy_us: [resource] time in use so far.
        low_busy_us: [resource] of a vGPU's, that of batches of low requests alone.
        uses: [stage run] which vGPU ran which batch when, by end.
        factors: what table latencies are multiplied with, in turn, in 1 / `workers.ONE`.
        queues: [queue of the first plan, column] its number in the plan in force, NONE where it is
            gone; shared batches that its requests sat in, samples and queues in those.
        admission: [queue] rows of `admission`, of the plan in force; none where all are admitted.
        variants: [queue] rows of `variants`, of the plan in force; none where there are none.
        seats: [stage row] `SEAT`, of the plan in force; none where all is as planned.
        beside: [resource, k] the other vGPUs of its GPU, then NONE; the same.
        loading: [stage row] `LOADING`, of the plan in force; none where all stages are pinned.
        sizes: [stage on demand] bytes; the same.
        memory: [resource] `MEMORY`; the same.
        used: [resource, stage on demand] as in `runtimes.residency`; the same.
        guards_us: kept back of a request's time, [queue] of the plan in force, then its
            applications from the end on; empty where nothing is measured.
        table_us: [stage row, n] latencies of the plan in force, whatever is expected; the same.
        ran: [run] `RAN`, of which `cursor.ran` were written, in a ring; the same.
        overruns: [batch] `OVERRUN`, `cursor.overruns` in a ring; the same.
        ticks: [decision] twice the CPU cycles of single decisions, 1 more where a batch was sent;
            as many as are to be timed.
        cursor: [1] all that there is one of.
    """

    tables: Tables
    requests: Records
    job_memory: Integers
    heap: Records
    runs: Records
    hops: Records
    running: Integers
    waiting: Integers
    carrying: Integers
    moves: Integers
    busy_us: Integers
    low_busy_us: Integers
    uses: Records
    factors: Integers
    queues: Integers
    admission: Records
    variants: Records
    seats: Records
    beside: Integers
    loading: Records
    sizes: Integers
    memory: Records
    used: Integers
    guards_us: Integers
    table_us: Integers
    ran: Records
    overruns: Records
    ticks: Integers
    cursor: Records


NO_JOBS = JobWorld(
    tasks=np.zeros(0, dtype=TASK_RECORD),
    task_of=np.zeros(0, dtype=np.int64),
    rows=np.zeros((0, 0), dtype=np.int64),
    first_modules=np.zeros(0, dtype=np.int64),
    work=np.zeros(0, dtype=WORK),
)
_jobs_at = by_address(NO_JOBS)


@inlined
def jobs_in(world: World) -> JobWorld:
    """All of jobs, for kernels; there must be applications."""
    return _jobs_at(world.job_memory)


def with_jobs(world: World, rows: Integers, first_modules: Integers, work: Records) -> World:
    """The same world where jobs of these applications come, under the plan in force."""
    before = views(world.job_memory, NO_JOBS) if len(world.job_memory) else NO_JOBS
    jobs = before._replace(rows=rows, first_modules=first_modules, work=work)
    return world._replace(job_memory=pack(jobs))


def tasks_of(world: World) -> Records:
    """`TASK_RECORD` rows so far."""
    if not len(world.job_memory):
        return NO_JOBS.tasks
    return views(world.job_memory, NO_JOBS).tasks[: int(world.cursor[0]["tasks"])]


def new_world(
    tables: Tables,
    requests: Records,
    factors: Integers,
    admission: Records,
    *,
    keep_uses: bool,
    timed: int = 0,
) -> World:
    """A world at rest before its first arrival; `timed` decisions are to be timed at most."""
    resources = len(tables.resources)
    cursor = np.zeros(1, dtype=CURSOR)
    cursor["keep_uses"] = keep_uses
    cursor["room"] = OUT_ROWS + 2
    empty = World(
        tables=tables,
        requests=requests,
        job_memory=np.zeros(0, dtype=np.int64),
        heap=np.zeros(0, dtype=EVENT),
        runs=np.zeros(0, dtype=RUN),
        hops=np.zeros((0, tables.offers.shape[1]), dtype=HOP),
        running=np.full(resources, NONE, dtype=np.int64),
        waiting=np.full(resources, NONE, dtype=np.int64),
        carrying=np.full(resources, NONE, dtype=np.int64),
        moves=np.zeros(0, dtype=np.int64),
        busy_us=np.zeros(resources, dtype=np.int64),
        low_busy_us=np.zeros(resources, dtype=np.int64),
        uses=np.zeros(0, dtype=USE_RECORD),
        factors=factors,
        queues=np.zeros((0, QUEUE_COLUMNS), dtype=np.int64),
        admission=admission,
        variants=np.zeros(0, dtype=VARIANT),
        seats=np.zeros(0, dtype=SEAT),
        beside=np.zeros((0, 0), dtype=np.int64),
        loading=np.zeros(0, dtype=LOADING),
        sizes=np.zeros(0, dtype=np.int64),
        memory=np.zeros(0, dtype=MEMORY),
        used=np.zeros((0, 0), dtype=np.int64),
        guards_us=np.zeros(0, dtype=np.int64),
        table_us=np.zeros((0, 0), dtype=np.int64),
        ran=np.zeros(0, dtype=RAN),
        overruns=np.zeros(0, dtype=OVERRUN),
        ticks=np.zeros(timed, dtype=np.int64),
        cursor=cursor,
    )
    return fit(empty)


def fit(world: World, spare: int = 0) -> World:
    """Arrays long enough for the tables' batch slots, with room in the heap and for uses."""
    cursor = world.cursor[0]
    slots = len(world.tables.batches)
    events = int(cursor["events"]) + slots + 2 * int(cursor["room"]) + spare
    uses = len(world.uses)
    if cursor["keep_uses"] and uses < cursor["uses"] + OUT_ROWS:
        uses = 2 * uses + 4 * OUT_ROWS
    memory = world.job_memory
    if len(memory):
        jobs = views(memory, NO_JOBS)
        tasks = len(jobs.tasks)
        if tasks < cursor["tasks"] + OUT_ROWS:
            tasks = 2 * tasks + 4 * OUT_ROWS
        task_of = _longer(jobs.task_of, len(world.tables.requests))
        memory = pack(jobs._replace(tasks=_longer(jobs.tasks, tasks), task_of=task_of))
    runs = _longer(world.runs, slots)
    runs["number"][len(world.runs) :] = NONE
    hops = np.zeros((slots, world.hops.shape[1]), dtype=HOP)
    hops[: len(world.hops)] = world.hops
    return world._replace(
        heap=_longer(world.heap, events),
        job_memory=memory,
        runs=runs,
        hops=hops,
        moves=_longer(world.moves, slots),
        uses=_longer(world.uses, uses),
    )


def interfering(world: World, mode: int, seats: Records, beside: Integers) -> World:
    """The same world where vGPUs of a GPU slow each other down otherwise than planned."""
    cursor = world.cursor[0]
    cursor["interference"] = mode
    cursor["room"] = (OUT_ROWS + 2) * (1 + beside.shape[1])
    return fit(world._replace(seats=seats, beside=beside))


def loading(world: World, loading: Records, sizes: Integers, rooms: Integers) -> World:
    """The same world where stages are loaded on demand, of which none is there yet.

    `rooms` [vGPU]; links load nothing.
    """
    resources = len(world.tables.resources)
    memory = np.zeros(resources, dtype=MEMORY)
    memory["room"][: len(rooms)] = rooms
    used = np.zeros((resources, len(sizes)), dtype=np.int64)
    return world._replace(loading=loading, sizes=sizes, memory=memory, used=used)


def with_tables(
    world: World,
    tables: Tables,
    admission: Records,
    queues: Integers,
    resources: Integers,
) -> World:
    """The same world after a change of plan; what is in flight goes on.

    `resources` [old resource] is its new number, NONE where nothing uses it. All but the plan's
    links begin with no time in use. Failures to come are left to the caller.
    """
    renewed = new_world(tables, world.requests, world.factors, admission, keep_uses=False)
    known = np.flatnonzero(resources != NONE)
    for name in ("running", "waiting", "carrying", "busy_us"):
        getattr(renewed, name)[resources[known]] = getattr(world, name)[known]
    renewed.busy_us[: len(tables.topology.vgpus)] = 0
    renewed.busy_us[resource_count(tables.topology) :] = 0
    flying = np.flatnonzero(world.runs["number"] != NONE)
    renewed.runs[: len(world.runs)] = world.runs
    steps = min(world.hops.shape[1], renewed.hops.shape[1])
    hops = world.hops[flying, :steps]
    for name in ("vgpu", "uplink", "downlink"):
        hops[name] = np.where(hops[name] == NONE, NONE, resources[hops[name]])
    hops["place"] = NONE  # runs in flight last as long as reserved
    renewed.hops[flying, :steps] = hops
    world.cursor[0]["plan"] += 1
    world.queues[:, NOW] = queues
    return fit(
        renewed._replace(
            queues=world.queues,
            job_memory=world.job_memory,
            heap=world.heap,
            moves=world.moves,
            uses=world.uses,
            ran=world.ran,
            overruns=world.overruns,
            ticks=world.ticks,
            cursor=world.cursor,
        )
    )


def _longer(array: Records, length: int) -> Records:
    grown = np.zeros(max(length, len(array)), dtype=array.dtype)
    grown[: len(array)] = array
    return grown


@inlined
def push(world: World, at_us: int, kind: int, subject: int, number: int) -> None:
    """Add an event; `number` tells whether the subject is still the same when it comes."""
    cursor = world.cursor[0]
    event: Record = world.heap[cursor["events"]]
    event["at_us"] = at_us
    event["kind"] = kind
    event["sequence"] = cursor["sequence"]
    event["subject"] = subject
    event["number"] = number
    cursor["sequence"] += 1
    cursor["events"] += 1
    sift_up(world.heap, cursor["events"])


# The world by address.

EXAMPLE = new_world(
    TABLES,
    np.zeros(0, dtype=REQUEST_RECORD),
    np.ones(1, dtype=np.int64),
    no_admission(),
    keep_uses=False,
)
_world_at = by_address(EXAMPLE)


def addresses(world: World) -> Integers:
    """Address and lengths of every array, as `world_at` reads them; the holder keeps the world."""
    return np.array(words_of(world, EXAMPLE), dtype=np.int64)


@inlined
def world_at(memory: Integers) -> World:
    """The world whose `addresses` these are."""
    return _world_at(memory)
