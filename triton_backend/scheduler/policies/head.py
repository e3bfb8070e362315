"""What every policy does with the head of a line: how large a batch fits, waiting, sending, giving up.

Which pipeline takes the head, and what else makes it give up, is a policy's own.
"""

from triton_backend.scheduler.compiled import FAR, NONE, inlined, kernel
from triton_backend.scheduler.probe import commit, probe
from triton_backend.scheduler.queues import drop, make_batch, prefix
from triton_backend.scheduler.tables import DEADLINE, Tables


@inlined
def out_of_room(tables: Tables) -> bool:
    """Whether there is no batch slot or no row of `out` left to decide into."""
    counts = tables.counts[0]
    return counts["free_batch"] == NONE or counts["out"] == len(tables.out)


@kernel
def largest_in_time(tables: Tables, model: int, pipeline: int) -> int:
    """Largest batch <= planned that ends by the head's deadline, 0 where none does.

    The pipeline must have just been quoted at its planned batch. Where the line holds the batch,
    whole requests only. What is answered is what the pipeline was last quoted for.
    """
    if pipeline == NONE:
        return 0
    queue = tables.queues[model]
    now = tables.counts[0]["now_us"]
    head = tables.requests[queue["first"]]
    size = tables.quotes[pipeline]["samples"]
    while size >= head["samples"]:
        if size < queue["samples"]:
            size = prefix(tables, model, size)
        if now + tables.topology.path_us[pipeline, size] <= head["deadline_us"]:
            if tables.quotes[pipeline]["samples"] != size:
                probe(tables, pipeline, size, now)
            if tables.quotes[pipeline]["finish_us"] <= head["deadline_us"]:
                return size
        size -= 1
    return 0


@kernel
def waits(tables: Tables, model: int, pipeline: int, size: int) -> bool:
    """Whether a line that holds less than `size` waits for more; sets its timer then.

    It never waits twice for the same head.
    """
    queue = tables.queues[model]
    head = tables.requests[queue["first"]]["sequence"]
    if size <= queue["samples"] or queue["expired"] == head:
        return False
    moment = _last_moment(tables, model, pipeline)
    if moment > tables.counts[0]["now_us"]:
        queue["timer_us"] = moment
        return True
    queue["expired"] = head
    return False


@kernel
def _last_moment(tables: Tables, model: int, pipeline: int) -> int:
    """Until when a line may wait for one more request: the earlier of two instants.

    One µs after the line with one more sample no longer fits, and the last instant at which the
    line as it is still fits (they differ where a larger batch takes no longer).
    """
    queue = tables.queues[model]
    now = tables.counts[0]["now_us"]
    deadline = tables.requests[queue["first"]]["deadline_us"]
    quote = tables.quotes[pipeline]
    moment = FAR
    if now + tables.topology.path_us[pipeline, queue["samples"] + 1] <= deadline:
        probe(tables, pipeline, queue["samples"] + 1, now)
        if quote["finish_us"] <= deadline:
            moment = now + (deadline - quote["finish_us"]) + quote["wait_us"] + 1
    probe(tables, pipeline, queue["samples"], now)
    return min(moment, now + max(deadline - quote["finish_us"], 0) + quote["wait_us"])


@kernel
def send(tables: Tables, model: int, pipeline: int, size: int) -> None:
    """Reserve and dispatch the head of the line: `size` samples, or all where there are fewer."""
    size = min(size, tables.queues[model]["samples"])
    if tables.quotes[pipeline]["samples"] != size:
        probe(tables, pipeline, size, tables.counts[0]["now_us"])
    commit(tables, pipeline, make_batch(tables, model, pipeline))


@kernel
def give_up(tables: Tables, model: int, pipeline: int) -> None:
    """Drop the head; it is told when the pipeline last quoted would have finished."""
    finish = FAR if pipeline == NONE else tables.quotes[pipeline]["finish_us"]
    drop(tables, tables.queues[model]["first"], DEADLINE, finish)
