"""Policy `triton`: the dynamic batcher of Triton Inference Server, for simulation only.

Every vGPU holds an instance of each model of its pool, and runs one batch at a time (Triton's rate
limiter with one resource a vGPU). A model has one queue, in the order of arrival, and of what waits
a free instance takes (Triton user guide, "Dynamic Batcher")

    the largest preferred size   where that many samples wait; preferred are the planned batch
                                 and the largest
    all that waits               once the oldest has waited for the maximum queue delay (0 unless
                                 given)
    nothing                      else

Deadlines change no order and no size: a request that ends late is answered late. One whose deadline
passes while it waits is rejected when it would head a batch, as by `default_timeout_microseconds` =
SLO with action REJECT. Of several models that one vGPU could run, the one whose oldest request came
first goes (ties: the lower number); of several free vGPUs the lowest number is taken.

The maximum queue delay is `--batch-timeout-ms`, or `--batch-timeout-share` of each SLO.

Compiled, as an exhaustive search runs it thousands of times. At one instant ends come first, then
the instants at which a delay is over, then arrivals.
"""

from typing import NamedTuple

import numpy as np

from triton_backend.contract.plan import Plan
from triton_backend.contract.units import ms_to_us
from triton_backend.scheduler.compiled import FAR, NONE, Integers, Records, entry, inlined, kernel
from triton_backend.scheduler.policies.late_rules import TIMEOUTS
from triton_backend.simulator.cluster.workers import ONE
from triton_backend.simulator.early_end import looks_us, surely_below
from triton_backend.simulator.heap import EVENT, STAGE_DONE, TIMER, remove_first, sift_up
from triton_backend.simulator.papers.unreserved import Clock, refuse, result_of
from triton_backend.simulator.papers.whole_models import Row, rows_of
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.scenario import SimOptions
from triton_backend.simulator.world import DROPPED, LATE, SERVED, USE_RECORD

TRITON = "triton"

ROW = np.dtype(
    [(name, np.int64) for name in ("model", "first_vgpu", "end_vgpu", "planned", "largest")]
)
QUEUE = np.dtype(
    # `head` and `tail` are places in `Batcher.order`, `waiting` counts samples
    [(name, np.int64) for name in ("first_row", "end_row", "head", "tail", "waiting")]
)
VGPU = np.dtype(
    # `first` is a place in `Batcher.order`; a number of NONE: it is free
    [(name, np.int64) for name in ("row", "first", "size", "samples", "start_us", "number")]
)
STATE = np.dtype(
    [(name, np.int64) for name in ("now_us", "arrival", "events", "batches", "uses", "steps")]
)


class Batcher(NamedTuple):
    """State of a run.

    Attributes:
        rows: [row] every model on every pool that runs it.
        latency_us: [row, samples] of a batch.
        requests: [request] `world.REQUEST_RECORD`, by arrival.
        delays_us: [request] for how long it may wait for a batch.
        order: [request] numbers of requests by model, then by arrival; queues are stretches of it.
        queues: [model] what waits.
        vgpus: [vGPU] what runs.
        heap: [vGPU + request + 2] ends of batches, one at most per vGPU, and of delays.
        busy_us: [vGPU] time in use so far.
        uses: [batch] `world.USE_RECORD`, by end.
        factors: what table latencies are multiplied with, in turn, in 1 / `ONE`.
        state: [1] all that there is one of.
    """

    rows: Records
    latency_us: Integers
    requests: Records
    delays_us: Integers
    order: Integers
    queues: Records
    vgpus: Records
    heap: Records
    busy_us: Integers
    uses: Records
    factors: Integers
    state: Records


def simulate(
    plan: Plan,
    options: SimOptions,
    requests: Records,
    factors: Integers,
    clock_ns: Clock,
) -> SimResult:
    """A run of the policy.

    Args:
        plan: what serves; whole models.
        options: what is offered and how.
        requests: `world.REQUEST_RECORD` rows by arrival; their outcomes are filled in.
        factors: what table latencies are multiplied with, in turn, in 1 / `ONE`.
        clock_ns: where the wall time is wanted.

    Raises:
        InputError: an option that needs reservations, or a plan with stages, entries or
            applications.
    """
    refuse(plan, options, TIMEOUTS, links=False)
    rows = rows_of(plan, options)
    _run(_new_batcher(plan, rows, requests[:0], factors, options), FAR)  # compiled before the clock
    batcher = _new_batcher(plan, rows, requests, factors, options)
    start_ns = clock_ns() if clock_ns else 0
    for look_us in (*looks_us(options.duration_s, options.give_up_below), FAR):
        _run(batcher, look_us)
        if surely_below(requests, options.give_up_below):
            break
    wall_seconds = (clock_ns() - start_ns) / 1e9 if clock_ns else None
    state = batcher.state[0]
    return result_of(
        plan,
        options,
        requests,
        batcher.uses[: int(state["uses"])],
        batcher.busy_us,
        now_us=int(state["now_us"]),
        steps=int(state["steps"]),
        wall_seconds=wall_seconds,
    )


def _new_batcher(
    plan: Plan, known: tuple[Row, ...], requests: Records, factors: Integers, options: SimOptions
) -> Batcher:
    """Idle instances before the first arrival."""
    rows = np.zeros(len(known), dtype=ROW)
    latency_us = np.zeros((len(known), 1 + max(row.largest for row in known)), dtype=np.int64)
    queues = np.zeros(len(plan.models), dtype=QUEUE)
    for number, row in enumerate(known):
        rows[number] = (row.model, row.vgpus.start, row.vgpus.stop, row.planned, row.largest)
        latency_us[number, 1 : 1 + row.largest] = row.latency_us
    places = np.arange(len(queues))
    queues["first_row"] = np.searchsorted(rows["model"], places, side="left")
    queues["end_row"] = np.searchsorted(rows["model"], places, side="right")
    order = np.argsort(requests["model"], kind="stable")
    queues["head"] = np.searchsorted(requests["model"][order], places, side="left")
    queues["tail"] = queues["head"]
    vgpus = np.zeros(len(plan.vgpus()), dtype=VGPU)
    vgpus["number"] = NONE
    return Batcher(
        rows=rows,
        latency_us=latency_us,
        requests=requests,
        delays_us=_delays_us(requests, options),
        order=order,
        queues=queues,
        vgpus=vgpus,
        heap=np.zeros(len(vgpus) + len(requests) + 2, dtype=EVENT),
        busy_us=np.zeros(len(vgpus), dtype=np.int64),
        uses=np.zeros(len(requests) + 1, dtype=USE_RECORD),
        factors=factors,
        state=np.zeros(1, dtype=STATE),
    )


def _delays_us(requests: Records, options: SimOptions) -> Integers:
    """The maximum queue delay of every request."""
    if options.batch_timeout_ms:
        return np.full(len(requests), ms_to_us(options.batch_timeout_ms), dtype=np.int64)
    slos_us = requests["deadline_us"] - requests["arrival_us"]
    return np.rint((options.batch_timeout_share or 0.0) * slos_us).astype(np.int64)


@entry
def _run(batcher: Batcher, until_us: int) -> None:
    """Let everything happen that happens before an instant."""
    state = batcher.state[0]
    while True:
        arrival = FAR
        if state["arrival"] < len(batcher.requests):
            arrival = batcher.requests[state["arrival"]]["arrival_us"]
        if state["events"] > 0 and batcher.heap[0]["at_us"] <= arrival:
            if batcher.heap[0]["at_us"] >= until_us:
                return
            _happen(batcher)
        elif arrival < until_us:
            state["now_us"] = arrival
            request = state["arrival"]
            state["arrival"] += 1
            _arrive(batcher, request)
        else:
            return
        state["steps"] += 1


@inlined
def _happen(batcher: Batcher) -> None:
    """The first event: a vGPU ends its batch, or the oldest of a model has waited long enough."""
    state = batcher.state[0]
    state["now_us"] = batcher.heap[0]["at_us"]
    kind = batcher.heap[0]["kind"]
    subject = batcher.heap[0]["subject"]
    remove_first(batcher.heap, state["events"])
    state["events"] -= 1
    if kind == TIMER:
        _look(batcher, subject)
    else:
        _answer(batcher, subject)
        _fill(batcher, subject)


@kernel
def _arrive(batcher: Batcher, number: int) -> None:
    """Wait up to the maximum delay unless a batch of a preferred size is there."""
    model = batcher.requests[number]["model"]
    queue = batcher.queues[model]
    queue["tail"] += 1
    queue["waiting"] += batcher.requests[number]["samples"]
    if batcher.delays_us[number] > 0:
        _push(batcher, batcher.state[0]["now_us"] + batcher.delays_us[number], TIMER, model)
    _look(batcher, model)


@kernel
def _look(batcher: Batcher, model: int) -> None:
    """Every free instance of a model takes a batch, while any waits."""
    queue = batcher.queues[model]
    for row in range(queue["first_row"], queue["end_row"]):
        for vgpu in range(batcher.rows[row]["first_vgpu"], batcher.rows[row]["end_vgpu"]):
            if queue["head"] == queue["tail"]:
                return
            if batcher.vgpus[vgpu]["number"] == NONE:
                _fill(batcher, vgpu)


@kernel
def _fill(batcher: Batcher, vgpu: int) -> None:
    """Of the models that have a batch for a free vGPU the one goes that has waited longest."""
    best = oldest = size = 0
    for number in range(len(batcher.rows)):
        row = batcher.rows[number]
        if row["first_vgpu"] <= vgpu < row["end_vgpu"]:
            found = _batch(batcher, number)
            if found > 0:
                head = batcher.order[batcher.queues[row["model"]]["head"]]
                if size == 0 or head < oldest:
                    best, oldest, size = number, head, found
    if size > 0:
        _start(batcher, vgpu, best, size)


@kernel
def _batch(batcher: Batcher, number: int) -> int:
    """Requests in the batch of a free instance; rejects those past their deadline."""
    row = batcher.rows[number]
    queue = batcher.queues[row["model"]]
    now = batcher.state[0]["now_us"]
    largest = row["largest"]
    while queue["head"] < queue["tail"]:
        request = batcher.requests[batcher.order[queue["head"]]]
        if request["deadline_us"] >= now and request["samples"] <= largest:
            break
        request["outcome"] = DROPPED
        request["finish_us"] = now
        queue["head"] += 1
        queue["waiting"] -= request["samples"]
    if queue["head"] == queue["tail"]:
        return 0
    for size in (max(row["planned"], largest), min(row["planned"], largest)):
        if queue["waiting"] >= size:
            found = _within(batcher, row["model"], size)
            if found > 0:
                return found
    head = batcher.order[queue["head"]]
    if now >= batcher.requests[head]["arrival_us"] + batcher.delays_us[head]:
        return _within(batcher, row["model"], largest)
    return 0


@inlined
def _within(batcher: Batcher, model: int, most: int) -> int:
    """How many whole requests from the head hold at most so many samples."""
    queue = batcher.queues[model]
    place = queue["head"]
    left = most
    while place < queue["tail"]:
        left -= batcher.requests[batcher.order[place]]["samples"]
        if left < 0:
            break
        place += 1
    return place - queue["head"]


@kernel
def _start(batcher: Batcher, vgpu: int, row: int, size: int) -> None:
    """Run the first requests of a queue as one batch on a vGPU that is free."""
    state = batcher.state[0]
    queue = batcher.queues[batcher.rows[row]["model"]]
    samples = 0
    for place in range(queue["head"], queue["head"] + size):
        samples += batcher.requests[batcher.order[place]]["samples"]
    run = batcher.vgpus[vgpu]
    run["row"] = row
    run["first"] = queue["head"]
    run["size"] = size
    run["samples"] = samples
    run["start_us"] = state["now_us"]
    run["number"] = state["batches"]
    queue["head"] += size
    queue["waiting"] -= samples
    factor = batcher.factors[state["batches"] % len(batcher.factors)]
    state["batches"] += 1
    length = max(1, batcher.latency_us[row, samples] * factor // ONE)
    _push(batcher, state["now_us"] + length, STAGE_DONE, vgpu)


@kernel
def _answer(batcher: Batcher, vgpu: int) -> None:
    """A vGPU is free from now on, what it ran is answered."""
    state = batcher.state[0]
    run = batcher.vgpus[vgpu]
    now = state["now_us"]
    for place in range(run["first"], run["first"] + run["size"]):
        request = batcher.requests[batcher.order[place]]
        request["outcome"] = SERVED if now <= request["deadline_us"] else LATE
        request["finish_us"] = now
        request["dispatch_us"] = run["start_us"]
        request["batch_id"] = run["number"]
        request["batch_samples"] = run["samples"]
    batcher.busy_us[vgpu] += now - run["start_us"]
    use = batcher.uses[state["uses"]]
    use["vgpu"] = vgpu
    use["batch_id"] = run["number"]
    use["start_us"] = run["start_us"]
    use["end_us"] = now
    use["samples"] = run["samples"]
    use["model"] = batcher.rows[run["row"]]["model"]
    state["uses"] += 1
    run["number"] = NONE


@inlined
def _push(batcher: Batcher, at_us: int, kind: int, subject: int) -> None:
    """Equal instants: ends, then delays, each in the order of vGPUs or models."""
    state = batcher.state[0]
    event = batcher.heap[state["events"]]
    event["at_us"] = at_us
    event["kind"] = kind
    event["sequence"] = subject
    event["subject"] = subject
    state["events"] += 1
    sift_up(batcher.heap, state["events"])
