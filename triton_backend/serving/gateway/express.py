"""Requests whose tensors lie in express slots of their fronts, where a first worker can take them.

A batch of just one of them goes to that worker at once; everything else goes by way of the front.
"""

from collections.abc import Sequence

from triton_backend.contract.decisions import Dispatch
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gateway.addresses import path_of
from triton_backend.serving.transport.wire import ArrivalBody, Kind, frame, pack_batch_path


class ExpressOffers:
    """The offers of one generation's fronts, by the core's number of a request."""

    def __init__(self, deployment: Deployment) -> None:
        self._tag = deployment.tag
        self._offers: dict[int, ArrivalBody] = {}
        self._bytes_per_sample = [
            deployment.express_layout(model).bytes_per_sample for model in deployment.plan.models
        ]
        self._slots = [deployment.express_slots(m) for m in range(len(deployment.plan.models))]
        self._here = frozenset(v.index for v in deployment.vgpus if deployment.at_gateway(v.index))

    def add(self, number: int, model: int, arrival: ArrivalBody, tag: int) -> None:
        """A request came in an express slot of the plan of `tag`."""
        if tag == self._tag and arrival.express_slot in self._slots[model]:
            self._offers[number] = arrival

    def forget(self, number: int) -> None:
        """A request was dropped."""
        self._offers.pop(number, None)

    def batch_frame(
        self, dispatch: Dispatch, slots: Sequence[int], epoch: int, now_us: int
    ) -> bytes | None:
        """BATCH to the first worker of a path, or None where the front has to gather.

        An offer is good once: a batch that runs again must not share its slot with the first run.
        """
        if not self._offers:
            return None
        offers = [self._offers.pop(number, None) for number in dispatch.request_ids]
        arrival = offers[0]
        if arrival is None or len(offers) > 1 or dispatch.hops[0].vgpu not in self._here:
            return None
        model, samples = dispatch.model, dispatch.samples
        body = pack_batch_path(
            (
                model,
                dispatch.pipeline,
                samples,
                arrival.express_slot,
                arrival.payload_checksum,
                now_us,
                now_us,
                arrival.request,
            ),
            path_of(dispatch, slots),
        )
        return frame(
            Kind.BATCH,
            body,
            batch_id=epoch + dispatch.batch_id,
            plan_tag=self._tag,
            payload_bytes=samples * self._bytes_per_sample[model],
        )
