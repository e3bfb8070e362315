"""Policy `reservation`: resource-reservation-based adaptive batching (PPipe, Algorithm 1).

For the head of a model's line, again and again until the line is empty or waits:

1. Of the pipelines that can hold the head, take the one whose probe at its planned batch waits
   least (ties: plan order).
2. From its planned batch downwards, find the largest that finishes by the head's deadline.
3. None: drop the head. More than what is queued: wait until one more request would no longer fit,
   then dispatch what is there; never wait twice for the same head. Else dispatch.

A request of several samples counts as that many and is never split: where the line holds a batch,
its size is the longest run of whole requests that fits.
"""

from triton_backend.core.compiled import FAR, NONE, kernel
from triton_backend.core.probe import commit, probe
from triton_backend.core.queues import drop, make_batch, prefix
from triton_backend.core.tables import DEADLINE, MORE, SETTLED, Tables


@kernel
def decide(tables: Tables, model: int) -> int:
    """Dispatch, drop or wait for one model's line at `now_us`; `SETTLED` or `MORE`."""
    queue = tables.queues[model]
    counts = tables.counts[0]
    queue["timer_us"] = FAR
    while queue["first"] != NONE:
        if counts["free_batch"] == NONE or counts["out"] == len(tables.out):
            return MORE
        head = queue["first"]
        pipeline = least_waiting(tables, model, tables.requests[head]["samples"])
        size = largest_in_time(tables, model, pipeline) if pipeline != NONE else 0
        if size == 0:
            finish = FAR if pipeline == NONE else tables.quotes[pipeline]["finish_us"]
            drop(tables, head, DEADLINE, finish)
        elif size > queue["samples"] and queue["expired"] != tables.requests[head]["sequence"]:
            queue["timer_us"] = last_moment(tables, model, pipeline)
            if queue["timer_us"] > counts["now_us"]:
                return SETTLED
            queue["timer_us"] = FAR
            queue["expired"] = tables.requests[head]["sequence"]
        else:
            size = min(size, queue["samples"])
            if tables.quotes[pipeline]["samples"] != size:
                probe(tables, pipeline, size, counts["now_us"])
            commit(tables, pipeline, make_batch(tables, model, pipeline))
    return SETTLED


@kernel
def least_waiting(tables: Tables, model: int, samples: int) -> int:
    """The pipeline whose offer for its planned batch waits least; NONE where none can hold it."""
    topology = tables.topology
    best = NONE
    least = FAR
    for pipeline in range(topology.model_pipelines[model], topology.model_pipelines[model + 1]):
        planned = topology.pipeline_batch[pipeline]
        if planned < samples:
            continue
        probe(tables, pipeline, planned, tables.counts[0]["now_us"])
        if tables.quotes[pipeline]["wait_us"] < least:
            least = tables.quotes[pipeline]["wait_us"]
            best = pipeline
    return best


@kernel
def largest_in_time(tables: Tables, model: int, pipeline: int) -> int:
    """Largest batch <= planned that ends by the head's deadline, 0 where none does.

    The pipeline must have just been quoted at its planned batch. Where the line holds the batch,
    whole requests only. What is answered is what the pipeline was last quoted for.
    """
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
def last_moment(tables: Tables, model: int, pipeline: int) -> int:
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
