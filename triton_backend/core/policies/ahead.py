"""Policy `reservation-ahead`: `reservation` with an eye on what comes next.

It differs in three places, each of which won in `scripts/bench_simulator.py`:

1. On every stage but the last, `probe` compares vGPUs by when their uplink can take the batch on,
   not by when they finish (`Tables.counts.ahead`; ties: the lowest number).
2. Of the pipelines that can hold the head, it takes the one that waits least among those whose
   offer for the planned batch ends by the head's deadline; only where there is none, the one that
   waits least (ties: plan order).
3. Where the head's deadline allows only a batch smaller than planned and the planned batch would
   have to wait for a resource, the head is dropped: vGPUs are short then, small batches use them
   badly, and every later head would be as late as this one.

Tried and lost: see `core/README.md`.
"""

from triton_backend.core.compiled import FAR, NONE, kernel
from triton_backend.core.policies.reservation import largest_in_time, last_moment
from triton_backend.core.probe import commit, probe
from triton_backend.core.queues import drop, make_batch
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
        pipeline = _choose(tables, model)
        size = largest_in_time(tables, model, pipeline) if pipeline != NONE else 0
        if size == 0:
            finish = FAR if pipeline == NONE else tables.quotes[pipeline]["finish_us"]
            drop(tables, head, DEADLINE, finish)
        elif size < tables.topology.pipeline_batch[pipeline] and _hinders(tables, pipeline):
            drop(tables, head, DEADLINE, tables.quotes[pipeline]["finish_us"])
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
def _choose(tables: Tables, model: int) -> int:
    """The pipeline for the head: see 2 above; NONE where none can hold it."""
    topology = tables.topology
    head = tables.requests[tables.queues[model]["first"]]
    best = NONE
    least = FAR
    best_fit = NONE
    least_fit = FAR
    for pipeline in range(topology.model_pipelines[model], topology.model_pipelines[model + 1]):
        planned = topology.pipeline_batch[pipeline]
        if planned < head["samples"]:
            continue
        probe(tables, pipeline, planned, tables.counts[0]["now_us"])
        quote = tables.quotes[pipeline]
        if quote["finish_us"] <= head["deadline_us"] and quote["wait_us"] < least_fit:
            best_fit = pipeline
            least_fit = quote["wait_us"]
        if quote["wait_us"] < least:
            least = quote["wait_us"]
            best = pipeline
    return best_fit if best_fit != NONE else best


@kernel
def _hinders(tables: Tables, pipeline: int) -> bool:
    """Whether vGPUs are busy enough that a small batch would cost more than it serves."""
    probe(tables, pipeline, tables.topology.pipeline_batch[pipeline], tables.counts[0]["now_us"])
    return tables.quotes[pipeline]["wait_us"] > 0
