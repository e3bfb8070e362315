"""From one plan's tables to the next: requests that wait keep their place, deadline and number.

Nothing may be in flight. Not here: when a plan changes, what is dropped because of it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from triton_backend.contract.reasons import DropReason
from triton_backend.scheduler.compiled import NONE
from triton_backend.scheduler.queues import enqueue, new_request
from triton_backend.scheduler.tables import Tables, with_room
from triton_backend.scheduler.topology import pipelines_of


class LeftOut(NamedTuple):
    """A request the new plan cannot serve: its slot in the old tables, and why."""

    slot: int
    reason: DropReason


def hand_over(
    old: Tables, new: Tables, models: Sequence[int | None]
) -> tuple[Tables, list[LeftOut]]:
    """Move every waiting request into the new plan's empty tables.

    Args:
        old: tables of the old plan.
        new: tables of the new plan.
        models: number of each old model in the new plan, None where it is gone.

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
        model = models[int(request["model"])]
        if model is None:
            left_out.append(LeftOut(slot, DropReason.MODEL_REMOVED))
        elif request["samples"] > largest_batch(new, model):
            left_out.append(LeftOut(slot, DropReason.TOO_LARGE))
        else:
            new.counts[0]["now_us"] = request["arrival_us"]
            copy = new_request(
                new, model, request["id"], request["deadline_us"], request["samples"]
            )
            new.requests[copy]["retried"] = request["retried"]
            enqueue(new, copy)
    new.counts[0]["now_us"] = now_us
    return new, left_out


def largest_batch(tables: Tables, model: int) -> int:
    """Most samples that any pipeline of a model takes at once; 0 where it has none."""
    pipelines = tables.topology.pipelines[pipelines_of(tables.topology, model)]
    return int(pipelines["batch"].max(initial=0))
