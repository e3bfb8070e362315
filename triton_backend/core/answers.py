"""Rows of the tables as the decisions that are answered. Nothing changes here."""

from triton_backend.core.compiled import FAR, NONE, Integers
from triton_backend.core.decisions import Dispatch, Drop, DropReason, Hop
from triton_backend.core.steps import HOP, describe
from triton_backend.core.tables import Tables

REASONS = tuple(DropReason)


def request_ids(tables: Tables, batch: int) -> list[int]:
    """Ids of the requests in a batch slot, in the order of their samples."""
    requests = tables.requests
    ids: list[int] = []
    slot = int(tables.batches[batch]["first"])
    while slot != NONE:
        ids.append(int(requests[slot]["id"]))
        slot = int(requests[slot]["next"])
    return ids


def dispatch_of(tables: Tables, batch: int, room: Integers) -> Dispatch:
    """The dispatch of a batch slot; `room` is long enough for `steps.describe`."""
    count = describe(tables, batch, room)
    number, model, pipeline, samples, requests, *rest = room[:count].tolist()
    hops = rest[requests:]
    return Dispatch(
        batch_id=number,
        model=model,
        pipeline=pipeline,
        request_ids=tuple(rest[:requests]),
        samples=samples,
        hops=tuple(
            Hop(
                vgpu=hops[k],
                transfer_start_us=hops[k + 1],
                transfer_end_us=hops[k + 2],
                start_us=hops[k + 3],
                end_us=hops[k + 4],
            )
            for k in range(0, len(hops), HOP)
        ),
    )


def drop_of(
    tables: Tables, slot: int, reason: int, finish_us: int = FAR, position: int = 0
) -> Drop:
    """The drop of a request slot; `finish_us` is FAR where none was possible."""
    request = tables.requests[slot]
    return Drop(
        request_id=int(request["id"]),
        model=int(request["model"]),
        reason=REASONS[reason],
        deadline_us=int(request["deadline_us"]),
        best_finish_us=None if finish_us >= FAR else finish_us,
        queue_position=position,
    )
