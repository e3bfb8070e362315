"""Express requests: a batch of just one of them goes to its first worker at once."""

from collections.abc import Sequence

from triton_backend.contract.decisions import Dispatch
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.wire import (
    ArrivalBody,
    BatchBody,
    Kind,
    frame,
    pack_batch,
)


class ExpressArrivals:
    """Requests whose tensors lie in express slots of their fronts, by the core's number.

    A batch of just one of them goes to its first worker at once, which takes the tensors from
    there; the front gathers every other batch.
    """

    def __init__(self, deployment: Deployment) -> None:
        models = range(len(deployment.plan.models))
        self._tag = deployment.tag
        self._arrivals: dict[int, ArrivalBody] = {}
        self._bytes_per_sample = [
            deployment.express_layout(model).bytes_per_sample for model in deployment.plan.models
        ]
        self._slots = [deployment.express_slots(model) for model in models]
        self._here = frozenset(v.index for v in deployment.vgpus if deployment.at_gateway(v.index))

    def add(self, number: int, model: int, arrival: ArrivalBody, plan_tag: int) -> None:
        """A request came in an express slot of the plan of `plan_tag`."""
        if plan_tag == self._tag and arrival.express_slot in self._slots[model]:
            self._arrivals[number] = arrival

    def forget(self, number: int) -> None:
        """A request was dropped."""
        self._arrivals.pop(number, None)

    def batch_frame(
        self, dispatch: Dispatch, slots: Sequence[int], batch_number: int, now_us: int
    ) -> bytes | None:
        """BATCH to the first worker of a path, or None where the front has to gather.

        A slot is good once: a batch that runs again must not share it with the first run.
        """
        if not self._arrivals:
            return None
        arrivals = [self._arrivals.pop(number, None) for number in dispatch.request_ids]
        arrival = arrivals[0]
        if arrival is None or len(arrivals) > 1 or dispatch.hops[0].vgpu not in self._here:
            return None
        model, samples = dispatch.model, dispatch.samples
        body = BatchBody(
            model,
            dispatch.pipeline,
            samples,
            arrival.express_slot,
            arrival.payload_checksum,
            now_us,
            now_us,
            arrival.request,
            dispatch.hops,
            tuple(slots),
        )
        return frame(
            Kind.BATCH,
            pack_batch(body),
            batch_id=batch_number,
            plan_tag=self._tag,
            payload_bytes=samples * self._bytes_per_sample[model],
        )
