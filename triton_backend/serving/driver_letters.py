"""What the gateway sends and to whom: recipients, letters, and the frames made of its own state."""

from typing import NamedTuple

from triton_backend.core.decisions import Dispatch, DropReason
from triton_backend.serving.settings import Deployment
from triton_backend.serving.wire import (
    DROP_REASONS,
    DispatchBody,
    DropBody,
    HopGrant,
    Kind,
    frame,
    pack_dispatch,
    pack_drop,
    pack_json,
)


class Front(NamedTuple):
    """The front of a model, as a recipient."""

    model: str


class Worker(NamedTuple):
    """The worker of a vGPU of a generation, as a recipient."""

    generation: int
    vgpu: int


class Letter(NamedTuple):
    """A frame for somebody."""

    to: Front | Worker
    data: bytes


def plan_frame(deployment: Deployment, *, prepared: bool) -> bytes:
    """PLAN: what a front must know of the generation served, or of the one prepared."""
    body = {
        "generation": deployment.generation,
        "plan_id": deployment.plan.plan_id,
        "prepared": prepared,
    }
    return frame(Kind.PLAN, pack_json(body), plan_tag=deployment.tag)


def drop_frame(
    request: int,
    reason: DropReason,
    deadline_us: int,
    *,
    best_finish_us: int = 0,
    queue_position: int = 0,
) -> bytes:
    """DROP of a request by its front's number; `best_finish_us` is 0 where nothing was probed."""
    place = DROP_REASONS.index(reason)
    return frame(
        Kind.DROP, pack_drop(DropBody(request, place, deadline_us, best_finish_us, queue_position))
    )


def granted_hops(dispatch: Dispatch, slots: list[int]) -> tuple[HopGrant, ...]:
    """The path of a batch with the slot granted at every stage."""
    return tuple(
        HopGrant(hop.vgpu, slot, hop.transfer_start_us, hop.start_us, hop.end_us)
        for hop, slot in zip(dispatch.hops, slots, strict=True)
    )


def dispatch_frame(
    dispatch: Dispatch, hops: tuple[HopGrant, ...], requests: tuple[int, ...], tag: int, epoch: int
) -> bytes:
    """DISPATCH of a batch, its requests by their front's numbers, under the plan of `tag`."""
    body = DispatchBody(dispatch.pipeline, dispatch.samples, hops, requests)
    batch_id = epoch + dispatch.batch_id
    return frame(Kind.DISPATCH, pack_dispatch(body), batch_id=batch_id, plan_tag=tag)
