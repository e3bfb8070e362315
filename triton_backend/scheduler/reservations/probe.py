"""Quote and commit: the earliest path of a batch through a pipeline (PPipe, Algorithm 2).

`probe` finds, stage after stage, the vGPU that finishes first (ties: the lowest number), given all
reserved intervals and, between stages, the first gap free on the sender's uplink and the
receiver's downlink. It changes nothing but `offers` and `quotes`; `commit` reserves what the last
probe of a pipeline found. What modules before give is moved into the first stage in the same way:
from the one node where it lies (`source`), or over the receiver's downlink alone. A path of two
stages:

                       now                                                  finish
    vGPU of stage 0     |..wait..[ run )                                      |
    its uplink          |               ..wait..[ move )                      |
    downlink of stage 1 |                       [ move )                      |
    vGPU of stage 1     |                               ..wait..[ run )       |
    offers              hop 0: start, end       hop 1: move, start, end     hop 2: answer's move

Where a stage boards, a batch takes rows in a shared batch that ends in time for the head of its
queue, the one that leaves first; else it opens one, with as many rows as still end in time. Where
these are fewer than planned, it takes the rows of a member that has time for a later shared batch,
or opens one before others that can wait. Time spent in waiting for a shared batch is no waiting for
a resource. With `counts.hold` a shared batch that is opened starts later, by its own length at
most, inside the gap that it has: a batch that comes meanwhile boards.
"""

from triton_backend.scheduler.compiled import FAR, NONE, Record, inlined, kernel
from triton_backend.scheduler.reservations.shared_batches import (
    before_whom,
    can_change,
    can_wait,
    fill_from_later,
    first_row,
    join,
    member_to_move,
    members_follow,
    move_to_later,
    open_shared_batch,
    put_off,
    spare_rows,
    start_by,
)
from triton_backend.scheduler.reservations.timeline import earliest_move, earliest_start, reserve
from triton_backend.scheduler.tables import DOWNLINK, UPLINK, VGPU, Tables, interval_of
from triton_backend.scheduler.topology import BLOCK

# Order of a stage's vGPUs; a policy's choice.
BY_FINISH = 0  # the instant at which they finish
BY_UPLINK = 1  # the instant at which their uplink can take the batch on; ties: the finish


@kernel
def probe(tables: Tables, pipeline: int, samples: int, now_us: int, rank_by: int) -> int:
    """Quote a batch from `now_us` on; returns its finish (µs), FAR where a stage has no vGPU left.

    `offers[pipeline]` then has the path and `quotes[pipeline]` size, finish and time spent waiting.
    """
    topology = tables.topology
    quote = tables.quotes[pipeline]
    offers = tables.offers[pipeline]
    tables.counts[0]["probes"] += 1
    quote["samples"] = samples
    quote["wait_us"] = quote["finish_us"] = FAR
    first = topology.pipelines[pipeline]["first_stage"]
    last = first + topology.pipelines[pipeline]["stages"]
    at = now_us
    work = 0  # runs and moves without the waits between them
    sender = topology.pipelines[pipeline]["source"]
    for stage in range(first, last):
        hop = stage - first
        if topology.stages[stage]["capacity"] > 0:
            if not _offer_place(tables, offers[hop], stage, sender, samples, at, rank_by):
                return FAR
            if offers[hop]["shared_batch"] != NONE:
                work += offers[hop]["start_us"] - offers[hop]["move_end_us"]
        elif not _best_vgpu(tables, offers[hop], stage, sender, samples, samples, at, rank_by):
            return FAR
        at = offers[hop]["end_us"]
        work += at - offers[hop]["start_us"]
        work += offers[hop]["move_end_us"] - offers[hop]["move_start_us"]
        sender = offers[hop]["vgpu"]
    # The answer's transfer takes the uplink only: the gateway's downlink is no resource of the
    # plan.
    hop = last - first
    answer = topology.answer_us[pipeline, topology.vgpus[sender]["up_rate"], samples]
    offers[hop]["uplink"] = NONE
    if answer > 0:
        offers[hop]["uplink"] = topology.vgpus[sender]["uplink"]
        at = earliest_start(tables, topology.vgpus[sender]["uplink"], at, answer)
        offers[hop]["move_start_us"] = at
        offers[hop]["move_end_us"] = at + answer
        at += answer
        work += answer
    quote["wait_us"] = at - now_us - work
    quote["finish_us"] = at
    return at


@kernel
def probe_in_time(
    tables: Tables, pipeline: int, samples: int, now_us: int, deadline_us: int, rank_by: int
) -> int:
    """`probe`, repeated without boarding where a later stage makes boarding too late."""
    found = probe(tables, pipeline, samples, now_us, rank_by)
    if found <= deadline_us or tables.topology.pipelines[pipeline]["boards"] == 0:
        return found
    tables.counts[0]["alone"] = 1
    found = probe(tables, pipeline, samples, now_us, rank_by)
    tables.counts[0]["alone"] = 0
    return found


@kernel
def _offer_place(
    tables: Tables, offer: Record, stage: int, sender: int, samples: int, at_us: int, rank_by: int
) -> bool:
    """Fill one hop of an offer with rows of a shared batch; False where no vGPU is left."""
    topology = tables.topology
    counts = tables.counts[0]
    pipeline = topology.stages[stage]["pipeline"]
    head = tables.queues[topology.pipelines[pipeline]["queue"]]["first"]
    latest = tables.requests[head]["deadline_us"] - _rest_us(tables, stage, samples)
    offer["displaced"] = NONE
    if counts["alone"] == 0 and _board(tables, offer, stage, sender, samples, at_us, latest):
        return True
    # A shared batch with more rows never ends sooner, so the most that end in time are found by
    # halves.
    capacity = topology.stages[stage]["capacity"]
    fits, tried = samples, capacity
    while True:
        if not _best_vgpu(tables, offer, stage, sender, samples, tried, at_us, rank_by):
            return False
        if offer["end_us"] <= latest:
            fits = tried
            if tried == capacity:
                break
        elif tried == samples:
            break
        else:
            capacity = tried - 1
        if fits == capacity:
            if tried != fits:
                _best_vgpu(tables, offer, stage, sender, samples, fits, at_us, rank_by)
            break
        tried = (fits + capacity + 1) // 2
    offer["shared_batch"] = NONE
    offer["capacity"] = fits
    planned = topology.stages[stage]["capacity"]
    short = fits < planned or offer["end_us"] > latest
    if short and _offer_others(tables, offer, stage, sender, samples, at_us, latest):
        return True
    _wait_for_company(tables, offer, stage, samples, latest)
    return True


@kernel
def _wait_for_company(
    tables: Tables, offer: Record, stage: int, samples: int, latest_us: int
) -> None:
    """With `counts.hold` a shared batch starts later within its gap, by its own length at most."""
    if tables.counts[0]["hold"] == 0 or offer["capacity"] == samples:
        return
    lasts = offer["end_us"] - offer["start_us"]
    until = min(
        offer["start_us"] + lasts,
        latest_us - tables.topology.stages[stage]["company_us"] - lasts,
    )
    until = min(until, _taken_from(tables, offer["vgpu"], offer["start_us"]) - lasts)
    offer["start_us"] = max(offer["start_us"], until)
    offer["end_us"] = offer["start_us"] + lasts


@kernel
def _offer_others(
    tables: Tables, offer: Record, stage: int, sender: int, samples: int, at_us: int, latest_us: int
) -> bool:
    """Offer rows that others give up, or a shared batch before theirs, where they have more time.

    False where none can.
    """
    capacity = tables.topology.stages[stage]["capacity"]
    if tables.counts[0]["alone"] == 1 or not _is_alone(tables, stage):
        return False
    if _displace(tables, offer, stage, sender, samples, at_us, latest_us):
        return True
    late = offer["end_us"] > latest_us
    if _go_before(tables, offer, stage, sender, samples, capacity, at_us, latest_us):
        return True
    return late and _go_before(tables, offer, stage, sender, samples, samples, at_us, latest_us)


@kernel
def _is_alone(tables: Tables, stage: int) -> bool:
    """True if a pipeline has no other stage on the pool of one.

    Else what is offered there would move, too.
    """
    topology = tables.topology
    pipeline = topology.pipelines[topology.stages[stage]["pipeline"]]
    for other in range(pipeline["first_stage"], pipeline["first_stage"] + pipeline["stages"]):
        if other != stage and topology.stages[other]["pool"] == topology.stages[stage]["pool"]:
            return False
    return True


@kernel
def _displace(
    tables: Tables, offer: Record, stage: int, sender: int, samples: int, at_us: int, latest_us: int
) -> bool:
    """Offer the rows of a member that can sit in a later shared batch.

    False, and nothing changed, where none can. In the shared batch that starts first (ties: the one
    opened last).
    """
    counts = tables.counts[0]
    pool = tables.topology.stages[stage]["pool"]
    start = FAR
    shared_batch = counts["first_shared_batch"]
    while shared_batch != NONE and spare_rows(tables) > 0:
        run = tables.intervals[interval_of(tables, shared_batch, 0, VGPU)]
        sooner = tables.batches[shared_batch]["pool"] == pool and run["start_us"] < start
        vgpu = tables.paths[shared_batch, 0]
        if (
            sooner
            and run["end_us"] <= latest_us
            and can_change(tables, interval_of(tables, shared_batch, 0, VGPU))
            and _comes_us(tables, stage, sender, vgpu, samples, at_us) <= run["start_us"]
        ):
            member = member_to_move(tables, shared_batch, samples)
            if member != NONE:
                start = run["start_us"]
                _offer_move(tables, offer, stage, sender, vgpu, samples, at_us)
                offer["start_us"], offer["end_us"] = start, run["end_us"]
                offer["shared_batch"], offer["displaced"] = shared_batch, member
        shared_batch = tables.batches[shared_batch]["next_shared_batch"]
    return start < FAR


@kernel
def _go_before(
    tables: Tables,
    offer: Record,
    stage: int,
    sender: int,
    samples: int,
    size: int,
    at_us: int,
    latest_us: int,
) -> bool:
    """Offer a shared batch before others that have more time and can wait.

    False, and nothing changed, where none can. It stands before the first shared batch that need
    not end as early, so the shared batches of a vGPU are in the order of deadlines as far as what
    was promised allows.
    Ties: the earliest end, then the lowest vGPU.
    """
    topology = tables.topology
    pool = topology.pools[topology.stages[stage]["pool"]]
    lasts = topology.latency_us[stage, size]
    best = FAR
    for vgpu in range(pool["first_vgpu"], pool["end_vgpu"]):
        if tables.resources[vgpu]["lost"] == 1:
            continue
        start = _comes_us(tables, stage, sender, vgpu, samples, at_us)
        start = max(start, tables.resources[vgpu]["idle_us"])
        i = before_whom(tables, vgpu, start, latest_us)
        if i == NONE:
            continue
        if tables.intervals[i]["previous"] != NONE:
            start = max(start, tables.intervals[tables.intervals[i]["previous"]]["end_us"])
        end = start + lasts
        if end <= latest_us and end < best and can_wait(tables, i, end):
            best = end
            _offer_move(tables, offer, stage, sender, vgpu, samples, at_us)
            offer["start_us"], offer["end_us"] = start, end
            offer["shared_batch"], offer["capacity"] = NONE, size
    return best < FAR


@kernel
def _comes_us(tables: Tables, stage: int, sender: int, vgpu: int, samples: int, at_us: int) -> int:
    """When samples that their sender has from an instant on are on a vGPU at the earliest."""
    topology = tables.topology
    rate = topology.vgpus[vgpu]["down_rate"]
    uplink = NONE
    if sender != NONE:
        rate = min(rate, topology.vgpus[sender]["up_rate"])
        uplink = topology.vgpus[sender]["uplink"]
    move = topology.move_us[stage, rate, samples]
    if move == 0:
        return at_us
    return earliest_move(tables, uplink, topology.vgpus[vgpu]["downlink"], at_us, move) + move


@kernel
def _offer_move(
    tables: Tables, offer: Record, stage: int, sender: int, vgpu: int, samples: int, at_us: int
) -> None:
    """Take a vGPU and the way to it into an offer."""
    topology = tables.topology
    rate = topology.vgpus[vgpu]["down_rate"]
    offer["uplink"] = offer["downlink"] = NONE
    if sender != NONE:
        rate = min(rate, topology.vgpus[sender]["up_rate"])
    move = topology.move_us[stage, rate, samples]
    if move > 0:
        offer["downlink"] = topology.vgpus[vgpu]["downlink"]
        if sender != NONE:
            offer["uplink"] = topology.vgpus[sender]["uplink"]
    offer["vgpu"] = vgpu
    offer["move_end_us"] = _comes_us(tables, stage, sender, vgpu, samples, at_us)
    offer["move_start_us"] = offer["move_end_us"] - move


@kernel
def _board(
    tables: Tables, offer: Record, stage: int, sender: int, samples: int, at_us: int, latest_us: int
) -> bool:
    """Offer rows of the shared batch that starts first (ties: lower number) and is in time.

    One that waits for company can start sooner for the sake of a tighter deadline: a second one
    beside it would leave both half empty.
    """
    topology = tables.topology
    counts = tables.counts[0]
    pool = topology.stages[stage]["pool"]
    best = NONE
    shared_batch = counts["first_shared_batch"]
    while shared_batch != NONE:
        row = tables.batches[shared_batch]
        following = row["next_shared_batch"]
        if row["pool"] == pool and row["samples"] + samples <= row["capacity"]:
            start = _leaves_us(tables, shared_batch, latest_us)
            sooner = start < FAR if best == NONE else start < offer["start_us"]
            if best != NONE and start == offer["start_us"]:
                sooner = row["number"] < tables.batches[best]["number"]
            if sooner and first_row(tables, shared_batch, samples) != NONE:
                vgpu = tables.paths[shared_batch, 0]
                if _comes_us(tables, stage, sender, vgpu, samples, at_us) <= start:
                    best = shared_batch
                    _offer_move(tables, offer, stage, sender, vgpu, samples, at_us)
                    offer["start_us"] = start
                    offer["end_us"] = start + _lasts_us(tables, shared_batch)
        shared_batch = following
    offer["shared_batch"] = best
    return best != NONE


@inlined
def _lasts_us(tables: Tables, shared_batch: int) -> int:
    """How long a shared batch runs."""
    run = tables.intervals[interval_of(tables, shared_batch, 0, VGPU)]
    return run["end_us"] - run["start_us"]


@kernel
def _leaves_us(tables: Tables, shared_batch: int, latest_us: int) -> int:
    """When a shared batch starts with a member aboard for which it must end by an instant.

    FAR where that cannot be. Sooner than reserved where it waits for company: not before its
    members are there, nor before its vGPU is free.
    """
    run = tables.intervals[interval_of(tables, shared_batch, 0, VGPU)]
    doors_open = tables.counts[0]["now_us"] + tables.counts[0]["doors_us"]
    start = min(run["start_us"], latest_us - _lasts_us(tables, shared_batch))
    if start <= doors_open:
        return FAR
    if start == run["start_us"]:
        return start
    least = tables.batches[shared_batch]["arrival_us"]
    if run["previous"] != NONE:
        least = max(least, tables.intervals[run["previous"]]["end_us"])
    return start if least <= start else FAR


@kernel
def _rest_us(tables: Tables, stage: int, samples: int) -> int:
    """Least time from the end of a stage to the answer, nothing else running."""
    topology = tables.topology
    pipeline = topology.stages[stage]["pipeline"]
    rate = topology.pools[topology.stages[stage]["pool"]]["up_rate"]
    rest = 0
    while topology.stages[stage]["last"] == 0:
        stage += 1
        pool = topology.pools[topology.stages[stage]["pool"]]
        rest += topology.move_us[stage, min(rate, pool["down_rate"]), samples]
        rest += topology.latency_us[stage, samples]
        rate = pool["up_rate"]
    return rest + topology.answer_us[pipeline, rate, samples]


@kernel
def _taken_from(tables: Tables, resource: int, at_us: int) -> int:
    """When the next interval of a resource begins that is free at an instant.

    FAR where none does.
    """
    i = tables.resources[resource]["first"]
    while i != NONE and tables.intervals[i]["start_us"] < at_us:
        i = tables.intervals[i]["next"]
    return FAR if i == NONE else tables.intervals[i]["start_us"]


@kernel
def _best_vgpu(
    tables: Tables,
    offer: Record,
    stage: int,
    sender: int,
    samples: int,
    size: int,
    at_us: int,
    rank_by: int,
) -> bool:
    """Fill one hop of an offer; False where the stage has no vGPU left.

    `samples` are moved, and the run lasts as `size` samples do: in a shared batch others come to
    them. `sender` is the vGPU of the stage before (`NONE` at the first), which is done at `at_us`.

    No vGPU can start before `floor`: the instant at which the input would have arrived over the
    fastest link, with the sender's uplink as reserved. So the search ends at the first vGPU that
    starts then; those that could are looked at first, and only where none does all of them. The
    index says which blocks and vGPUs cannot start before the best so far:

        first_vgpu                                      end_vgpu
          |  vGPU  0 .. 15  |  vGPU 16 .. 31  |  vGPU 32 .. 39  |
          |  block_from_us  |  block_from_us  |  block_from_us  |    one per BLOCK vGPUs
    """
    topology = tables.topology
    pool = topology.pools[topology.stages[stage]["pool"]]
    fastest = pool["down_rate"]
    uplink = NONE
    if sender != NONE:
        fastest = min(fastest, topology.vgpus[sender]["up_rate"])
        uplink = topology.vgpus[sender]["uplink"]
    least_move = topology.move_us[stage, fastest, samples]
    leave = at_us
    if least_move > 0 and uplink != NONE:
        leave = earliest_start(tables, uplink, at_us, least_move)
    floor = leave + least_move
    for bound in (floor + 1, FAR):
        offer["key_us"] = bound
        block = pool["first_block"]
        first = pool["first_vgpu"]
        end = pool["end_vgpu"]
        while first < end and offer["key_us"] > floor:
            if tables.block_from_us[block] < offer["key_us"]:
                for vgpu in range(first, min(first + BLOCK, end)):
                    if tables.free_from_us[vgpu] < offer["key_us"]:
                        _offer_vgpu(
                            tables, offer, stage, vgpu, sender, samples, size, leave, rank_by
                        )
                        if offer["key_us"] <= floor:
                            return True
            block += 1
            first += BLOCK
    return offer["key_us"] < FAR


@kernel
def _offer_vgpu(  # noqa: PLR0913, PLR0917 - kernels take numbers one by one
    tables: Tables,
    offer: Record,
    stage: int,
    vgpu: int,
    sender: int,
    samples: int,
    size: int,
    leave_us: int,
    rank_by: int,
) -> None:
    """Take a vGPU into the offer where it is better than the one in it.

    `key_us` is the start that vGPUs are compared by. All have the same latency, so comparing starts
    compares finishes; by uplink it is later by as long as the batch would wait for the uplink.
    """
    topology = tables.topology
    rate = topology.vgpus[vgpu]["down_rate"]
    uplink = NONE
    downlink = NONE
    if sender != NONE:
        rate = min(rate, topology.vgpus[sender]["up_rate"])
    move = topology.move_us[stage, rate, samples]
    moved = leave_us
    if move > 0:
        downlink = topology.vgpus[vgpu]["downlink"]
        if sender != NONE:
            uplink = topology.vgpus[sender]["uplink"]
        moved = earliest_move(tables, uplink, downlink, leave_us, move)
    start = moved + move
    if start >= offer["key_us"]:  # neither the vGPU nor its uplink can make it earlier
        return
    latency = topology.latency_us[stage, size]
    start = earliest_start(tables, vgpu, start, latency)
    key = start
    if rank_by == BY_UPLINK:
        key = _uplink_free(tables, stage, vgpu, samples, start + latency) - latency
    if key < offer["key_us"] or (key == offer["key_us"] and start + latency < offer["end_us"]):
        offer["key_us"] = key
        offer["vgpu"] = vgpu
        offer["uplink"] = uplink
        offer["downlink"] = downlink
        offer["move_start_us"] = moved
        offer["move_end_us"] = moved + move
        offer["start_us"] = start
        offer["end_us"] = start + latency


@kernel
def _uplink_free(tables: Tables, stage: int, vgpu: int, samples: int, at_us: int) -> int:
    """First instant >= at_us at which the uplink can take the batch on; at_us on a last stage.

    The receiver is not known yet: the fastest of the next stage stands for it.
    """
    topology = tables.topology
    if topology.stages[stage]["last"] == 1:
        return at_us
    receiver = topology.pools[topology.stages[stage + 1]["pool"]]
    rate = min(topology.vgpus[vgpu]["up_rate"], receiver["down_rate"])
    move = topology.move_us[stage + 1, rate, samples]
    if move == 0:
        return at_us
    return earliest_start(tables, topology.vgpus[vgpu]["uplink"], at_us, move)


@inlined
def commit(tables: Tables, pipeline: int, batch: int) -> None:
    """Reserve what the last probe of a pipeline found, in the name of a batch slot."""
    offers = tables.offers[pipeline]
    stages = tables.topology.pipelines[pipeline]["stages"]
    first = tables.topology.pipelines[pipeline]["first_stage"]
    for hop in range(stages + 1):
        offer = offers[hop]
        tables.paths[batch, hop] = NONE
        if hop < stages:
            tables.paths[batch, hop] = offer["vgpu"]
            if tables.topology.stages[first + hop]["capacity"] == 0:
                i = interval_of(tables, batch, hop, VGPU)
                reserve(tables, i, offer["vgpu"], offer["start_us"], offer["end_us"])
            if offer["downlink"] != NONE:
                i = interval_of(tables, batch, hop, DOWNLINK)
                reserve(tables, i, offer["downlink"], offer["move_start_us"], offer["move_end_us"])
        if offer["uplink"] != NONE:
            i = interval_of(tables, batch, hop, UPLINK)
            reserve(tables, i, offer["uplink"], offer["move_start_us"], offer["move_end_us"])
        if hop < stages and tables.topology.stages[first + hop]["capacity"] > 0:
            _commit_place(tables, first + hop, batch, hop, offer)
    for hop in range(stages - 1):
        shared_batch = tables.intervals[interval_of(tables, batch, hop, VGPU)]["shared_batch"]
        if shared_batch != NONE:
            members_follow(tables, shared_batch)


@kernel
def _commit_place(tables: Tables, stage: int, batch: int, hop: int, offer: Record) -> None:
    """Board the shared batch that was offered, or open it."""
    shared_batch = offer["shared_batch"]
    if shared_batch == NONE:
        pool = tables.topology.stages[stage]["pool"]
        start, end = offer["start_us"], offer["end_us"]
        put_off(tables, offer["vgpu"], start, end)
        shared_batch = open_shared_batch(tables, pool, offer["vgpu"], offer["capacity"], start, end)
    elif offer["displaced"] != NONE:
        move_to_later(tables, offer["displaced"])
    else:
        start_by(tables, shared_batch, offer["start_us"])
    join(tables, shared_batch, batch, hop, offer["move_end_us"])
    fill_from_later(tables, shared_batch)
