"""Policy `reservation-ahead`: `reservation` with an eye on what comes next.

It differs in four places:

1. On every stage but the last, `probe` compares vGPUs by when their uplink can take the batch on,
   not by when they finish (`BY_UPLINK`; ties: the one that finishes first, so that a scarce uplink
   has something to take when a batch is late; then the lowest number).
2. Of the pipelines that can hold the head, it takes the one that waits least among those whose
   offer for the planned batch ends by the head's deadline; only where there is none, the one that
   waits least (ties: plan order).
3. Where the head's deadline allows only a batch smaller than planned and the planned batch would
   have to wait for a resource, the head is dropped: vGPUs are short then, small batches use them
   badly, and every later head would be as late as this one.
4. A queue whose path is free waits only where its pools need larger batches to carry the rate that
   is measured. Below, waiting gains nothing but the latency of those that wait.

The figures that decided, and what else was tried, are in `../DECISIONS.md`.
"""

from triton_backend.scheduler.compiled import FAR, NONE, kernel
from triton_backend.scheduler.policies.company import needs_company
from triton_backend.scheduler.policies.head import head_first, quoted_size
from triton_backend.scheduler.queues import prefix
from triton_backend.scheduler.reservations.probe import BY_UPLINK, probe
from triton_backend.scheduler.tables import Tables
from triton_backend.scheduler.topology import pipelines_of


@kernel
def choose(tables: Tables, number: int) -> int:
    """The pipeline for the head: see 2 above; NONE where none can hold it."""
    topology = tables.topology
    head = tables.requests[tables.queues[number]["first"]]
    best = NONE
    least = FAR
    best_fit = NONE
    least_fit = FAR
    for pipeline in pipelines_of(topology, number):
        planned = topology.pipelines[pipeline]["batch"]
        if planned < head["samples"]:
            continue
        planned = quoted_size(tables, number, pipeline)
        probe(tables, pipeline, planned, tables.counts[0]["now_us"], BY_UPLINK)
        quote = tables.quotes[pipeline]
        if quote["finish_us"] <= head["deadline_us"] and quote["wait_us"] < least_fit:
            best_fit = pipeline
            least_fit = quote["wait_us"]
        if quote["wait_us"] < least:
            least = quote["wait_us"]
            best = pipeline
    return best_fit if best_fit != NONE else best


@kernel
def wastes_capacity(tables: Tables, number: int, pipeline: int, size: int) -> bool:
    """True if vGPUs are so busy that a batch smaller than planned would cost more than it serves.

    A batch that is smaller because whole requests do not fill it is as good as planned.
    """
    planned = quoted_size(tables, number, pipeline)
    most = planned
    if planned < tables.queues[number]["samples"]:
        most = prefix(tables, number, planned)
    if size >= most:
        return _fills_badly(tables, pipeline)
    probe(tables, pipeline, planned, tables.counts[0]["now_us"], BY_UPLINK)
    return tables.quotes[pipeline]["wait_us"] > 0


@kernel
def _fills_badly(tables: Tables, pipeline: int) -> bool:
    """True if what is offered opens a shared batch that is smaller than planned and has to wait.

    False where pools carry the measured rate in batches as small as that.
    """
    row = tables.topology.pipelines[pipeline]
    if row["boards"] == 0:
        return False
    for hop in range(row["stages"]):
        planned = tables.topology.stages[row["first_stage"] + hop]["capacity"]
        offer = tables.offers[pipeline, hop]
        small = offer["shared_batch"] == NONE and offer["capacity"] < planned
        if small and offer["start_us"] > offer["move_end_us"]:
            return needs_company(tables, pipeline, offer["capacity"], 0.0)
    return False


@kernel
def lacks_company(tables: Tables, number: int, pipeline: int) -> bool:
    """True if pools carry the measured rate only in larger batches than what the queue holds.

    A queue whose batches join others later waits: how full those become is not reckoned here.
    """
    if tables.topology.pipelines[pipeline]["boards"] > 0:
        return True
    return needs_company(tables, pipeline, tables.queues[number]["samples"], 0.0)


POLICIES = {
    "reservation-ahead": head_first(choose, wastes_capacity, lacks_company, BY_UPLINK),
}
