"""One name for several variants of a model: a request goes to the front of the one chosen for it.

Every variant has its own front, queue and batches. Here: what the choice (`policies.variants`) is
given of a request. Not here: the fronts of a name, and answers that name the variant (`group`).
"""

import threading
from collections.abc import Callable, Sequence

from triton_backend.runtimes.clock import Clock
from triton_backend.scheduler.policies.variants import choose, new_variants, with_lost
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.front.service import FrontService
from triton_backend.serving.front.sizes import Tensors


class VariantTable:
    """The variants of a name in a plan, and which takes a request.

    Args:
        model: the name that clients ask for.
        fronts: of the variants.
        deployment: the generation that has them.
        clock: of the requests' arrival.
    """

    def __init__(
        self, model: str, fronts: Sequence[FrontService], deployment: Deployment, clock: Clock
    ) -> None:
        plan = deployment.plan
        queues = dict(zip((m.name for m in plan.models), plan.queues(), strict=True))
        self._clock = clock
        self._choosing = threading.Lock()
        self._plan, self._gateways = plan, deployment.settings.gateways
        self._first, self._lost = fronts[0], fronts[0].lost
        self._rows = new_variants(plan, self._gateways, self._lost)
        self._queue = queues[model][0]
        self._fronts = {queues[front.model][0]: front for front in fronts}

    def front_of(self, tensors: Tensors, low: Callable[[], bool]) -> FrontService:
        """The front of the variant that takes a request.

        Raises:
            InputError: it names a priority that is none.
        """
        samples = max((len(tensor()) for tensor in tensors.values()), default=1)
        is_low = low()
        with self._choosing:
            if self._first.lost != self._lost:
                self._lost = self._first.lost
                self._rows = with_lost(self._rows, self._plan, self._gateways, self._lost)
            if not len(self._rows):
                return self._fronts[self._queue]
            now_us = self._clock.now_us()
            return self._fronts[choose(self._rows, self._queue, max(samples, 1), now_us, is_low)]
