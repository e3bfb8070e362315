"""A plan as flat arrays: what the kernels may read and never write. Paces may be corrected.

Queues (an entry of a model each), their pipelines and the stages of those are rows, so that what
belongs together are neighbours. Stages name pools, and several may name the same one:

    queues      | queue 0                     | queue 1              [first_pipeline, end_pipeline)
    pipelines   | pipeline 0   | pipeline 1   | pipeline 2           first_stage, stages
    stages      | row 0  row 1 | row 2        | row 3  row 4         pool
    pools       |   0      1       2          |   1      3           [first_vgpu, end_vgpu)
    vgpus       | 0  1  2  3 | 4  5 | 6  7  8 | 9                    as `Plan.vgpus` numbers them

Resources are numbered: first every vGPU, then the links. A link carries one transfer at a time at
the full rate.

`nic="shared"`: one uplink and one downlink per node, whatever runs there. `nic="isolated"`: every
pipeline has an uplink and a downlink of its own on each node, and every vGPU of a last stage a
downlink of its own (what the published PPipe simulator assumes).
"""

from typing import Literal, NamedTuple

import numpy as np

from triton_backend.contract.units import TIME_BOUNDS_US
from triton_backend.scheduler.compiled import Integers, Records, inlined

Nic = Literal["shared", "isolated"]


class LinkPace(NamedTuple):
    """Time that a transfer over a node's uplink or downlink takes, in percent of the planned."""

    up: int
    down: int


AS_PLANNED = LinkPace(100, 100)
BLOCK = 16  # vGPUs per entry of a pool's index
MOST_SEATS = 128  # of a joint batch: what its end decides fits one answer
RATE_SHIFT = 24  # gaps between requests and their mean size are in 2^-24 µs and samples
LONGEST_GAP_US = 1 << 26  # longer gaps count as this
LOW = 2  # `late` of a queue of low requests
PARTS = 1024  # unit of pipelines' shares of their queue's requests


class LateRules(NamedTuple):
    """Rules of a late policy as the numbers that `policies.late` gives them.

    Attributes:
        grows: whether batches may be larger than planned,
        grows_alone: or only where no other stage waits for its turn.
        target: how large a batch shall be.
        timeout_us, timeout_share: how long after its head's arrival a candidate opens: a time, or a
            share of the budget where that is not 0.
    """

    opens: int
    heads: int
    rank: int
    grows: bool = True
    grows_alone: bool = False
    target: int = 0
    timeout_us: int = 0
    timeout_share: float = 0.0


class QueuePolicy(NamedTuple):
    """How a model's queues are decided for.

    Attributes:
        number: of the policy, in the registry.
        rules: for late binding, see `policies.late`; None for early binding.
    """

    number: int
    rules: LateRules | None = None


class Lead(NamedTuple):
    """How long before its start a batch must be sent (µs): `fixed` + n x `per_sample`."""

    fixed: int = 0
    per_sample: int = 0


NO_LEAD = Lead()


class SharedBatchTimes(NamedTuple):
    """The time shared batches get where messages take time (µs); 0 where they take none.

    Attributes:
        doors_us: so long before its start no batch boards any more: the worker would not hear of
            it.
        patience_us: a shared batch waits so long at least for a member that is late, though others
            become later than reserved: what the shell keeps back of deadlines pays for that.
    """

    doors_us: int = 0
    patience_us: int = 0


PUNCTUAL = SharedBatchTimes()

QUEUE_PLAN = np.dtype(
    [
        (name, np.int64)
        for name in (
            "model",  # NONE: of requests whose model the plan does not have (`with_orphans`)
            "first_pipeline",
            "end_pipeline",
            "largest",  # samples that one batch may hold
            "policy",  # its number in the registry
            "late",  # 1 for late binding; `LOW` of low requests (`policies.low`)
            "opens",
            "heads",
            "rank",
            "target",
            "timeout_us",
            "budget_us",
            "gap",  # planned time between requests, in 2^-`RATE_SHIFT` µs; 0 where none is planned
        )
    ]
)
PIPELINE = np.dtype(
    [
        (name, np.int64)
        for name in (
            "queue",
            "number",  # its place among the model's pipelines in the plan
            "batch",  # planned samples
            "largest",  # samples that a batch may hold
            "first_stage",
            "stages",
            "pool",  # of its first stage
            "place",  # of its candidate: those of a pool stand side by side
            "placed",  # pipeline whose candidate is in this place
            "part",  # of its queue's planned rate, in 1/`PARTS`
            "ranked",  # pipeline that is in this place among its queue's, by cost per sample
            "efficient",  # the batch with the least latency per sample in its first stage
            "boards",  # how many of its stages join batches with other pipelines
            "source",  # vGPU that stands for the one node its rows come from; NONE: several, none
        )
    ]
)
STAGE = np.dtype(
    [
        (name, np.int64)
        for name in (
            "pipeline",
            "last",  # 1 for the last stage of a pipeline
            "pool",
            "capacity",  # samples of one joint batch; 0 where batches run alone
            "company_us",  # time that stages after it want for company, beyond the batch alone
        )
    ]
)
POOL = np.dtype(
    [
        (name, np.int64)
        for name in (
            "first_vgpu",
            "end_vgpu",
            "first_block",  # of the index: a block per `BLOCK` vGPUs, the last one may be shorter
            "end_block",
            "up_rate",  # fastest uplink of its vGPUs
            "down_rate",  # fastest downlink
            "ahead_us",  # least time from a dispatch to the start of any of its stages, any batch
            "least_us",  # least latency of any of its stages
            "first_candidate",  # candidates that begin here are in places from this one on
            "end_candidate",
        )
    ]
)
VGPU = np.dtype(
    [
        (name, np.int64)
        for name in (
            "pool",
            "up_rate",  # of its node's uplink, as an index of `move_us`
            "down_rate",
            "uplink",  # resource
            "downlink",
        )
    ]
)

# Times by bucket of `TIME_BOUNDS_US`, and their sums in µs; the last bucket lies above all bounds.
# For the shell, which reads them now and then: nothing is decided by them.
TIMES = [(name, np.int64, (len(TIME_BOUNDS_US) + 1,)) for name in ("times", "times_us")]
MODULE = np.dtype(
    [
        (name, np.int64)
        for name in (
            "application",
            "modules",  # of its application; they stand together, in its order
            "place",  # among them
            "queue",  # of its model
            "rows",  # per sample of a job; NONE where they vary
            "max_rows",  # per sample
            "piece",  # rows of a task at most, of which every batch of the model is filled
            "optional",
            "parents",
            "first_edge",  # to the modules after it
            "end_edge",
            "tail_us",  # longest sum of budgets below it
            # the least way through required modules below it, nothing else running
            "least_tail_us",
            "slo_us",
        )
    ]
    + TIMES  # of its tasks, from their rows' being there to the end
)
EDGE = np.dtype(
    [
        (name, np.int64)
        for name in (
            "child",  # place in the application
            "part",  # its place in `Tables.parts`
            "gives_rows",  # 1 where what comes over it says how many rows the child runs
        )
    ]
)


class Topology(NamedTuple):
    """Arrays that only `set_pace` changes.

    N counts samples, rate numbers link rates from slow to fast. Few arrays, because a call between
    kernels hands each of them over: where every attribute of a stage or vGPU was an array of its
    own, simulated requests took more than twice the time.

    Attributes:
        queues: [queue] `QUEUE_PLAN`; behind those of the plan, one for the low requests of each.
        pipelines: [pipeline] `PIPELINE`.
        stages: [stage row] `STAGE`.
        pools: [pool] `POOL`.
        vgpus: [vGPU] `VGPU`.
        latency_us: [stage row, n].
        move_us: [stage row, rate, n] to move n samples *into* the stage.
        answer_us: [pipeline, rate, n] to move the answer back to the gateway.
        path_us: [pipeline, n] least time from dispatch to answer, nothing else running; for late
            binding with the lead, and at least that of any smaller batch.
    """

    queues: Records
    pipelines: Records
    stages: Records
    pools: Records
    vgpus: Records
    latency_us: Integers
    move_us: Integers
    answer_us: Integers
    path_us: Integers


@inlined
def pipelines_of(topology: Topology, queue: int) -> range:
    """Numbers of a queue's pipelines."""
    row = topology.queues[queue]
    return range(row["first_pipeline"], row["end_pipeline"])


@inlined
def first_low(topology: Topology) -> int:
    """Number of the first queue of low requests; one past all others.

    That of queue q is q + this.
    """
    return len(topology.queues) // 2


@inlined
def pool_of(topology: Topology, stage: int) -> int:
    """Number of a stage row's pool."""
    return topology.stages[stage]["pool"]


@inlined
def vgpus_of(topology: Topology, pool: int) -> range:
    """Numbers of a pool's vGPUs."""
    row = topology.pools[pool]
    return range(row["first_vgpu"], row["end_vgpu"])


def resource_count(topology: Topology) -> int:
    """Number of vGPUs and links together."""
    vgpus = topology.vgpus
    links = max(vgpus["uplink"].max(initial=-1), vgpus["downlink"].max(initial=-1)) + 1
    return max(len(vgpus), int(links))


def block_count(topology: Topology) -> int:
    """Number of blocks of all pools' indexes."""
    return int(topology.pools["end_block"].max(initial=0))


def part_count(modules: Records, edges: Records) -> int:
    """Parts of a job at most: modules and edges of its application."""
    return int(max(modules["modules"].max(initial=0), edges["part"].max(initial=-1) + 1))
