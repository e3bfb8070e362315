"""What the scheduler remembers, as flat arrays: reservations, batches, requests and queues.

Records are numbered by slot and reused. An interval needs no number of its own: batch slot, stage
and kind say which it is, see `interval_of`. All instants are µs, all links are slots or `NONE`.
"""

from typing import NamedTuple

import numpy as np

from triton_backend.contract.reasons import DropReason
from triton_backend.scheduler.compiled import FAR, NONE, Integers, Records, inlined
from triton_backend.scheduler.topology import Topology

# What an interval reserves.
VGPU = 0
UPLINK = 1
DOWNLINK = 2
KINDS = 3

# Kinds of rows in `Tables.out`: what was decided, for the shell around the kernels to carry out.
DISPATCHED = 0  # b = batch slot
DROPPED = 1  # b = request slot, c = reason, d = earliest finish or FAR, e = queue position
ABORTED = 2  # b = batch number, c = its slot, free already
OUT_COLUMNS = 5
OUT_ROWS = 256

# Reasons of drops as the integers that kernels write.
DEADLINE = int(DropReason.DEADLINE)
TOO_LARGE = int(DropReason.TOO_LARGE)
CANCELLED = int(DropReason.CANCELLED)
WORKER_LOST = int(DropReason.WORKER_LOST)
MODEL_REMOVED = int(DropReason.MODEL_REMOVED)
OVERLOAD = int(DropReason.OVERLOAD)

# Policies, in the order of `policies.POLICIES`.
RESERVATION = 0
RESERVATION_AHEAD = 1

# What `decide` answers.
SETTLED = 0
MORE = 1  # out of batch slots or rows of `out`: empty `out`, make room, call again

INTERVAL = np.dtype(
    [(name, np.int64) for name in ("start_us", "end_us", "next", "previous", "resource", "pending")]
)
RESOURCE = np.dtype([(name, np.int64) for name in ("first", "last", "lost")])
BATCH = np.dtype(
    [
        (name, np.int64)
        for name in (
            "number",  # counts up; NONE while the slot is free
            "pipeline",
            "samples",
            "requests",
            "first",  # request slots are chained by `next`
            "last",
            "dispatch_us",
            "finish_us",  # reserved
            "next_free",
        )
    ]
)
REQUEST = np.dtype(
    [
        (name, np.int64)
        for name in (
            "id",
            "model",
            "arrival_us",
            "deadline_us",
            "samples",
            "sequence",  # order of arrival; NONE while the slot is free
            "retried",  # a vGPU on its path died
            "batch",  # batch slot, NONE while queued
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
        )
    ]
)
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
            "key_us",  # what vGPUs are compared by
        )
    ]
)
QUOTE = np.dtype([(name, np.int64) for name in ("samples", "wait_us", "finish_us")])
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
            "told_us",  # timer told last; FAR before the first, and once it has fired
            "paused",
            "policy",
            "ahead",  # vGPUs are chosen with an eye on their uplinks
            "probes",
            "served",
            "dropped",
        )
    ]
)


class Tables(NamedTuple):
    """Topology and state of one scheduler.

    Attributes:
        intervals: reserved intervals, chained per resource in the order of their starts.
        resources: ends of those chains; `lost` is 1 while a vGPU is gone.
        free_from_us: per vGPU, no job of its pool can start before; FAR while it is lost.
        block_from_us: least `free_from_us` of every `BLOCK` vGPUs of a pool.
        offers: [pipeline, hop] what the last probe of a pipeline found.
        quotes: [pipeline] samples, waiting time and finish of that offer; FAR where none.
        paths: [batch slot, hop] vGPU.
        pending: work list of the propagation of delays.
        out: decisions not yet read, rows of `OUT_COLUMNS`.
    """

    topology: Topology
    intervals: Records
    resources: Records
    free_from_us: Integers
    block_from_us: Integers
    batches: Records
    requests: Records
    queues: Records
    offers: Records
    quotes: Records
    paths: Integers
    pending: Integers
    out: Integers
    counts: Records


def new_tables(
    topology: Topology, policy: int, *, batches: int = 256, requests: int = 1024
) -> Tables:
    """Empty tables with room for `batches` in flight and `requests` queued or in flight."""
    hops = int(np.diff(topology.pipeline_stages).max(initial=0)) + 1
    pipelines = len(topology.pipeline_batch)
    vgpus = len(topology.vgpu_stage)
    links = max(topology.vgpu_up.max(initial=0), topology.vgpu_down.max(initial=0)) + 1
    resources = np.zeros(max(vgpus, int(links)), dtype=RESOURCE)
    resources["first"] = resources["last"] = NONE
    queues = np.zeros(len(topology.model_pipelines) - 1, dtype=QUEUE)
    queues["first"] = queues["last"] = queues["expired"] = NONE
    queues["timer_us"] = FAR
    counts = np.zeros(1, dtype=COUNTS)
    counts["policy"] = policy
    counts["ahead"] = policy == RESERVATION_AHEAD
    counts["free_batch"] = counts["free_request"] = NONE
    counts["told_us"] = FAR
    empty = Tables(
        topology=topology,
        intervals=np.zeros(0, dtype=INTERVAL),
        resources=resources,
        free_from_us=np.zeros(vgpus, dtype=np.int64),
        block_from_us=np.zeros(int(topology.stage_blocks[-1]), dtype=np.int64),
        batches=np.zeros(0, dtype=BATCH),
        requests=np.zeros(0, dtype=REQUEST),
        queues=queues,
        offers=np.zeros((pipelines, hops), dtype=OFFER),
        quotes=np.zeros(pipelines, dtype=QUOTE),
        paths=np.zeros((0, hops), dtype=np.int64),
        pending=np.zeros(0, dtype=np.int64),
        out=np.zeros((OUT_ROWS, OUT_COLUMNS), dtype=np.int64),
        counts=counts,
    )
    return with_room(empty, batches=batches, requests=requests)


def with_room(tables: Tables, *, batches: int, requests: int) -> Tables:
    """The same state with more free slots; the old tables are not to be used any more."""
    hops = tables.offers.shape[1]
    old_batches, old_requests = len(tables.batches), len(tables.requests)
    intervals = _longer(tables.intervals, batches * hops * KINDS)
    intervals["resource"][len(tables.intervals) :] = NONE
    batch_rows = _longer(tables.batches, batches)
    batch_rows["number"][old_batches:] = NONE
    request_rows = _longer(tables.requests, requests)
    request_rows["sequence"][old_requests:] = NONE
    counts = tables.counts
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
        paths=np.concatenate(
            [tables.paths, np.full((batches - old_batches, hops), NONE, dtype=np.int64)]
        ),
        pending=np.zeros(len(intervals), dtype=np.int64),
    )


def _longer(records: Records, length: int) -> Records:
    grown = np.zeros(max(length, len(records)), dtype=records.dtype)
    grown[: len(records)] = records
    return grown


def _chain(records: Records, link: str, first_new: int, first_free: int) -> int:
    """Chain the new slots in front of the free ones; returns the first free slot."""
    if first_new == len(records):
        return first_free
    records[link][first_new:] = np.arange(first_new + 1, len(records) + 1)
    records[link][-1] = first_free
    return first_new


@inlined
def interval_of(tables: Tables, batch: int, stage: int, kind: int) -> int:
    """Number of the interval that a batch slot reserves: `kind` at stage 0 .. (or moving into it)."""
    return (batch * tables.offers.shape[1] + stage) * KINDS + kind


@inlined
def tell(tables: Tables, kind: int, slot: int, reason: int, finish_us: int, position: int) -> None:
    """Add one row of `out`."""
    row = tables.counts[0]["out"]
    tables.out[row, 0] = kind
    tables.out[row, 1] = slot
    tables.out[row, 2] = reason
    tables.out[row, 3] = finish_us
    tables.out[row, 4] = position
    tables.counts[0]["out"] = row + 1
