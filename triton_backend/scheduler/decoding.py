"""Integers of the answer (`acts`) as the decisions they are. Nothing changes here."""

from triton_backend.contract.decisions import Dispatch, Drop, Hop
from triton_backend.contract.reasons import DropReason
from triton_backend.scheduler.compiled import FAR
from triton_backend.scheduler.kernel_api import HEAD, HOP
from triton_backend.scheduler.tables import Tables


def dispatch_of(told: list[int], at: int, end: int) -> Dispatch:
    """The dispatch that lies at `at` .. `end` of an answer."""
    number, _, model, pipeline, samples, requests = told[at + 2 : at + HEAD]
    ids = at + HEAD
    hops = ids + requests
    return Dispatch(
        batch_id=number,
        model=model,
        pipeline=pipeline,
        request_ids=tuple(told[ids:hops]),
        samples=samples,
        hops=tuple(
            [
                Hop(
                    vgpu=told[k],
                    transfer_start_us=told[k + 1],
                    transfer_end_us=told[k + 2],
                    start_us=told[k + 3],
                    end_us=told[k + 4],
                )
                for k in range(hops, end, HOP)
            ]
        ),
    )


def drop_of(told: list[int], at: int) -> Drop:
    """The drop that lies at `at` of an answer; its finish is FAR where none was possible."""
    request_id, model, deadline_us, reason, finish_us, position = told[at + 2 : at + HEAD]
    return Drop(
        request_id=request_id,
        model=model,
        reason=DropReason(reason),
        deadline_us=deadline_us,
        best_finish_us=None if finish_us >= FAR else finish_us,
        queue_position=position,
    )


def left_out(tables: Tables, slot: int, reason: int) -> Drop:
    """The drop of a waiting request that a new plan cannot serve."""
    request = tables.requests[slot]
    return Drop(
        request_id=int(request["id"]),
        model=int(request["model"]),
        reason=DropReason(reason),
        deadline_us=int(request["deadline_us"]),
    )
