"""What the gateway sends and to whom: recipients, and the frames made of its own state."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from triton_backend.contract.decisions import Dispatch
from triton_backend.contract.reasons import DropReason
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.wire import (
    LOCALS,
    DropBody,
    Kind,
    frame,
    pack_drop,
    pack_json,
    pack_path,
)


class Front(NamedTuple):
    """The front of a model, as a recipient."""

    model: str


class Worker(NamedTuple):
    """The worker of a vGPU of a generation, as a recipient."""

    generation: int
    vgpu: int


Post = Callable[[Front | Worker, bytes], None]
"""Sends somebody a frame; who is not there gets none."""


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
    body = DropBody(request, reason, deadline_us, best_finish_us, queue_position)
    return frame(Kind.DROP, pack_drop(body))


def path_of(dispatch: Dispatch, slots: Sequence[int]) -> list[int]:
    """The fields of a batch's `HopGrant`s one after the other."""
    path: list[int] = []
    for stage, hop in enumerate(dispatch.hops):
        path += (hop.vgpu, slots[stage], hop.transfer_start_us, hop.start_us, hop.end_us)
    return path


def dispatch_frame(dispatch: Dispatch, slots: Sequence[int], tag: int, epoch: int) -> bytes:
    """DISPATCH of a batch with the slot granted at every stage, under the plan of `tag`."""
    requests = tuple([number % LOCALS for number in dispatch.request_ids])
    body = pack_path(dispatch.pipeline, dispatch.samples, path_of(dispatch, slots), requests)
    return frame(Kind.DISPATCH, body, batch_id=epoch + dispatch.batch_id, plan_tag=tag)
