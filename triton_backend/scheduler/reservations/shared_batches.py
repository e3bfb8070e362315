"""Shared batches: joint runs in a stage that boards (Graft: tails of many clients that meet).

Batches of other pipelines, and of the same one, take rows in one run of their shared stage. The
shared batch has a batch slot of its own (`tables`) and one interval on one vGPU, long enough for
all its rows; its members change neither:

    batch 7     [ align )[move)........
    batch 8                [align)[mv)..
    batch 9 (begins here)          ....               all end with the shared batch, then go on
    shared batch 10  vGPU               [  7  8  9  .  )      alone
                                        start         rows 0 .. capacity - 1, a hole at a free one

    opened  batches board it until it is full
    full    it moves forward to the earliest gap after the last arrival, and with it the moves of
            its members and the full shared batches that they board next
    start   it starts with the members that are there; for a missing one it waits while no other
            would be late (`slack_us`), then starts without it, whose requests are queued again
    done    the members go on; a shared batch without members is over

A batch with a tight deadline takes the rows of a member that has time for a later shared batch
(`move_to_later`), or opens one before others that can wait (`can_wait`), which start later
(`put_off`); members of those whose rows come in time take the rows left (`fill_from_later`).

Here: which rows a member has, and when a shared batch starts. Not here: which one a batch boards
(`probe`), what ends and losses mean (`feedback`).
"""

from triton_backend.scheduler.compiled import FAR, NONE, Record, inlined, kernel
from triton_backend.scheduler.reservations.timeline import (
    delay,
    earliest_move,
    earliest_start,
    refresh,
    release,
    reserve,
)
from triton_backend.scheduler.tables import (
    DOWNLINK,
    KINDS,
    SHARED_BATCH,
    UPLINK,
    VGPU,
    Tables,
    add_decision,
    interval_of,
)

MOST_PUT_OFF = 16  # shared batches, for the sake of one


@inlined
def spare_rows(tables: Tables) -> int:
    """Rows of `out` beyond those that a dispatch must find.

    A place in each stage, and shared batches put off. Only the last stage of a pipeline puts shared
    batches off:
    members of no other are answered when they end.
    """
    counts = tables.counts[0]
    return len(tables.out) - counts["out"] - MOST_PUT_OFF - counts["boards"]


@inlined
def batch_of(tables: Tables, i: int) -> int:
    """The batch slot that an interval belongs to."""
    return i // (tables.offers.shape[1] * KINDS)


@kernel
def open_shared_batch(
    tables: Tables, pool: int, vgpu: int, capacity: int, start_us: int, end_us: int
) -> int:
    """Open a shared batch without members in a free batch slot (there must be one); its slot."""
    counts = tables.counts[0]
    slot = counts["free_batch"]
    shared_batch = tables.batches[slot]
    counts["free_batch"] = shared_batch["next_free"]
    shared_batch["number"] = counts["batches"]
    counts["batches"] += 1
    shared_batch["pipeline"] = shared_batch["first"] = shared_batch["last"] = shared_batch[
        "aboard"
    ] = NONE
    shared_batch["stages"] = 1
    shared_batch["samples"] = shared_batch["requests"] = shared_batch["missing"] = 0
    shared_batch["arrival_us"] = shared_batch["leave_us"] = 0
    shared_batch["dispatch_us"] = counts["now_us"]
    shared_batch["capacity"] = capacity
    shared_batch["pool"] = pool
    shared_batch["next_shared_batch"] = counts["first_shared_batch"]
    counts["first_shared_batch"] = slot
    tables.paths[slot, 0] = vgpu
    reserve(tables, interval_of(tables, slot, 0, VGPU), vgpu, start_us, end_us)
    return slot


@kernel
def first_row(tables: Tables, shared_batch: int, rows: int) -> int:
    """The first of so many rows side by side that are free; NONE where there are none.

    It is the first of all or follows another's last.
    """
    capacity = tables.batches[shared_batch]["capacity"]
    if tables.batches[shared_batch]["samples"] + rows > capacity:
        return NONE
    found = 0 if _free(tables, shared_batch, 0, rows) else capacity
    member = tables.batches[shared_batch]["aboard"]
    while member != NONE:
        row = tables.intervals[member]["row"]
        row += tables.batches[batch_of(tables, member)]["samples"]
        if row < found and row + rows <= capacity and _free(tables, shared_batch, row, rows):
            found = row
        member = tables.intervals[member]["next"]
    return found if found + rows <= capacity else NONE


@kernel
def _free(tables: Tables, shared_batch: int, row: int, rows: int) -> bool:
    member = tables.batches[shared_batch]["aboard"]
    while member != NONE:
        first = tables.intervals[member]["row"]
        end = first + tables.batches[batch_of(tables, member)]["samples"]
        if first < row + rows and row < end:
            return False
        member = tables.intervals[member]["next"]
    return True


@kernel
def join(tables: Tables, shared_batch: int, batch: int, hop: int, arrival_us: int) -> None:
    """A batch boards for its run at a hop; the moves into it are reserved, and there are rows."""
    i = interval_of(tables, batch, hop, VGPU)
    run, row = tables.intervals[i], tables.batches[shared_batch]
    samples = tables.batches[batch]["samples"]
    run["row"] = first_row(tables, shared_batch, samples)
    run["shared_batch"] = shared_batch
    run["next"] = row["aboard"]
    run["previous"] = 0
    row["aboard"] = i
    row["samples"] += samples
    row["arrival_us"] = max(row["arrival_us"], arrival_us)
    if hop == 0 and tables.intervals[interval_of(tables, batch, 0, DOWNLINK)]["resource"] == NONE:
        run["previous"] = 1
    else:
        row["missing"] += 1
    bring_forward(tables, shared_batch)
    emit_update(tables, shared_batch)


@kernel
def start_by(tables: Tables, shared_batch: int, start_us: int) -> None:
    """Let a shared batch start no later than at an instant from which its vGPU is free."""
    i = interval_of(tables, shared_batch, 0, VGPU)
    lasts = tables.intervals[i]["end_us"] - tables.intervals[i]["start_us"]
    if start_us < tables.intervals[i]["start_us"]:
        release(tables, i)
        reserve(tables, i, tables.paths[shared_batch, 0], start_us, start_us + lasts)


@kernel
def bring_forward(tables: Tables, shared_batch: int) -> bool:
    """Let a full shared batch run as soon as its vGPU is free after the last arrival.

    True where that is sooner.
    """
    row = tables.batches[shared_batch]
    i = interval_of(tables, shared_batch, 0, VGPU)
    start, end = tables.intervals[i]["start_us"], tables.intervals[i]["end_us"]
    now = tables.counts[0]["now_us"]
    if row["samples"] < row["capacity"] or start <= now:
        return False
    vgpu = tables.paths[shared_batch, 0]
    release(tables, i)
    sooner = earliest_start(tables, vgpu, max(row["arrival_us"], now), end - start)
    sooner = min(sooner, start)
    reserve(tables, i, vgpu, sooner, sooner + end - start)
    return sooner < start


@kernel
def members_follow(tables: Tables, shared_batch: int) -> None:
    """Move members that leave a shared batch sooner forward in their next one.

    So does that, where it is full. Moves are made as soon as both links are free. Only one stage
    on: what lies behind it stays as reserved.
    """
    hops = tables.offers.shape[1]
    ends = tables.intervals[interval_of(tables, shared_batch, 0, VGPU)]["end_us"]
    member = tables.batches[shared_batch]["aboard"]
    while member != NONE:
        batch = batch_of(tables, member)
        last = member // KINDS % hops == tables.batches[batch]["stages"] - 1
        if not last and tables.intervals[member + KINDS]["shared_batch"] != NONE:
            _move_sooner(tables, member + KINDS, ends)
            following = tables.intervals[member + KINDS]["shared_batch"]
            _recount_arrival(tables, following)
            if spare_rows(tables) > 0 and bring_forward(tables, following):
                emit_update(tables, following)
        member = tables.intervals[member]["next"]


@kernel
def _move_sooner(tables: Tables, run: int, at_us: int) -> None:
    """Reserve the move into a run again, from an instant on, where that ends sooner."""
    down, up = run + DOWNLINK - VGPU, run + UPLINK - VGPU
    downlink, uplink = tables.intervals[down]["resource"], tables.intervals[up]["resource"]
    start = tables.intervals[down]["start_us"]
    lasts = tables.intervals[down]["end_us"] - start
    if downlink == NONE or start <= at_us:
        return
    release(tables, down)
    release(tables, up)
    start = min(start, earliest_move(tables, uplink, downlink, at_us, lasts))
    reserve(tables, down, downlink, start, start + lasts)
    if uplink != NONE:
        reserve(tables, up, uplink, start, start + lasts)


@kernel
def _recount_arrival(tables: Tables, shared_batch: int) -> None:
    row = tables.batches[shared_batch]
    row["arrival_us"] = 0
    member = row["aboard"]
    while member != NONE:
        row["arrival_us"] = max(row["arrival_us"], _comes_us(tables, member))
        member = tables.intervals[member]["next"]


@inlined
def emit_update(tables: Tables, shared_batch: int) -> None:
    """Say how a shared batch is now."""
    add_decision(tables, SHARED_BATCH, shared_batch, tables.batches[shared_batch]["number"], FAR, 0)


@kernel
def can_wait(tables: Tables, i: int, end_us: int) -> bool:
    """True if a shared batch's interval and those behind it can wait until an instant, none late.

    Only shared batches that are not leaving yet wait, and only where all members are answered when
    they end.
    """
    rows = min(MOST_PUT_OFF, spare_rows(tables))
    while i != NONE and tables.intervals[i]["start_us"] < end_us:
        shared_batch = batch_of(tables, i)
        later_us = end_us - tables.intervals[i]["start_us"]
        rows -= 1
        if rows < 0 or not can_change(tables, i) or _least_room(tables, shared_batch) < later_us:
            return False
        end_us += tables.intervals[i]["end_us"] - tables.intervals[i]["start_us"]
        i = tables.intervals[i]["next"]
    return True


@inlined
def can_change(tables: Tables, i: int) -> bool:
    """True if an interval is a shared batch's whose worker can still be given another instant."""
    counts = tables.counts[0]
    shared_batch = tables.batches[batch_of(tables, i)]
    leaves_us = tables.intervals[i]["start_us"]
    return (
        shared_batch["capacity"] > 0
        and shared_batch["pool"] != NONE
        and leaves_us > counts["now_us"] + counts["doors_us"]
    )


@kernel
def before_whom(tables: Tables, vgpu: int, at_us: int, latest_us: int) -> int:
    """The first shared batch of a vGPU that ends after an instant and may end after another.

    NONE where none may.
    """
    i = tables.resources[vgpu]["first"]
    while i != NONE:
        ends = tables.intervals[i]["end_us"]
        if ends > at_us and can_change(tables, i):
            shared_batch = batch_of(tables, i)
            if ends + _least_room(tables, shared_batch) > latest_us:
                return i
        i = tables.intervals[i]["next"]
    return NONE


@kernel
def _least_room(tables: Tables, shared_batch: int) -> int:
    """How much later a shared batch may end with nothing behind it moved and no member late."""
    hops = tables.offers.shape[1]
    least = FAR
    member = tables.batches[shared_batch]["aboard"]
    while member != NONE:
        batch = batch_of(tables, member)
        answered = member // KINDS % hops == tables.batches[batch]["stages"] - 1
        following = tables.intervals[member + UPLINK - VGPU + KINDS]["resource"]
        if not answered or following != NONE:
            return 0
        least = min(least, _slack_of(tables, batch))
        member = tables.intervals[member]["next"]
    return least


@kernel
def put_off(tables: Tables, vgpu: int, start_us: int, end_us: int) -> None:
    """Let shared batches that start from an instant on wait until another (`can_wait`)."""
    i = tables.resources[vgpu]["first"]
    while i != NONE and tables.intervals[i]["end_us"] <= start_us:
        i = tables.intervals[i]["next"]
    while i != NONE and tables.intervals[i]["start_us"] < end_us:
        lasts = tables.intervals[i]["end_us"] - tables.intervals[i]["start_us"]
        tables.intervals[i]["start_us"] = end_us
        end_us += lasts
        tables.intervals[i]["end_us"] = end_us
        emit_update(tables, batch_of(tables, i))
        i = tables.intervals[i]["next"]
    refresh(tables, vgpu)


@kernel
def fill_from_later(tables: Tables, shared_batch: int) -> None:
    """Give free rows to members of later ones of the vGPU that are there when it starts."""
    row = tables.batches[shared_batch]
    run = tables.intervals[interval_of(tables, shared_batch, 0, VGPU)]
    i = run["next"]
    moved = 0
    while i != NONE and row["samples"] < row["capacity"]:
        other = batch_of(tables, i)
        i = tables.intervals[i]["next"]
        if not can_change(tables, interval_of(tables, other, 0, VGPU)):
            continue
        if tables.batches[other]["pool"] != row["pool"]:
            continue
        member = tables.batches[other]["aboard"]
        changed = 0
        while member != NONE:
            following = tables.intervals[member]["next"]
            rows = tables.batches[batch_of(tables, member)]["samples"]
            if (
                spare_rows(tables) > 0
                and first_row(tables, shared_batch, rows) != NONE
                and _comes_us(tables, member) <= run["start_us"]
            ):
                changed += 1
                _change(tables, member, other, shared_batch)
            member = following
        moved += changed
        if changed > 0:
            emit_update(tables, other)
            if tables.batches[other]["aboard"] == NONE:
                close(tables, other)
    if moved > 0:
        emit_update(tables, shared_batch)


@kernel
def member_to_move(tables: Tables, shared_batch: int, rows: int) -> int:
    """The member of a full shared batch that can best sit in a later one, and leaves so many rows.

    NONE where none can. That is the one with most time left.
    """
    hops = tables.offers.shape[1]
    best, most = NONE, -1
    member = tables.batches[shared_batch]["aboard"]
    while member != NONE:
        batch = batch_of(tables, member)
        answered = member // KINDS % hops == tables.batches[batch]["stages"] - 1
        following = tables.intervals[member + UPLINK - VGPU + KINDS]["resource"]
        if answered and following == NONE and tables.batches[batch]["samples"] >= rows:
            slack = _slack_of(tables, batch)
            if slack > most and (
                _later_with_room(tables, shared_batch, member) != NONE
                or _room_behind(tables, shared_batch, member) < FAR
            ):
                best, most = member, slack
        member = tables.intervals[member]["next"]
    return best


@kernel
def _later_with_room(tables: Tables, shared_batch: int, member: int) -> int:
    """A later shared batch of the vGPU that has rows for a member and ends in time for it.

    NONE where there is none.
    """
    batch = batch_of(tables, member)
    latest = tables.requests[tables.batches[batch]["first"]]["deadline_us"]
    i = tables.intervals[interval_of(tables, shared_batch, 0, VGPU)]["next"]
    while i != NONE and tables.intervals[i]["end_us"] <= latest:
        other = batch_of(tables, i)
        same = tables.batches[other]["pool"] == tables.batches[shared_batch]["pool"]
        rows = tables.batches[batch]["samples"]
        if same and can_change(tables, i) and first_row(tables, other, rows) != NONE:
            return other
        i = tables.intervals[i]["next"]
    return NONE


@kernel
def _room_behind(tables: Tables, shared_batch: int, member: int) -> int:
    """When a shared batch of as many rows could start behind one, in time for a member.

    FAR where none could.
    """
    i = interval_of(tables, shared_batch, 0, VGPU)
    end = tables.intervals[i]["end_us"]
    lasts = end - tables.intervals[i]["start_us"]
    start = earliest_start(tables, tables.paths[shared_batch, 0], end, lasts)
    request = tables.batches[batch_of(tables, member)]["first"]
    return start if start + lasts <= tables.requests[request]["deadline_us"] else FAR


@kernel
def move_to_later(tables: Tables, member: int) -> None:
    """A member sits in a later shared batch than before, or opens one (`member_to_move`)."""
    shared_batch = tables.intervals[member]["shared_batch"]
    other = _later_with_room(tables, shared_batch, member)
    if other == NONE:
        start = _room_behind(tables, shared_batch, member)
        i = interval_of(tables, shared_batch, 0, VGPU)
        lasts = tables.intervals[i]["end_us"] - tables.intervals[i]["start_us"]
        row = tables.batches[shared_batch]
        vgpu = tables.paths[shared_batch, 0]
        other = open_shared_batch(tables, row["pool"], vgpu, row["capacity"], start, start + lasts)
    _change(tables, member, shared_batch, other)
    emit_update(tables, other)


@kernel
def _comes_us(tables: Tables, member: int) -> int:
    """When a member's rows are where its shared batch is, as reserved."""
    now = tables.counts[0]["now_us"]
    if tables.intervals[member]["previous"] == 1:
        return now
    move = tables.intervals[member + DOWNLINK - VGPU]
    if move["resource"] != NONE:
        return move["end_us"]
    before = (
        member - KINDS
    )  # its run before: it is no member of its first stage whose rows are missing
    if tables.intervals[before]["shared_batch"] != NONE:
        before = interval_of(tables, tables.intervals[before]["shared_batch"], 0, VGPU)
    return (
        tables.intervals[before]["end_us"] if tables.intervals[before]["resource"] != NONE else now
    )


@kernel
def _change(tables: Tables, member: int, before: int, shared_batch: int) -> None:
    """A member of one shared batch sits in another of its vGPU, behind its last one."""
    place = tables.intervals[member]
    rows = tables.batches[batch_of(tables, member)]["samples"]
    _unchain(tables, before, member)
    place["row"] = first_row(tables, shared_batch, rows)
    place["shared_batch"] = shared_batch
    last = tables.batches[shared_batch]["aboard"]
    if last == NONE:
        place["next"] = NONE
        tables.batches[shared_batch]["aboard"] = member
    else:
        place["next"] = tables.intervals[last]["next"]
        tables.intervals[last]["next"] = member
    tables.batches[before]["samples"] -= rows
    tables.batches[shared_batch]["samples"] += rows
    if place["previous"] == 0:
        tables.batches[before]["missing"] -= 1
        tables.batches[shared_batch]["missing"] += 1
    at_us = _comes_us(tables, member)
    tables.batches[shared_batch]["arrival_us"] = max(
        tables.batches[shared_batch]["arrival_us"], at_us
    )


@inlined
def _unchain(tables: Tables, shared_batch: int, member: int) -> None:
    row = tables.batches[shared_batch]
    if row["aboard"] == member:
        row["aboard"] = tables.intervals[member]["next"]
        return
    before = row["aboard"]
    while tables.intervals[before]["next"] != member:
        before = tables.intervals[before]["next"]
    tables.intervals[before]["next"] = tables.intervals[member]["next"]


@kernel
def leave_shared_batches(tables: Tables, batch: int) -> None:
    """A batch gives all its rows back, before whatever else it reserves."""
    for hop in range(tables.batches[batch]["stages"]):
        i = interval_of(tables, batch, hop, VGPU)
        shared_batch = tables.intervals[i]["shared_batch"]
        if shared_batch == NONE:
            continue
        row = tables.batches[shared_batch]
        _unchain(tables, shared_batch, i)
        tables.intervals[i]["shared_batch"] = NONE
        row["samples"] -= tables.batches[batch]["samples"]
        missing = tables.intervals[i]["previous"] == 0
        if missing:
            row["missing"] -= 1
        emit_update(tables, shared_batch)
        if row["aboard"] == NONE:
            close(tables, shared_batch)
        elif missing and row["missing"] == 0:  # where its start has passed, it waited for this one
            delay(tables, interval_of(tables, shared_batch, 0, VGPU), tables.counts[0]["now_us"])


@kernel
def close(tables: Tables, shared_batch: int) -> None:
    """A shared batch is over: its slot is free, and so is what is left of its interval."""
    counts = tables.counts[0]
    release(tables, interval_of(tables, shared_batch, 0, VGPU))
    if counts["first_shared_batch"] == shared_batch:
        counts["first_shared_batch"] = tables.batches[shared_batch]["next_shared_batch"]
    else:
        before = counts["first_shared_batch"]
        while tables.batches[before]["next_shared_batch"] != shared_batch:
            before = tables.batches[before]["next_shared_batch"]
        tables.batches[before]["next_shared_batch"] = tables.batches[shared_batch][
            "next_shared_batch"
        ]
    tables.batches[shared_batch]["number"] = NONE
    tables.batches[shared_batch]["capacity"] = 0
    tables.batches[shared_batch]["next_free"] = counts["free_batch"]
    counts["free_batch"] = shared_batch


@kernel
def arrived(tables: Tables, batch: int, hop: int, at_us: int) -> bool:
    """Rows of a batch are at a stage.

    False where it boards there and is too late for the others.
    """
    run = tables.intervals[interval_of(tables, batch, hop, VGPU)]
    shared_batch = run["shared_batch"]
    if shared_batch == NONE or run["previous"] == 1:
        return True
    for kind in (UPLINK, DOWNLINK):
        if tables.intervals[interval_of(tables, batch, hop, kind)]["resource"] != NONE:
            return True  # it has yet to be moved
    i = interval_of(tables, shared_batch, 0, VGPU)
    late_us = at_us - tables.intervals[i]["start_us"]
    if late_us > 0 and late_us > waits_us(tables, shared_batch):
        return False
    run["previous"] = 1
    tables.batches[shared_batch]["missing"] -= 1
    if late_us > 0 and tables.batches[shared_batch]["missing"] == 0:
        delay(tables, i, at_us)
    return True


@kernel
def waits_us(tables: Tables, shared_batch: int) -> int:
    """How much later than reserved a shared batch may run for a member that is missing."""
    return max(tables.counts[0]["patience_us"], slack_us(tables, shared_batch))


@kernel
def slack_us(tables: Tables, shared_batch: int) -> int:
    """How much later a shared batch may run with none late for it.

    Its members, and the batches that follow on its vGPU.
    """
    i = interval_of(tables, shared_batch, 0, VGPU)
    least = _least_slack(tables, shared_batch)
    idle = 0
    end = tables.intervals[i]["end_us"]
    i = tables.intervals[i]["next"]
    while i != NONE:
        idle += tables.intervals[i]["start_us"] - end
        end = tables.intervals[i]["end_us"]
        owner = batch_of(tables, i)
        if tables.batches[owner]["capacity"] > 0:
            least = min(least, idle + _least_slack(tables, owner))
        else:
            least = min(least, idle + _slack_of(tables, owner))
        i = tables.intervals[i]["next"]
    return least


@kernel
def _least_slack(tables: Tables, shared_batch: int) -> int:
    least = FAR
    member = tables.batches[shared_batch]["aboard"]
    while member != NONE:
        least = min(least, _slack_of(tables, batch_of(tables, member)))
        member = tables.intervals[member]["next"]
    return least


@kernel
def _slack_of(tables: Tables, batch: int) -> int:
    """Time between the reserved end of a batch and the deadline of its first request."""
    stages = tables.batches[batch]["stages"]
    last = tables.intervals[interval_of(tables, batch, stages, UPLINK)]
    if last["resource"] == NONE:
        last = tables.intervals[interval_of(tables, batch, stages - 1, VGPU)]
        if last["shared_batch"] != NONE:
            last = tables.intervals[interval_of(tables, last["shared_batch"], 0, VGPU)]
    return tables.requests[tables.batches[batch]["first"]]["deadline_us"] - last["end_us"]


@kernel
def shared_batch_timer(tables: Tables) -> int:
    """When to look after shared batches whose members are missing; FAR where there is none."""
    earliest = FAR
    shared_batch = tables.counts[0]["first_shared_batch"]
    while shared_batch != NONE:
        row = tables.batches[shared_batch]
        if row["missing"] > 0:
            start = tables.intervals[interval_of(tables, shared_batch, 0, VGPU)]["start_us"]
            earliest = min(earliest, _late_from(tables, row, start))
        shared_batch = row["next_shared_batch"]
    return earliest


@inlined
def _late_from(tables: Tables, shared_batch: Record, start_us: int) -> int:
    """From when on members of a shared batch are asked whether they can wait for missing ones."""
    return max(start_us + 1 + tables.counts[0]["patience_us"], shared_batch["leave_us"])


@kernel
def overdue_member(tables: Tables) -> int:
    """Batch slot of a member that no shared batch can wait for any longer; NONE without one.

    A shared batch that should have left, and can wait, says until when.
    """
    now = tables.counts[0]["now_us"]
    shared_batch = tables.counts[0]["first_shared_batch"]
    while shared_batch != NONE:
        row = tables.batches[shared_batch]
        start = tables.intervals[interval_of(tables, shared_batch, 0, VGPU)]["start_us"]
        if row["missing"] > 0 and _late_from(tables, row, start) <= now:
            row["leave_us"] = max(start + 1, start + waits_us(tables, shared_batch))
            member = row["aboard"]
            while member != NONE and row["leave_us"] <= now:
                if tables.intervals[member]["previous"] == 0:
                    return batch_of(tables, member)
                member = tables.intervals[member]["next"]
        shared_batch = row["next_shared_batch"]
    return NONE
