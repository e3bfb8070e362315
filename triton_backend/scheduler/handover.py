"""From one plan's tables to the next: requests that wait keep their place, deadline and number.

Nothing may be in flight. Not here: when a plan changes, what is dropped because of it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from triton_backend.contract.plan import Plan
from triton_backend.contract.reasons import DropReason
from triton_backend.scheduler.compiled import NONE
from triton_backend.scheduler.queues import enqueue, new_request
from triton_backend.scheduler.tables import Tables, with_room


class LeftOut(NamedTuple):
    """A request the new plan cannot serve: its slot in the old tables, and why."""

    slot: int
    reason: DropReason


def matching_queues(before: Plan, after: Plan) -> list[int | None]:
    """Number in a new plan of every queue of an old one, by names of model and entry; None: gone.

    Queues are numbered as `topology` numbers them. A model without entries has one, named as itself.
    """
    names = [(model.name, entry.name) for model in after.models for entry in model.queues]
    numbers = {name: number for number, name in enumerate(names)}
    return [
        numbers.get((model.name, entry.name)) for model in before.models for entry in model.queues
    ]


def hand_over(
    old: Tables, new: Tables, queues: Sequence[int | None]
) -> tuple[Tables, list[LeftOut]]:
    """Move every waiting request into the new plan's empty tables.

    Args:
        old: tables of the old plan.
        new: tables of the new plan.
        queues: number of each old queue in the new plan, None where it is gone.

    Returns:
        the new tables (longer where needed) and the requests left out, by order of arrival.
    """
    waiting = [
        slot
        for slot in range(len(old.requests))
        if old.requests[slot]["sequence"] != NONE and old.requests[slot]["batch"] == NONE
    ]
    waiting.sort(key=lambda slot: int(old.requests[slot]["sequence"]))
    now_us = int(old.counts[0]["now_us"])
    new = with_room(
        new, batches=len(new.batches), requests=max(len(new.requests), 2 * len(waiting))
    )
    for name in ("batches", "armed_timer_us"):
        new.counts[0][name] = old.counts[0][name]
    left_out: list[LeftOut] = []
    for slot in waiting:
        request = old.requests[slot]
        queue = queues[int(request["queue"])]
        if queue is None:
            left_out.append(LeftOut(slot, DropReason.MODEL_REMOVED))
        elif request["samples"] > int(new.topology.queues[queue]["largest"]):
            left_out.append(LeftOut(slot, DropReason.TOO_LARGE))
        else:
            new.counts[0]["now_us"] = request["arrival_us"]
            copy = new_request(
                new, queue, request["id"], request["deadline_us"], request["samples"]
            )
            new.requests[copy]["retried"] = request["retried"]
            enqueue(new, copy)
    new.counts[0]["now_us"] = now_us
    return new, left_out
