"""Late binding: a batch stays open until a path is free for it.

Then the queues that want it compete. Early binding fixes a batch and reserves its path as soon as
it fits. Here every pipeline has a
*candidate*: the batch that its queue would send now. It may be sent from `opens` on, at the latest
at `latest`, and only when its whole path is free at once (less a lead for the way to the worker):

        opens                       latest      deadline of the head d
    ------|===========================|------------|
          while it waits, requests join            |
          '---- b samples sent here end by d ------'

    latest = d - L(b)        L(b): path of b samples, transfers and lead in it, made monotone
    frontrun = d - L(b + 1) + 1   from here on no new request could join

Policies of the family differ in three rules (Symphony, sections 3.1 to 3.4; gpulets, 3.8):

    name       opens             heads     rank among queues that want one free vGPU
    deferred   frontrun          window    least latest
    eager      now               window    least latest
    timeout    now, or           window    least latest
               head's arrival+k
    latest     latest            window    least latest
    turns      now               head      least recently served (planned batches, one stage)
    turns-window: the same with window; a model that shares its vGPU with no other may send larger
    batches

`timeout` opens now where pools carry the measured rate in batches of what the candidate holds and
have `SPARE` vGPUs free (`company`), for queues compete for them. A time-out that is stated
(`late_rules`) is fixed: it opens then, whatever the rate.

Heads `window`: a head goes that would make every batch after it smaller than the target; else one
bad burst leaves batches of one for ever. `head`: a head goes when nothing can serve it in time.
Target `planned`: the planned batch. `measured`: the largest b that fills as it must at the rate r
that requests come with, L(b) + b / r <= budget (Symphony, equations 1 and 2); see `measure_rate`.
Where a queue has several pipelines, a slower one passes over heads that only a faster one still
serves in time: its candidate begins with the first request that it can keep. Only what no pipeline
keeps is dropped. Rank `efficiency` is an ablation: least time of a vGPU per sample, as a multiple
of the least that the pipeline can do with. Least recently served is the queue whose own pipeline on
the vGPU was: what it is served elsewhere is no turn here. Ties: the lower pipeline number, that is
model, entry, place in the model.

Candidates that wait for their own last moments may all wait for the same vGPU. Two rules of ours
keep such requests, and act only where a vGPU is free: one opens early where those that wait
outnumber the vGPUs (`_open_early_if_oversubscribed`), and a ready one that can wait lets one go
first that cannot (`_more_urgent_candidate`).

But for these, windows depend on the queue alone, never on vGPUs, so a grant makes no other
candidate stale. A candidate that is not touched stays true until `keep`: the last instant at which
its batch still ends in time and the rule for heads keeps its head (the target only shrinks until
a request comes, so no head goes before). So an event costs a few heap steps:

    timers       one heap over candidates (opens, retry, keep + 1) and pools (a vGPU gets free)
    ready        one heap per pool, of the candidates that may be sent and begin on it

State of a candidate: ABSENT, WAITING (for `opens`), READY (in its pool's heap), BLOCKED (a later
stage or link was busy: tried again when it is free, or when anything ends off its plan).
"""

from triton_backend.scheduler.compiled import FAR, NONE, inlined, kernel
from triton_backend.scheduler.jobs import drop_request
from triton_backend.scheduler.policies.company import needs_company
from triton_backend.scheduler.policies.heaps import (
    arm,
    disarm,
    join_ready,
    leave_ready,
    ready_base,
    timer_rows,
)
from triton_backend.scheduler.queues import make_batch, measure_gap, run_from
from triton_backend.scheduler.reservations.probe import BY_FINISH, commit, probe
from triton_backend.scheduler.tables import DEADLINE, NEEDS_ROOM, SETTLED, Tables
from triton_backend.scheduler.topology import (
    BLOCK,
    PARTS,
    RATE_SHIFT,
    LateRules,
    first_low,
    pipelines_of,
)

# When a candidate opens.
AT_FRONTRUN = 0
AT_ONCE = 1
AT_TIMEOUT = 2
AT_LATEST = 3
AS_NEEDED = 4

# Which heads are dropped.
BY_WINDOW = 0
BY_HEAD = 1

# How queues are ranked.
LEAST_LATEST = 0
LEAST_DEADLINE = 1
LEAST_RECENT = 2
LEAST_WASTE = 3

# How large a batch shall be, for whose sake the window drops heads.
PLANNED = 0
MEASURED = 1

WASTE_SHIFT = 20
SPARE = 1.0  # in square roots of busy ones: what chance takes of vGPUs that queues share
MOST_CROWDED = 64  # candidates of a pool that are put in order

POLICIES = {
    "deferred": LateRules(opens=AT_FRONTRUN, heads=BY_WINDOW, rank=LEAST_LATEST),
    "eager": LateRules(opens=AT_ONCE, heads=BY_WINDOW, rank=LEAST_LATEST),
    "latest": LateRules(opens=AT_LATEST, heads=BY_WINDOW, rank=LEAST_LATEST),
    "timeout": LateRules(opens=AS_NEEDED, heads=BY_WINDOW, rank=LEAST_LATEST, timeout_share=0.25),
    "turns": LateRules(opens=AT_ONCE, heads=BY_HEAD, rank=LEAST_RECENT, grows=False),
    "turns-window": LateRules(
        opens=AT_ONCE, heads=BY_WINDOW, rank=LEAST_RECENT, grows=False, grows_alone=True
    ),
}

ABSENT = 0
WAITING = 1
READY = 2
BLOCKED = 3


@kernel
def settle_queue(tables: Tables, queue: int) -> int:
    """Decide after a queue was touched; `SETTLED` or `NEEDS_ROOM`."""
    if _gather(tables, queue) == NEEDS_ROOM:
        return NEEDS_ROOM
    topology = tables.topology
    for pipeline in pipelines_of(topology, queue):
        if _match(tables, topology.pipelines[pipeline]["pool"]) == NEEDS_ROOM:
            return NEEDS_ROOM
    return SETTLED


@kernel
def settle_touched(tables: Tables) -> int:
    """Decide after several queues were touched at once.

    All of them are gathered before any pool is matched: a pool sends the candidates of every queue,
    and one formed before its queue changed would take other requests than it counted.
    """
    counts = tables.counts[0]
    queue = 0
    settled = 0  # queues in a row that need nothing: all of them end it, whatever is counted
    while counts["touched_late"] > 0 and settled < first_low(tables.topology):
        settled += 1
        if tables.queues[queue]["touched"] == 1 and tables.topology.queues[queue]["late"] == 1:
            settled = 0
            tables.queues[queue]["touched"] = 0
            counts["touched_late"] -= 1
            counts["unsettled"] -= 1
            if _gather(tables, queue) == NEEDS_ROOM:
                return NEEDS_ROOM
            for pipeline in pipelines_of(tables.topology, queue):
                tables.heaps[tables.topology.pipelines[pipeline]["pool"]]["touched"] = 1
        queue = (queue + 1) % first_low(tables.topology)
    return _match_touched(tables)


@kernel
def settle_freed(tables: Tables) -> int:
    """Decide after something ended off its plan: vGPUs are not as they were, and few queues are."""
    for pipeline in range(len(tables.candidates)):
        if tables.candidates[pipeline]["state"] == BLOCKED:
            _make_ready(tables, pipeline)
    for pool in range(len(tables.topology.pools)):
        tables.heaps[pool]["touched"] = 1
    return settle_touched(tables)


@kernel
def settle_late(tables: Tables) -> int:
    """Decide for every late queue, whatever happened."""
    topology = tables.topology
    for queue in range(first_low(topology)):
        if topology.queues[queue]["late"] == 1 and _gather(tables, queue) == NEEDS_ROOM:
            return NEEDS_ROOM
    return settle_freed(tables)


@kernel
def settle_due_late(tables: Tables) -> int:
    """A timer fired: candidates whose instant has come, pools with a vGPU that got free.

    All of one instant become ready before any is sent, so that they compete.
    """
    now = tables.counts[0]["now_us"]
    pipelines = len(tables.candidates)
    while tables.counts[0]["timers"] > 0:
        item = tables.heaps[0]["item"]
        if tables.heaps[item]["key"] > now:
            break
        if item >= pipelines:
            disarm(tables, item)
            tables.heaps[item - pipelines]["touched"] = 1
        elif tables.candidates[item]["state"] == READY or tables.candidates[item]["keep_us"] < now:
            if _gather(tables, tables.topology.pipelines[item]["queue"]) == NEEDS_ROOM:
                return NEEDS_ROOM
        else:
            _make_ready(tables, item)
    return settle_touched(tables)


@inlined
def next_late_timer(tables: Tables) -> int:
    """Earliest instant at which a candidate or a pool has to be looked at; FAR where none has."""
    if tables.counts[0]["timers"] == 0:
        return FAR
    return tables.heaps[tables.heaps[0]["item"]]["key"]


# Candidates


@kernel
def _gather(tables: Tables, queue: int) -> int:
    """Form the candidate of every pipeline again, dropping heads that none of them keeps."""
    row = tables.queues[queue]
    while True:
        kept = row["first"] == NONE
        for pipeline in pipelines_of(tables.topology, queue):
            if _form(tables, queue, pipeline):
                kept = True
        if kept:
            return SETTLED
        if tables.counts[0]["out"] == len(tables.out):
            return NEEDS_ROOM
        drop_request(tables, row["first"], DEADLINE, _best_finish(tables, queue))


@kernel
def _best_finish(tables: Tables, queue: int) -> int:
    """When the head would end at best, sent now and alone."""
    topology = tables.topology
    samples = tables.requests[tables.queues[queue]["first"]]["samples"]
    best = FAR
    for pipeline in pipelines_of(topology, queue):
        if samples <= topology.pipelines[pipeline]["largest"]:
            best = min(best, tables.counts[0]["now_us"] + topology.path_us[pipeline, samples])
    return best


@kernel
def _least_batch(tables: Tables, queue: int, pipeline: int) -> int:
    """Samples that a batch with its first request must be able to hold now, by the rule for heads.

    The target is looked for in the queue only where all of the queue would not do. So the answer
    may be more than the rule asks for, but not where that decides whether the head is kept.
    """
    topology = tables.topology
    candidate = tables.candidates[pipeline]
    head = tables.requests[candidate["first"]]
    least = head["samples"]
    if topology.queues[queue]["heads"] == BY_WINDOW:
        goal = topology.pipelines[pipeline]["batch"]
        if topology.queues[queue]["target"] == MEASURED:
            goal = candidate["target"]
        most = max(least, min(goal, candidate["behind"]))
        if tables.counts[0]["now_us"] + topology.path_us[pipeline, most] <= head["deadline_us"]:
            return most
        least = max(least, _tail(tables, queue, pipeline, goal))
    return least


@kernel
def _tail(tables: Tables, queue: int, pipeline: int, goal: int) -> int:
    """Samples that the end of a queue can still make up, up to a goal.

    The run to the end of the queue is as long as its first request allows. Deadlines grow along the
    queue, so a longer run fits wherever a shorter one does not: the walk ends at the first that
    fails.
    """
    topology = tables.topology
    now = tables.counts[0]["now_us"]
    largest = topology.pipelines[pipeline]["largest"]
    samples = 0
    slot = tables.queues[queue]["last"]
    while slot != NONE and samples < goal:
        request = tables.requests[slot]
        more = min(samples + request["samples"], largest)
        if now + topology.path_us[pipeline, more] > request["deadline_us"]:
            break
        samples = more
        slot = request["previous"]
    return min(samples, goal)


@kernel
def _form(tables: Tables, queue: int, pipeline: int) -> bool:
    """Form the candidate of a pipeline: the longest run of whole requests that ends in time.

    It begins with the head or, where another pipeline may serve that, with the first request that
    the rule for heads keeps here. False where the queue has a head that is not kept here.
    """
    topology = tables.topology
    row = tables.queues[queue]
    candidate = tables.candidates[pipeline]
    if candidate["state"] == READY:
        leave_ready(tables, pipeline)
    if row["first"] == NONE:
        _withdraw(tables, pipeline)
        return True
    needed = _first_kept(tables, queue, pipeline)
    if needed == 0:
        _withdraw(tables, pipeline)
        return False
    now = tables.counts[0]["now_us"]
    head = tables.requests[candidate["first"]]
    largest = topology.pipelines[pipeline]["largest"]
    least = min(needed, candidate["behind"])
    most = min(largest, candidate["behind"])
    while least < most:
        middle = (least + most + 1) // 2
        if now + topology.path_us[pipeline, middle] <= head["deadline_us"]:
            least = middle
        else:
            most = middle - 1
    samples = _run(tables, queue, pipeline, least)
    latest = head["deadline_us"] - topology.path_us[pipeline, samples]
    candidate["samples"] = samples
    candidate["latest_us"] = latest
    keep = head["deadline_us"] - topology.path_us[pipeline, needed]
    candidate["keep_us"] = min(keep, latest)
    candidate["key"] = _key(tables, queue, pipeline)
    opens = now
    if candidate["behind"] == samples and samples < largest:
        opens = _opens(tables, queue, pipeline)
    if opens > now:
        _become(tables, pipeline, WAITING)
        arm(tables, pipeline, opens)
    else:
        _make_ready(tables, pipeline)
    return candidate["first"] == row["first"]


@kernel
def _first_kept(tables: Tables, queue: int, pipeline: int) -> int:
    """Let a candidate begin with the first request that the rule for heads keeps here.

    Answers how many samples a batch with it must be able to hold; 0 where none is kept. None is
    passed over where no other pipeline could serve him.
    """
    topology = tables.topology
    candidate = tables.candidates[pipeline]
    passes = len(pipelines_of(topology, queue)) > 1
    candidate["first"] = tables.queues[queue]["first"]
    candidate["behind"] = tables.queues[queue]["samples"]
    while candidate["first"] != NONE:
        first = tables.requests[candidate["first"]]
        if first["samples"] <= topology.pipelines[pipeline]["largest"]:
            needed = _least_batch(tables, queue, pipeline)
            end = tables.counts[0]["now_us"] + topology.path_us[pipeline, needed]
            if end <= first["deadline_us"]:
                return needed
        if not passes:
            break
        candidate["first"] = first["next"]
        candidate["behind"] -= first["samples"]
    return 0


@inlined
def _run(tables: Tables, queue: int, pipeline: int, samples: int) -> int:
    """Samples of the longest run of whole requests, from a candidate's first on, within so many."""
    candidate = tables.candidates[pipeline]
    return run_from(tables, queue, candidate["first"], candidate["behind"], samples)


@inlined
def _withdraw(tables: Tables, pipeline: int) -> None:
    """A pipeline has no candidate; it is in no heap of ready ones."""
    _become(tables, pipeline, ABSENT)
    disarm(tables, pipeline)


@inlined
def _become(tables: Tables, pipeline: int, state: int) -> None:
    """Change the state of a candidate; its pool has to be looked at, and counts those that wait."""
    row = tables.topology.pipelines[pipeline]
    pool = tables.heaps[row["pool"]]
    candidate = tables.candidates[pipeline]
    pool["waiting_count"] += int(state == WAITING) - int(candidate["state"] == WAITING)
    if state in (WAITING, READY):
        pool["touched"] = 1
    tables.waiting_keep_us[row["place"]] = candidate["keep_us"] if state == WAITING else FAR
    candidate["state"] = state


@inlined
def _key(tables: Tables, queue: int, pipeline: int) -> int:
    """The rank of a candidate, the least first."""
    topology = tables.topology
    candidate = tables.candidates[pipeline]
    rank = topology.queues[queue]["rank"]
    key = candidate["latest_us"]
    if rank == LEAST_DEADLINE:
        key = tables.requests[candidate["first"]]["deadline_us"]
    elif rank == LEAST_RECENT:
        key = candidate["served"]
    elif rank == LEAST_WASTE:
        row = topology.pipelines[pipeline]["first_stage"]
        best = topology.pipelines[pipeline]["efficient"]
        took = topology.latency_us[row, candidate["samples"]] * best
        key = (took << WASTE_SHIFT) // (topology.latency_us[row, best] * candidate["samples"])
    return key


@kernel
def measure_rate(tables: Tables, queue: int, samples: int) -> None:
    """A request came: correct the mean gap and size of requests, and the targets that follow."""
    topology = tables.topology
    measure_gap(tables, queue, samples)
    for pipeline in pipelines_of(topology, queue):
        largest = topology.pipelines[pipeline]["largest"]
        target = max(1, tables.candidates[pipeline]["target"])
        while target < largest and _fills(tables, queue, pipeline, target + 1):
            target += 1
        while target > 1 and not _fills(tables, queue, pipeline, target):
            target -= 1
        tables.candidates[pipeline]["target"] = target


@inlined
def _fills(tables: Tables, queue: int, pipeline: int, samples: int) -> bool:
    """True if a batch of so many samples gathers and ends in the budget at the measured rate."""
    topology = tables.topology
    row = tables.queues[queue]
    left = topology.queues[queue]["budget_us"] - topology.path_us[pipeline, samples]
    if row["gap"] == 0 or left < 0:
        return False
    # gap / (size x part of the queue's requests), without rounding the size
    per_sample = row["gap"] // row["size"] << RATE_SHIFT
    per_sample += (row["gap"] % row["size"] << RATE_SHIFT) // row["size"]
    longest = (left << RATE_SHIFT) // samples * topology.pipelines[pipeline]["part"] // PARTS
    return per_sample <= longest


@inlined
def _opens(tables: Tables, queue: int, pipeline: int) -> int:
    """When a candidate that others may join opens, at the latest at its latest."""
    topology = tables.topology
    candidate = tables.candidates[pipeline]
    head = tables.requests[candidate["first"]]
    rule = topology.queues[queue]["opens"]
    opens = tables.counts[0]["now_us"]
    if rule == AT_FRONTRUN:
        opens = head["gather_by_us"] - topology.path_us[pipeline, candidate["samples"] + 1] + 1
    elif rule == AT_TIMEOUT or (
        rule == AS_NEEDED and needs_company(tables, pipeline, candidate["samples"], SPARE)
    ):
        opens = head["arrival_us"] + topology.queues[queue]["timeout_us"]
    elif rule == AT_LATEST:
        opens = head["gather_by_us"] - topology.path_us[pipeline, candidate["samples"]]
    return min(opens, candidate["latest_us"])


@kernel
def _make_ready(tables: Tables, pipeline: int) -> None:
    """A candidate may be sent from now on, until its latest."""
    join_ready(tables, pipeline)
    _become(tables, pipeline, READY)
    arm(tables, pipeline, tables.candidates[pipeline]["keep_us"] + 1)


# Matching


@kernel
def _match_touched(tables: Tables) -> int:
    for pool in range(len(tables.topology.pools)):
        if tables.heaps[pool]["touched"] == 1 and _match(tables, pool) == NEEDS_ROOM:
            return NEEDS_ROOM
    return SETTLED


@kernel
def _match(tables: Tables, pool: int) -> int:
    """Send candidates that begin on a pool, best rank first, while it has a vGPU free."""
    counts = tables.counts[0]
    now = counts["now_us"]
    tables.heaps[pool]["touched"] = 0
    due = FAR
    while counts["paused"] == 0:
        if tables.heaps[pool]["ready_count"] == 0:
            due = _open_early_if_oversubscribed(tables, pool)
            if tables.heaps[pool]["ready_count"] == 0:
                break
        pipeline = tables.heaps[ready_base(tables, pool)]["item"] - timer_rows(tables)
        soonest = _pool_free_from(tables, pool)
        kept = tables.candidates[pipeline]["keep_us"] >= now
        if kept and soonest > now + _lead_us(tables, tables.candidates[pipeline]["samples"]):
            due = soonest
            if soonest < FAR:
                due = max(now + 1, soonest - _lead_us(tables, tables.topology.path_us.shape[1] - 1))
            break
        if _send(tables, pool, pipeline) == NEEDS_ROOM:
            return NEEDS_ROOM
    item = len(tables.candidates) + pool
    if due < FAR:
        arm(tables, item, due)
    else:
        disarm(tables, item)
    return SETTLED


@kernel
def _send(tables: Tables, pool: int, pipeline: int) -> int:
    """Send a ready candidate of a pool that has a vGPU free, or one that it lets go first."""
    counts = tables.counts[0]
    if counts["free_batch"] == NONE or counts["out"] == len(tables.out):
        return NEEDS_ROOM
    queue = tables.topology.pipelines[pipeline]["queue"]
    if tables.candidates[pipeline]["keep_us"] < counts["now_us"]:
        return _gather(tables, queue)
    hurried = _more_urgent_candidate(tables, pool, pipeline)
    if hurried != NONE:
        if _gather(tables, queue) == NEEDS_ROOM:  # opened for a crowd, it may wait on
            return NEEDS_ROOM
        _make_ready(tables, hurried)
        pipeline = hurried
        queue = tables.topology.pipelines[pipeline]["queue"]
    if not _path_is_free(tables, queue, pipeline):
        return SETTLED
    commit(tables, pipeline, make_batch(tables, tables.candidates[pipeline]["first"], pipeline))
    tables.candidates[pipeline]["served"] = counts["batches"]
    return _gather(tables, queue)


@kernel
def _open_early_if_oversubscribed(tables: Tables, pool: int) -> int:
    """Open a candidate, where they cannot all wait as long as each of them could alone.

    Where they outnumber the vGPUs that are not lost, these take them in turns, in the order in
    which they would open: number j goes before number j + vGPUs, so it is sent at the latest at

        send[j] = min(opens[j], send[j + vGPUs] - its time on its vGPU with one sample more)

    Of those whose instant has come the best is ready now. Answers when to look again: at the first
    such instant to come or, while no vGPU is free, when one is.
    """
    now = tables.counts[0]["now_us"]
    heaps = tables.heaps
    waiting = heaps[pool]["waiting_count"]
    if waiting < 2:  # noqa: PLR2004
        return FAR
    soonest = _pool_free_from(tables, pool) - _lead_us(tables, 1)
    if soonest > now:
        return soonest
    # Where there is a vGPU for each that would be put in order, none goes before another.
    vgpus, _ = _free_at(tables, pool, FAR - 1, min(waiting, MOST_CROWDED) - 1)
    if vgpus >= min(waiting, MOST_CROWDED):
        return FAR
    count = _in_order(tables, pool)
    due = FAR
    best = NONE
    for place in range(count - vgpus - 1, -1, -1):
        pipeline = heaps[place]["next_sent"]
        stage = tables.topology.pipelines[pipeline]["first_stage"]
        took = tables.topology.latency_us[stage, tables.candidates[pipeline]["samples"] + 1]
        send = heaps[place + vgpus]["send_us"] - took
        if send < heaps[place]["send_us"]:
            heaps[place]["send_us"] = send
            due = min(due, max(send, now + 1))
            if send <= now and (best == NONE or _goes_first(tables, pipeline, best)):
                best = pipeline
    if best != NONE:
        _make_ready(tables, best)
    return due


@inlined
def _goes_first(tables: Tables, one: int, other: int) -> bool:
    """True if a candidate is ranked before another one."""
    a, b = tables.candidates[one]["key"], tables.candidates[other]["key"]
    return a < b or (a == b and one < other)


@kernel
def _free_at(tables: Tables, pool: int, start_us: int, enough: int) -> tuple[int, int]:
    """vGPUs of a pool on which a batch may start at an instant, and when the next is free.

    It ends where they are more than `enough`; from the last one on, as the first that is free is
    taken.
    """
    row = tables.topology.pools[pool]
    count = 0
    following = FAR
    for block in range(row["end_block"] - 1, row["first_block"] - 1, -1):
        least = tables.block_from_us[block]
        if least > start_us:
            following = min(following, least)
            continue
        first = row["first_vgpu"] + (block - row["first_block"]) * BLOCK
        for vgpu in range(first, min(first + BLOCK, row["end_vgpu"])):
            if tables.free_from_us[vgpu] > start_us:
                following = min(following, tables.free_from_us[vgpu])
            else:
                count += 1
        if count > enough:
            break
    return count, following


@kernel
def _in_order(tables: Tables, pool: int) -> int:
    """Put the waiting candidates of a pool in the order in which they open; answers how many.

    No more than `MOST_CROWDED`, the first of them; ties: the lower pipeline number.
    """
    heaps = tables.heaps
    count = 0
    row = tables.topology.pools[pool]
    for candidate in range(row["first_candidate"], row["end_candidate"]):
        if tables.waiting_keep_us[candidate] == FAR:
            continue
        pipeline = tables.topology.pipelines[candidate]["placed"]
        opens = heaps[pipeline]["key"]
        place = count
        if count < MOST_CROWDED:
            count += 1
        elif opens < heaps[count - 1]["send_us"]:
            place -= 1
        else:
            continue
        while place > 0 and heaps[place - 1]["send_us"] > opens:
            heaps[place]["send_us"] = heaps[place - 1]["send_us"]
            heaps[place]["next_sent"] = heaps[place - 1]["next_sent"]
            place -= 1
        heaps[place]["send_us"] = opens
        heaps[place]["next_sent"] = pipeline
    return count


@kernel
def _more_urgent_candidate(tables: Tables, pool: int, pipeline: int) -> int:
    """A waiting candidate that would be lost if a ready one went now, and that it can wait for.

    Or NONE. Those are lost that change before a vGPU is free again, where they are as many as the
    vGPUs free now. Of those that the ready one can wait for, the first to change.
    """
    if tables.heaps[pool]["waiting_count"] == 0:
        return NONE
    now = tables.counts[0]["now_us"]
    ends = now + _stage_us(tables, pipeline)
    lead = _lead_us(tables, tables.candidates[pipeline]["samples"])
    # Seldom one changes as soon as that, and then nothing need be counted.
    some_free = _first_end(tables, pool, now + lead)  # not before the next one of all is
    if _least_keep(tables, pool) >= min(some_free - lead, ends):
        return NONE
    lost = _changing(tables, pool, ends)  # at least as many as before `again`
    free, following = _free_at(tables, pool, now + lead, lost)
    if free > lost:
        return NONE
    busy_until = following - lead
    again = min(busy_until, ends)
    keep = tables.candidates[pipeline]["keep_us"]
    found = NONE
    first = again
    row = tables.topology.pools[pool]
    for place in range(row["first_candidate"], row["end_candidate"]):
        if tables.waiting_keep_us[place] >= first:
            continue
        other = tables.topology.pipelines[place]["placed"]
        back = min(busy_until, now + _stage_us(tables, other))
        if back <= keep:
            found, first = other, tables.waiting_keep_us[place]
    return found if found != NONE and _changing(tables, pool, again) >= free else NONE


@kernel
def _least_keep(tables: Tables, pool: int) -> int:
    """When the first of the waiting candidates of a pool changes; FAR where none waits."""
    row = tables.topology.pools[pool]
    least = FAR
    for place in range(row["first_candidate"], row["end_candidate"]):
        least = min(least, tables.waiting_keep_us[place])
    return least


@kernel
def _first_end(tables: Tables, pool: int, start_us: int) -> int:
    """When the first of a few vGPUs of a pool is free that are busy at an instant.

    FAR where none is. Those of the first blocks, which are busy while any is.
    """
    row = tables.topology.pools[pool]
    first = row["first_vgpu"]
    soonest = FAR
    for vgpu in range(first, min(first + 2 * BLOCK, row["end_vgpu"])):
        if tables.free_from_us[vgpu] > start_us:
            soonest = min(soonest, tables.free_from_us[vgpu])
    return soonest


@kernel
def _changing(tables: Tables, pool: int, before_us: int) -> int:
    """Waiting candidates of a pool that change before an instant."""
    row = tables.topology.pools[pool]
    count = 0
    for place in range(row["first_candidate"], row["end_candidate"]):
        count += int(tables.waiting_keep_us[place] < before_us)
    return count


@inlined
def _stage_us(tables: Tables, pipeline: int) -> int:
    """Time of a candidate on its first vGPU."""
    row = tables.topology.pipelines[pipeline]["first_stage"]
    return tables.topology.latency_us[row, tables.candidates[pipeline]["samples"]]


@kernel
def _path_is_free(tables: Tables, queue: int, pipeline: int) -> bool:
    """True if a ready candidate can go at once; else it is blocked until it can.

    Its quote is then that of the batch to send. Where links of the path differ from the fastest, a
    batch may end later than its window says: then the next smaller run of whole requests.
    """
    candidate = tables.candidates[pipeline]
    quote = tables.quotes[pipeline]
    now = tables.counts[0]["now_us"]
    head = tables.requests[candidate["first"]]
    samples = candidate["samples"]
    again = FAR
    while samples >= head["samples"]:
        start = now + _lead_us(tables, samples)
        probe(tables, pipeline, samples, start, BY_FINISH)
        if quote["wait_us"] == 0 and quote["finish_us"] <= head["deadline_us"]:
            return True
        if quote["finish_us"] - quote["wait_us"] <= head["deadline_us"]:
            again = now + quote["wait_us"]
            break
        samples = _run(tables, queue, pipeline, samples - 1)
    leave_ready(tables, pipeline)
    _become(tables, pipeline, BLOCKED)
    arm(tables, pipeline, max(now + 1, min(again, candidate["keep_us"] + 1)))
    return False


@inlined
def _lead_us(tables: Tables, samples: int) -> int:
    counts = tables.counts[0]
    return counts["lead_us"] + samples * counts["lead_us_per_sample"]


@inlined
def _pool_free_from(tables: Tables, pool: int) -> int:
    """No vGPU of the pool can start before, or an instant that has passed.

    FAR where all are lost.
    """
    row = tables.topology.pools[pool]
    now = tables.counts[0]["now_us"]
    soonest = FAR
    for block in range(
        row["end_block"] - 1, row["first_block"] - 1, -1
    ):  # idle ones are at the end
        soonest = min(soonest, tables.block_from_us[block])
        if soonest <= now:
            break
    return soonest
