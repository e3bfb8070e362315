"""The fronts of all plans of this life: their numbers, and the frames that only they get."""

from triton_backend.contract.decisions import DropReason
from triton_backend.contract.errors import InputError
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gateway.peers.addresses import FrontAddress
from triton_backend.serving.transport.wire import (
    LOCAL_BITS,
    LOCALS,
    NONE,
    DropBody,
    Kind,
    PlanBody,
    frame,
    pack_drop,
    pack_plan,
)


class Fronts:
    """Numbers of fronts, and of their requests in the core.

    The core's number of a request is the front's own, with the number of the front above it.

    Attributes:
        guards_us: what they keep back of a request's time, by model, as they said it last.
    """

    def __init__(self) -> None:
        self.guards_us: dict[str, int] = {}
        self._fronts: list[FrontAddress] = []  # of every plan of this life
        self._first_requests: dict[FrontAddress, int] = {}

    def add(self, deployment: Deployment) -> None:
        """Give the fronts of a plan numbers; those that have one keep it."""
        for front in fronts_in(deployment.settings.gateways, deployment):
            if front not in self._first_requests:
                self._first_requests[front] = len(self._fronts) << LOCAL_BITS
                self._fronts.append(front)

    def number_of(self, front: FrontAddress, local: int) -> int:
        """The core's number of a front's request; negative for a front that no plan has had.

        Raises:
            InputError: fronts do not count so far.
        """
        if not 0 <= local < LOCALS:
            raise InputError(f"request {local}", f"fronts count from 0 to {LOCALS - 1}")
        return self._first_requests.get(front, -LOCALS) + local

    def front_of(self, request: int) -> FrontAddress:
        """The front of a request, by the core's number of it."""
        return self._fronts[request >> LOCAL_BITS]


def fronts_in(gateways: int, *deployments: Deployment) -> list[FrontAddress]:
    """The fronts of all served names of plans, each once: one in each gateway."""
    names = dict.fromkeys(name for each in deployments for name in each.served)
    return [FrontAddress(name, number) for name in names for number in range(gateways)]


def plan_frame(deployment: Deployment, *, prepared: bool) -> bytes:
    """PLAN: what a front must know of the generation served, or of the one prepared."""
    body = PlanBody(deployment.generation, deployment.plan.plan_id, prepared)
    return frame(Kind.PLAN, pack_plan(body), plan_tag=deployment.tag)


def drop_frame(
    request: int,
    reason: DropReason,
    deadline_us: int,
    *,
    best_finish_us: int = 0,
    queue_position: int = 0,
    module: int = NONE,
) -> bytes:
    """DROP of a request by its front's number; `best_finish_us` is 0 where nothing was probed."""
    body = DropBody(request, reason, deadline_us, best_finish_us, queue_position, module)
    return frame(Kind.DROP, pack_drop(body))
