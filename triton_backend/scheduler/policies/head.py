"""Policies that serve the head of a queue first: how large a batch fits, wait, dispatch, drop.

Which pipeline takes the head, what else makes it drop the head, when it waits beside a free path
and how vGPUs are compared (`rank_by`, see `probe`) is a policy's own.
"""

from collections.abc import Callable

from triton_backend.scheduler.compiled import FAR, NONE, inlined, kernel
from triton_backend.scheduler.jobs import drop_request
from triton_backend.scheduler.queues import make_batch, prefix
from triton_backend.scheduler.reservations.probe import commit, probe, probe_in_time
from triton_backend.scheduler.tables import DEADLINE, NEEDS_ROOM, SETTLED, Tables, lacks_batches


def head_first(
    choose: Callable[[Tables, int], int],
    wastes_capacity: Callable[[Tables, int, int, int], bool],
    needs_company: Callable[[Tables, int, int], bool],
    rank_by: int,
) -> Callable[[Tables, int], int]:
    """The kernel `decide(tables, queue)` of a policy: dispatch, drop or wait, head after head.

    Args:
        choose: a kernel that probes the pipelines of a queue at the batch it wishes for
            (`quoted_size` by default) and says which takes the head; NONE where none can hold it.
            What it leaves in `quotes` of that pipeline is the largest batch that is tried.
        wastes_capacity: a kernel that says of a queue, a pipeline and a batch size that fits the
            head's deadline whether the head is dropped nevertheless; `never_wastes` drops none.
        needs_company: a kernel that says of a queue that may wait, and a pipeline, whether it does
            so although nothing on its path is busy; `always_waits` lets it.
        rank_by: how vGPUs are compared.
    """

    @inlined
    def decide(tables: Tables, number: int) -> int:
        queue = tables.queues[number]
        queue["timer_us"] = FAR
        while queue["first"] != NONE:
            if out_of_room(tables):
                return NEEDS_ROOM
            pipeline = choose(tables, number)
            size = largest_in_time(tables, number, pipeline, rank_by)
            if size == 0 or wastes_capacity(tables, number, pipeline, size):
                drop_head(tables, number, pipeline)
            elif waits(tables, number, pipeline, size, rank_by) and (
                needs_company(tables, number, pipeline) or _path_is_busy(tables, number, pipeline)
            ):
                return SETTLED
            elif not dispatch_head(tables, number, pipeline, size, rank_by):
                drop_head(tables, number, pipeline)
        return SETTLED

    return decide


@inlined
def never_wastes(_tables: Tables, _number: int, _pipeline: int, _size: int) -> bool:
    """Every batch that ends by the head's deadline is dispatched."""
    return False


@inlined
def always_waits(_tables: Tables, _number: int, _pipeline: int) -> bool:
    """A queue that may wait waits until its last moment."""
    return True


@inlined
def out_of_room(tables: Tables) -> bool:
    """True if there is no batch slot or no row of `out` left to decide into."""
    counts = tables.counts[0]
    return lacks_batches(tables) or counts["out"] + counts["boards"] >= len(tables.out)


@inlined
def quoted_size(tables: Tables, number: int, pipeline: int) -> int:
    """Samples that the head's batch is chosen for: as planned, or the head alone.

    A pipeline that begins where batches join needs no other of its queue: it takes rows at
    once.
    """
    row = tables.topology.pipelines[pipeline]
    if tables.topology.stages[row["first_stage"]]["capacity"] > 0:
        return tables.requests[tables.queues[number]["first"]]["samples"]
    return row["batch"]


@kernel
def largest_in_time(tables: Tables, number: int, pipeline: int, rank_by: int) -> int:
    """Largest batch <= the one quoted that ends by the head's deadline, 0 where none does.

    The pipeline must have just been quoted, at its planned batch or a smaller one. Where the queue
    holds the batch, whole requests only. What is answered is what the pipeline was last quoted for.
    """
    if pipeline == NONE:
        return 0
    queue = tables.queues[number]
    now = tables.counts[0]["now_us"]
    head = tables.requests[queue["first"]]
    size = tables.quotes[pipeline]["samples"]
    while size >= head["samples"]:
        if size < queue["samples"]:
            size = prefix(tables, number, size)
        # path_us is the time with nothing else running: a bound that spares most probes
        if now + tables.topology.path_us[pipeline, size] <= head["deadline_us"]:
            quote = tables.quotes[pipeline]
            late = quote["finish_us"] > head["deadline_us"]
            if quote["samples"] != size or (late and tables.counts[0]["boards"] > 0):
                probe_in_time(tables, pipeline, size, now, head["deadline_us"], rank_by)
            if tables.quotes[pipeline]["finish_us"] <= head["deadline_us"]:
                return size
        size -= 1
    return 0


@kernel
def waits(tables: Tables, number: int, pipeline: int, size: int, rank_by: int) -> bool:
    """True if a queue that holds less than `size` waits for more; sets its timer then.

    It never waits twice for the same head: the timer would be set again and again for 1 µs.
    """
    queue = tables.queues[number]
    head = tables.requests[queue["first"]]["sequence"]
    if size <= queue["samples"] or queue["expired"] == head:
        return False
    if tables.topology.pipelines[pipeline]["boards"] > 0:
        moment = _last_moment_aboard(tables, number, pipeline, size, rank_by)
    else:
        moment = _last_moment(tables, number, pipeline, rank_by)
    queue["until_us"] = moment
    if moment > tables.counts[0]["now_us"]:
        queue["timer_us"] = moment
        return True
    queue["expired"] = head
    return False


@inlined
def _path_is_busy(tables: Tables, number: int, pipeline: int) -> bool:
    """True if all of a waiting queue could not run through at once; its timer is when it could."""
    queue = tables.queues[number]
    wait_us = tables.quotes[pipeline]["wait_us"]
    queue["timer_us"] = (
        FAR if wait_us == 0 else min(queue["timer_us"], tables.counts[0]["now_us"] + wait_us)
    )
    return wait_us > 0


@kernel
def _last_moment(tables: Tables, number: int, pipeline: int, rank_by: int) -> int:
    """Until when a queue may wait for one more request: the earlier of two instants.

    One µs after the queue with one more sample no longer fits, and the last instant at which the
    queue as it is still fits (they differ where a larger batch takes no longer).
    """
    queue = tables.queues[number]
    now = tables.counts[0]["now_us"]
    end_by = tables.requests[queue["first"]]["gather_by_us"]
    quote = tables.quotes[pipeline]
    moment = FAR
    # A batch that finishes at f after waiting w for resources could come w later and still finish
    # at f; until it must end there are end_by - f more.
    if now + tables.topology.path_us[pipeline, queue["samples"] + 1] <= end_by:
        probe(tables, pipeline, queue["samples"] + 1, now, rank_by)
        if quote["finish_us"] <= end_by:
            moment = now + (end_by - quote["finish_us"]) + quote["wait_us"] + 1
    probe(tables, pipeline, queue["samples"], now, rank_by)
    return min(moment, now + max(end_by - quote["finish_us"], 0) + quote["wait_us"])


@inlined
def _last_moment_aboard(tables: Tables, number: int, pipeline: int, size: int, rank_by: int) -> int:
    """Until when a queue may wait where a later stage boards.

    The shared batch needs time for company too. Where resources leave none, the queue waits as any
    other does while they are busy: a batch of one that is reserved far ahead would take the time of
    a full one.
    """
    topology = tables.topology
    now = tables.counts[0]["now_us"]
    first = topology.pipelines[pipeline]["first_stage"]
    latest = tables.requests[tables.queues[number]["first"]]["gather_by_us"]
    latest -= topology.stages[first]["company_us"] + topology.path_us[pipeline, size]
    if now + tables.quotes[pipeline]["wait_us"] <= latest:
        return latest
    return _last_moment(tables, number, pipeline, rank_by)


@kernel
def dispatch_head(tables: Tables, number: int, pipeline: int, size: int, rank_by: int) -> bool:
    """Reserve and dispatch the head of the queue: `size` samples, or all where there are fewer.

    False where it boards and these samples alone end too late, which no larger batch did.
    """
    size = min(size, tables.queues[number]["samples"])
    if tables.topology.pipelines[pipeline]["boards"] > 0:
        if not _quote_held(tables, number, pipeline, size, rank_by):
            return False
    elif tables.quotes[pipeline]["samples"] != size:
        probe(tables, pipeline, size, tables.counts[0]["now_us"], rank_by)
    commit(tables, pipeline, make_batch(tables, tables.queues[number]["first"], pipeline))
    return True


@kernel
def _quote_held(tables: Tables, number: int, pipeline: int, size: int, rank_by: int) -> bool:
    """Quote a batch whose shared batches wait for company where that is in time.

    False where it is late anyway.
    """
    counts = tables.counts[0]
    deadline = tables.requests[tables.queues[number]["first"]]["deadline_us"]
    counts["hold"] = 1
    held = probe(tables, pipeline, size, counts["now_us"], rank_by)
    counts["hold"] = 0
    if held <= deadline:
        return True
    return probe_in_time(tables, pipeline, size, counts["now_us"], deadline, rank_by) <= deadline


@kernel
def drop_head(tables: Tables, number: int, pipeline: int) -> None:
    """Drop the head; the drop carries the finish that the pipeline quoted last would have had."""
    finish = FAR if pipeline == NONE else tables.quotes[pipeline]["finish_us"]
    drop_request(tables, tables.queues[number]["first"], DEADLINE, finish)
