"""One name for several variants of a model: a request goes to the front of the one chosen for it.

Every variant has its own front, queue and batches. Here: what the choice (`policies.variants`) is
given of a request, and that an answer says which variant gave it. Not here: fronts as one
(`sizes.SizedFront`).
"""

import threading
from collections.abc import Callable, Sequence

import numpy as np

from triton_backend.runtimes.clock import Clock
from triton_backend.scheduler.policies.variants import choose, new_variants, with_lost
from triton_backend.serve_folder.names import VARIANT_OUTPUT
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.front.pending import IncomingRequest, is_low
from triton_backend.serving.front.replies import Refusal, Result
from triton_backend.serving.front.service import FrontService


class VariantTable:
    """The variants of a name, and which takes a request.

    Args:
        model: the name that clients ask for.
        fronts: of the variants, in the plan's order.
        clock: of the requests' arrival.
    """

    def __init__(self, model: str, fronts: Sequence[FrontService], clock: Clock) -> None:
        self._model = model
        self._fronts = fronts
        self._clock = clock
        self._choosing = threading.Lock()
        self._lost = fronts[0].lost
        self._follow(fronts[0].deployment)

    def number_of(self, incoming: IncomingRequest) -> int:
        """Number of the variant that takes a request.

        Raises:
            InputError: it names a priority that is none.
        """
        samples = max((len(tensor.as_numpy()) for tensor in incoming.inputs()), default=1)
        low = is_low(f"model {self._model!r}", incoming.parameters())
        with self._choosing:
            front = self._fronts[0]
            if front.deployment is not self._deployment:
                self._follow(front.deployment)
            if front.lost != self._lost:
                self._lost = front.lost
                gateways = front.deployment.settings.gateways
                plan = front.deployment.plan
                self._rows = with_lost(self._rows, plan, gateways, self._lost)
            if not len(self._rows):
                return 0
            now_us = self._clock.now_us()
            return self._numbers[choose(self._rows, self._queue, max(samples, 1), now_us, low)]

    def replying(self, number: int, reply: Callable[[Result], None]) -> Callable[[Result], None]:
        """A reply to a request of a variant that names it."""
        name = self._fronts[number].model

        def named(result: Result) -> None:
            if not isinstance(result, Refusal):
                samples = len(next(iter(result.values()), ()))
                names = np.full(samples, name.encode(), dtype=np.object_)
                result = {**result, VARIANT_OUTPUT: names}
            reply(result)

        return named

    def _follow(self, deployment: Deployment) -> None:
        """Choose by a plan from now on."""
        plan = deployment.plan
        queues = dict(zip((m.name for m in plan.models), plan.queues(), strict=True))
        self._deployment = deployment
        self._rows = new_variants(plan, deployment.settings.gateways, self._lost)
        self._queue = queues[self._model][0] if self._model in queues else 0
        self._numbers = {
            queues[front.model][0]: number
            for number, front in enumerate(self._fronts)
            if front.model in queues
        }
