"""Links of the simulated cluster: they carry one transfer at a time, in reserved order.

A transfer needs the sender's uplink and the receiver's downlink together. Of those that wait, the
one reserved first starts first; nothing starts before its reserved start.
"""

from triton_backend.scheduler.compiled import NONE, inlined, kernel
from triton_backend.simulator.heap import TRANSFER_DONE
from triton_backend.simulator.world import MOVING, WAITING_LINK, World, push


@inlined
def try_move(world: World, slot: int, now_us: int) -> bool:
    """Start a batch's transfer where both links are free; else it waits."""
    run = world.runs[slot]
    hop = world.hops[slot, run["stage"]]
    free = hop["uplink"] == NONE or world.carrying[hop["uplink"]] == NONE
    if free and (hop["downlink"] == NONE or world.carrying[hop["downlink"]] == NONE):
        if hop["uplink"] != NONE:
            world.carrying[hop["uplink"]] = slot
        if hop["downlink"] != NONE:
            world.carrying[hop["downlink"]] = slot
        run["phase"] = MOVING
        run["since_us"] = now_us
        length = hop["move_end_us"] - hop["move_start_us"]
        push(world, now_us + length, TRANSFER_DONE, slot, run["number"])
        return True
    if run["phase"] != WAITING_LINK:
        run["phase"] = WAITING_LINK
        world.moves[world.cursor[0]["moves_waiting"]] = slot
        world.cursor[0]["moves_waiting"] += 1
    return False


@inlined
def leave_links(world: World, slot: int, now_us: int) -> None:
    """Free the links that carry a batch."""
    run = world.runs[slot]
    hop = world.hops[slot, run["stage"]]
    for link in (hop["uplink"], hop["downlink"]):
        if link != NONE:
            world.carrying[link] = NONE
            world.busy_us[link] += now_us - run["since_us"]


@kernel
def next_moves(world: World, now_us: int) -> None:
    """Start every waiting transfer that can, those reserved first before others."""
    cursor = world.cursor[0]
    tried_start, tried_number = NONE, NONE
    for _ in range(cursor["moves_waiting"]):
        best = NONE
        best_start, best_number = 0, 0
        for k in range(cursor["moves_waiting"]):
            run = world.runs[world.moves[k]]
            start = world.hops[world.moves[k], run["stage"]]["move_start_us"]
            number = run["number"]
            later = start > tried_start or (start == tried_start and number > tried_number)
            sooner = start < best_start or (start == best_start and number < best_number)
            if later and (best == NONE or sooner):
                best, best_start, best_number = k, start, number
        if best == NONE:
            return
        tried_start, tried_number = best_start, best_number
        if try_move(world, world.moves[best], now_us):
            cursor["moves_waiting"] -= 1
            world.moves[best] = world.moves[cursor["moves_waiting"]]
