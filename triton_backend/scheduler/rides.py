"""Rides: shared batches in a stage that boards (Graft: tails of many clients that meet).

Batches of other pipelines, and of the same one, take seats in one run of their shared stage. A ride
has a batch slot of its own (`tables`) and one interval on one vGPU, as long as its seats need; who
is aboard changes neither:

    batch 7     [ align )[move)........
    batch 8                [align)[mv)..
    batch 9 (begins here)          ....               all end with the ride, and go on alone
    ride 10     vGPU                    [  7  8  9  .  )
                                        start         rows 0 .. seats - 1, a hole at a free seat

    opened  batches board it until it is full
    full    it moves forward to the earliest gap after the last arrival, and with it the moves of
            its members and the full rides that they board next
    start   it leaves with the batches aboard; for a missing one it waits while no other would be
            late (`slack_us`), then leaves without it, and its requests are queued again
    done    the members go on; a ride without members is over

A batch with a tight deadline takes the seats of a member that has time for a later ride
(`give_way`), or opens a ride before rides that can wait (`can_wait`), which start later
(`put_off`); their members whose rows come in time take the seats left (`fill_from_later`).

Here: who sits where, and when it leaves. Not here: which ride a batch boards (`probe`), what ends
and losses mean (`feedback`).
"""

from triton_backend.scheduler.compiled import FAR, NONE, Record, inlined, kernel
from triton_backend.scheduler.tables import (
    DOWNLINK,
    KINDS,
    RIDE,
    UPLINK,
    VGPU,
    Tables,
    add_decision,
    interval_of,
)
from triton_backend.scheduler.timeline import (
    delay,
    earliest_move,
    earliest_start,
    refresh,
    release,
    reserve,
)

MOST_PUT_OFF = 16  # rides, for the sake of one


@inlined
def spare_rows(tables: Tables) -> int:
    """Rows of `out` beyond those that a dispatch must find.

    A seat in each stage, and rides put off. Only the last stage of a pipeline puts rides off:
    members of no other are answered when they end.
    """
    counts = tables.counts[0]
    return len(tables.out) - counts["out"] - MOST_PUT_OFF - counts["boards"]


@inlined
def batch_of(tables: Tables, i: int) -> int:
    """The batch slot that an interval belongs to."""
    return i // (tables.offers.shape[1] * KINDS)


@kernel
def open_ride(tables: Tables, pool: int, vgpu: int, seats: int, start_us: int, end_us: int) -> int:
    """A ride without members yet, in a free batch slot (there must be one); returns the slot."""
    counts = tables.counts[0]
    slot = counts["free_batch"]
    ride = tables.batches[slot]
    counts["free_batch"] = ride["next_free"]
    ride["number"] = counts["batches"]
    counts["batches"] += 1
    ride["pipeline"] = ride["first"] = ride["last"] = ride["aboard"] = NONE
    ride["stages"] = 1
    ride["samples"] = ride["requests"] = ride["missing"] = 0
    ride["arrival_us"] = ride["leave_us"] = 0
    ride["dispatch_us"] = counts["now_us"]
    ride["seats"] = seats
    ride["pool"] = pool
    ride["next_ride"] = counts["first_ride"]
    counts["first_ride"] = slot
    tables.paths[slot, 0] = vgpu
    reserve(tables, interval_of(tables, slot, 0, VGPU), vgpu, start_us, end_us)
    return slot


@kernel
def first_row(tables: Tables, ride: int, rows: int) -> int:
    """The first of so many seats side by side that are free; NONE where there are none.

    It is the first of all or follows another's last.
    """
    seats = tables.batches[ride]["seats"]
    if tables.batches[ride]["samples"] + rows > seats:
        return NONE
    found = 0 if _free(tables, ride, 0, rows) else seats
    member = tables.batches[ride]["aboard"]
    while member != NONE:
        row = tables.intervals[member]["row"]
        row += tables.batches[batch_of(tables, member)]["samples"]
        if row < found and row + rows <= seats and _free(tables, ride, row, rows):
            found = row
        member = tables.intervals[member]["next"]
    return found if found + rows <= seats else NONE


@kernel
def _free(tables: Tables, ride: int, row: int, rows: int) -> bool:
    member = tables.batches[ride]["aboard"]
    while member != NONE:
        first = tables.intervals[member]["row"]
        end = first + tables.batches[batch_of(tables, member)]["samples"]
        if first < row + rows and row < end:
            return False
        member = tables.intervals[member]["next"]
    return True


@kernel
def take_seat(tables: Tables, ride: int, batch: int, hop: int, arrival_us: int) -> None:
    """A batch boards for its run at a hop; the moves into it are reserved, and there are seats."""
    i = interval_of(tables, batch, hop, VGPU)
    run, row = tables.intervals[i], tables.batches[ride]
    samples = tables.batches[batch]["samples"]
    run["row"] = first_row(tables, ride, samples)
    run["ride"] = ride
    run["next"] = row["aboard"]
    run["previous"] = 0
    row["aboard"] = i
    row["samples"] += samples
    row["arrival_us"] = max(row["arrival_us"], arrival_us)
    if hop == 0 and tables.intervals[interval_of(tables, batch, 0, DOWNLINK)]["resource"] == NONE:
        run["previous"] = 1
    else:
        row["missing"] += 1
    bring_forward(tables, ride)
    note(tables, ride)


@kernel
def start_by(tables: Tables, ride: int, start_us: int) -> None:
    """Let a ride start no later than at an instant from which its vGPU is free."""
    i = interval_of(tables, ride, 0, VGPU)
    lasts = tables.intervals[i]["end_us"] - tables.intervals[i]["start_us"]
    if start_us < tables.intervals[i]["start_us"]:
        release(tables, i)
        reserve(tables, i, tables.paths[ride, 0], start_us, start_us + lasts)


@kernel
def bring_forward(tables: Tables, ride: int) -> bool:
    """Let a full ride run as soon as its vGPU is free after the last arrival.

    True where that is sooner.
    """
    row = tables.batches[ride]
    i = interval_of(tables, ride, 0, VGPU)
    start, end = tables.intervals[i]["start_us"], tables.intervals[i]["end_us"]
    now = tables.counts[0]["now_us"]
    if row["samples"] < row["seats"] or start <= now:
        return False
    vgpu = tables.paths[ride, 0]
    release(tables, i)
    sooner = earliest_start(tables, vgpu, max(row["arrival_us"], now), end - start)
    sooner = min(sooner, start)
    reserve(tables, i, vgpu, sooner, sooner + end - start)
    return sooner < start


@kernel
def members_follow(tables: Tables, ride: int) -> None:
    """Move members that leave a ride sooner forward in their next one.

    So does that, where it is full. Moves are made as soon as both links are free. Only one stage
    on: what lies behind it stays as reserved.
    """
    hops = tables.offers.shape[1]
    ends = tables.intervals[interval_of(tables, ride, 0, VGPU)]["end_us"]
    member = tables.batches[ride]["aboard"]
    while member != NONE:
        batch = batch_of(tables, member)
        last = member // KINDS % hops == tables.batches[batch]["stages"] - 1
        if not last and tables.intervals[member + KINDS]["ride"] != NONE:
            _move_sooner(tables, member + KINDS, ends)
            following = tables.intervals[member + KINDS]["ride"]
            _recount_arrival(tables, following)
            if spare_rows(tables) > 0 and bring_forward(tables, following):
                note(tables, following)
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
def _recount_arrival(tables: Tables, ride: int) -> None:
    row = tables.batches[ride]
    row["arrival_us"] = 0
    member = row["aboard"]
    while member != NONE:
        row["arrival_us"] = max(row["arrival_us"], _comes_us(tables, member))
        member = tables.intervals[member]["next"]


@inlined
def note(tables: Tables, ride: int) -> None:
    """Say how a ride is now."""
    add_decision(tables, RIDE, ride, tables.batches[ride]["number"], FAR, 0)


@kernel
def can_wait(tables: Tables, i: int, end_us: int) -> bool:
    """True if a ride's interval and those behind it can wait until an instant, none late.

    Only rides that are not leaving yet wait, and only where all members are answered when they end.
    """
    rows = min(MOST_PUT_OFF, spare_rows(tables))
    while i != NONE and tables.intervals[i]["start_us"] < end_us:
        ride = batch_of(tables, i)
        later_us = end_us - tables.intervals[i]["start_us"]
        rows -= 1
        if rows < 0 or not can_change(tables, i) or _least_room(tables, ride) < later_us:
            return False
        end_us += tables.intervals[i]["end_us"] - tables.intervals[i]["start_us"]
        i = tables.intervals[i]["next"]
    return True


@inlined
def can_change(tables: Tables, i: int) -> bool:
    """True if an interval is a ride's whose worker can still be given another instant."""
    counts = tables.counts[0]
    ride = tables.batches[batch_of(tables, i)]
    leaves_us = tables.intervals[i]["start_us"]
    return (
        ride["seats"] > 0
        and ride["pool"] != NONE
        and leaves_us > counts["now_us"] + counts["doors_us"]
    )


@kernel
def before_whom(tables: Tables, vgpu: int, at_us: int, latest_us: int) -> int:
    """The first ride of a vGPU, of those that end after an instant, that may end after another.

    NONE where none may.
    """
    i = tables.resources[vgpu]["first"]
    while i != NONE:
        ends = tables.intervals[i]["end_us"]
        if ends > at_us and can_change(tables, i):
            ride = batch_of(tables, i)
            if ends + _least_room(tables, ride) > latest_us:
                return i
        i = tables.intervals[i]["next"]
    return NONE


@kernel
def _least_room(tables: Tables, ride: int) -> int:
    """How much later a ride may end with nothing behind it moved and no member late."""
    hops = tables.offers.shape[1]
    least = FAR
    member = tables.batches[ride]["aboard"]
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
    """Let rides that start from an instant on wait until another, in their order (`can_wait`)."""
    i = tables.resources[vgpu]["first"]
    while i != NONE and tables.intervals[i]["end_us"] <= start_us:
        i = tables.intervals[i]["next"]
    while i != NONE and tables.intervals[i]["start_us"] < end_us:
        lasts = tables.intervals[i]["end_us"] - tables.intervals[i]["start_us"]
        tables.intervals[i]["start_us"] = end_us
        end_us += lasts
        tables.intervals[i]["end_us"] = end_us
        note(tables, batch_of(tables, i))
        i = tables.intervals[i]["next"]
    refresh(tables, vgpu)


@kernel
def fill_from_later(tables: Tables, ride: int) -> None:
    """Give free seats to members of later rides on the vGPU whose rows are there when it leaves."""
    row = tables.batches[ride]
    run = tables.intervals[interval_of(tables, ride, 0, VGPU)]
    i = run["next"]
    moved = 0
    while i != NONE and row["samples"] < row["seats"]:
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
                and first_row(tables, ride, rows) != NONE
                and _comes_us(tables, member) <= run["start_us"]
            ):
                changed += 1
                _change(tables, member, other, ride)
            member = following
        moved += changed
        if changed > 0:
            note(tables, other)
            if tables.batches[other]["aboard"] == NONE:
                close(tables, other)
    if moved > 0:
        note(tables, ride)


@kernel
def gives_way(tables: Tables, ride: int, rows: int) -> int:
    """The member of a full ride that can best sit in a later one, and leaves so many rows.

    NONE where none can. That is the one with most time left.
    """
    hops = tables.offers.shape[1]
    best, most = NONE, -1
    member = tables.batches[ride]["aboard"]
    while member != NONE:
        batch = batch_of(tables, member)
        answered = member // KINDS % hops == tables.batches[batch]["stages"] - 1
        following = tables.intervals[member + UPLINK - VGPU + KINDS]["resource"]
        if answered and following == NONE and tables.batches[batch]["samples"] >= rows:
            slack = _slack_of(tables, batch)
            if slack > most and (
                _seat_behind(tables, ride, member) != NONE
                or _room_behind(tables, ride, member) < FAR
            ):
                best, most = member, slack
        member = tables.intervals[member]["next"]
    return best


@kernel
def _seat_behind(tables: Tables, ride: int, member: int) -> int:
    """A later ride of the vGPU that has seats for a member and ends in time for it.

    NONE where there is none.
    """
    batch = batch_of(tables, member)
    latest = tables.requests[tables.batches[batch]["first"]]["deadline_us"]
    i = tables.intervals[interval_of(tables, ride, 0, VGPU)]["next"]
    while i != NONE and tables.intervals[i]["end_us"] <= latest:
        other = batch_of(tables, i)
        same = tables.batches[other]["pool"] == tables.batches[ride]["pool"]
        rows = tables.batches[batch]["samples"]
        if same and can_change(tables, i) and first_row(tables, other, rows) != NONE:
            return other
        i = tables.intervals[i]["next"]
    return NONE


@kernel
def _room_behind(tables: Tables, ride: int, member: int) -> int:
    """When a ride of as many seats could start behind one, in time for a member.

    FAR where none could.
    """
    i = interval_of(tables, ride, 0, VGPU)
    end = tables.intervals[i]["end_us"]
    lasts = end - tables.intervals[i]["start_us"]
    start = earliest_start(tables, tables.paths[ride, 0], end, lasts)
    request = tables.batches[batch_of(tables, member)]["first"]
    return start if start + lasts <= tables.requests[request]["deadline_us"] else FAR


@kernel
def give_way(tables: Tables, member: int) -> None:
    """A member sits in a later ride than before, or opens one (`gives_way`)."""
    ride = tables.intervals[member]["ride"]
    other = _seat_behind(tables, ride, member)
    if other == NONE:
        start = _room_behind(tables, ride, member)
        i = interval_of(tables, ride, 0, VGPU)
        lasts = tables.intervals[i]["end_us"] - tables.intervals[i]["start_us"]
        row = tables.batches[ride]
        vgpu = tables.paths[ride, 0]
        other = open_ride(tables, row["pool"], vgpu, row["seats"], start, start + lasts)
    _change(tables, member, ride, other)
    note(tables, other)


@kernel
def _comes_us(tables: Tables, member: int) -> int:
    """When a member's rows are where its ride is, as reserved."""
    now = tables.counts[0]["now_us"]
    if tables.intervals[member]["previous"] == 1:
        return now
    move = tables.intervals[member + DOWNLINK - VGPU]
    if move["resource"] != NONE:
        return move["end_us"]
    before = (
        member - KINDS
    )  # its run before: it is no member of its first stage whose rows are missing
    if tables.intervals[before]["ride"] != NONE:
        before = interval_of(tables, tables.intervals[before]["ride"], 0, VGPU)
    return (
        tables.intervals[before]["end_us"] if tables.intervals[before]["resource"] != NONE else now
    )


@kernel
def _change(tables: Tables, member: int, before: int, ride: int) -> None:
    """A member of one ride sits in another of its vGPU, behind who boarded that last."""
    seat = tables.intervals[member]
    rows = tables.batches[batch_of(tables, member)]["samples"]
    _unchain(tables, before, member)
    seat["row"] = first_row(tables, ride, rows)
    seat["ride"] = ride
    last = tables.batches[ride]["aboard"]
    if last == NONE:
        seat["next"] = NONE
        tables.batches[ride]["aboard"] = member
    else:
        seat["next"] = tables.intervals[last]["next"]
        tables.intervals[last]["next"] = member
    tables.batches[before]["samples"] -= rows
    tables.batches[ride]["samples"] += rows
    if seat["previous"] == 0:
        tables.batches[before]["missing"] -= 1
        tables.batches[ride]["missing"] += 1
    at_us = _comes_us(tables, member)
    tables.batches[ride]["arrival_us"] = max(tables.batches[ride]["arrival_us"], at_us)


@inlined
def _unchain(tables: Tables, ride: int, member: int) -> None:
    row = tables.batches[ride]
    if row["aboard"] == member:
        row["aboard"] = tables.intervals[member]["next"]
        return
    before = row["aboard"]
    while tables.intervals[before]["next"] != member:
        before = tables.intervals[before]["next"]
    tables.intervals[before]["next"] = tables.intervals[member]["next"]


@kernel
def leave_rides(tables: Tables, batch: int) -> None:
    """A batch gives all its seats back, before whatever else it reserves."""
    for hop in range(tables.batches[batch]["stages"]):
        i = interval_of(tables, batch, hop, VGPU)
        ride = tables.intervals[i]["ride"]
        if ride == NONE:
            continue
        row = tables.batches[ride]
        _unchain(tables, ride, i)
        tables.intervals[i]["ride"] = NONE
        row["samples"] -= tables.batches[batch]["samples"]
        missing = tables.intervals[i]["previous"] == 0
        if missing:
            row["missing"] -= 1
        note(tables, ride)
        if row["aboard"] == NONE:
            close(tables, ride)
        elif missing and row["missing"] == 0:  # where its start has passed, it waited for this one
            delay(tables, interval_of(tables, ride, 0, VGPU), tables.counts[0]["now_us"])


@kernel
def close(tables: Tables, ride: int) -> None:
    """A ride is over: its slot is free, and so is what is left of its interval."""
    counts = tables.counts[0]
    release(tables, interval_of(tables, ride, 0, VGPU))
    if counts["first_ride"] == ride:
        counts["first_ride"] = tables.batches[ride]["next_ride"]
    else:
        before = counts["first_ride"]
        while tables.batches[before]["next_ride"] != ride:
            before = tables.batches[before]["next_ride"]
        tables.batches[before]["next_ride"] = tables.batches[ride]["next_ride"]
    tables.batches[ride]["number"] = NONE
    tables.batches[ride]["seats"] = 0
    tables.batches[ride]["next_free"] = counts["free_batch"]
    counts["free_batch"] = ride


@kernel
def arrived(tables: Tables, batch: int, hop: int, at_us: int) -> bool:
    """Rows of a batch are at a stage.

    False where it boards there and is too late for the others.
    """
    run = tables.intervals[interval_of(tables, batch, hop, VGPU)]
    ride = run["ride"]
    if ride == NONE or run["previous"] == 1:
        return True
    for kind in (UPLINK, DOWNLINK):
        if tables.intervals[interval_of(tables, batch, hop, kind)]["resource"] != NONE:
            return True  # it has yet to be moved
    i = interval_of(tables, ride, 0, VGPU)
    late_us = at_us - tables.intervals[i]["start_us"]
    if late_us > 0 and late_us > waits_us(tables, ride):
        return False
    run["previous"] = 1
    tables.batches[ride]["missing"] -= 1
    if late_us > 0 and tables.batches[ride]["missing"] == 0:
        delay(tables, i, at_us)
    return True


@kernel
def waits_us(tables: Tables, ride: int) -> int:
    """How much later than reserved a ride may run for the sake of a member that is missing."""
    return max(tables.counts[0]["patience_us"], slack_us(tables, ride))


@kernel
def slack_us(tables: Tables, ride: int) -> int:
    """How much later a ride may run with none late for it.

    Its members, and who follows on its vGPU.
    """
    i = interval_of(tables, ride, 0, VGPU)
    least = _least_slack(tables, ride)
    idle = 0
    end = tables.intervals[i]["end_us"]
    i = tables.intervals[i]["next"]
    while i != NONE:
        idle += tables.intervals[i]["start_us"] - end
        end = tables.intervals[i]["end_us"]
        owner = batch_of(tables, i)
        if tables.batches[owner]["seats"] > 0:
            least = min(least, idle + _least_slack(tables, owner))
        else:
            least = min(least, idle + _slack_of(tables, owner))
        i = tables.intervals[i]["next"]
    return least


@kernel
def _least_slack(tables: Tables, ride: int) -> int:
    least = FAR
    member = tables.batches[ride]["aboard"]
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
        if last["ride"] != NONE:
            last = tables.intervals[interval_of(tables, last["ride"], 0, VGPU)]
    return tables.requests[tables.batches[batch]["first"]]["deadline_us"] - last["end_us"]


@kernel
def ride_timer(tables: Tables) -> int:
    """When to look after rides whose members are missing; FAR where there is none."""
    earliest = FAR
    ride = tables.counts[0]["first_ride"]
    while ride != NONE:
        row = tables.batches[ride]
        if row["missing"] > 0:
            start = tables.intervals[interval_of(tables, ride, 0, VGPU)]["start_us"]
            earliest = min(earliest, _late_from(tables, row, start))
        ride = row["next_ride"]
    return earliest


@inlined
def _late_from(tables: Tables, ride: Record, start_us: int) -> int:
    """From when on a ride's members are asked whether they can wait for who is missing."""
    return max(start_us + 1 + tables.counts[0]["patience_us"], ride["leave_us"])


@kernel
def overdue_member(tables: Tables) -> int:
    """Batch slot of a member that no ride can wait for any longer; NONE without one.

    A ride that should have left, and can wait, says until when.
    """
    now = tables.counts[0]["now_us"]
    ride = tables.counts[0]["first_ride"]
    while ride != NONE:
        row = tables.batches[ride]
        start = tables.intervals[interval_of(tables, ride, 0, VGPU)]["start_us"]
        if row["missing"] > 0 and _late_from(tables, row, start) <= now:
            row["leave_us"] = max(start + 1, start + waits_us(tables, ride))
            member = row["aboard"]
            while member != NONE and row["leave_us"] <= now:
                if tables.intervals[member]["previous"] == 0:
                    return batch_of(tables, member)
                member = tables.intervals[member]["next"]
        ride = row["next_ride"]
    return NONE
