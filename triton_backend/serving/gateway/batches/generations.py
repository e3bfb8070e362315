"""Generations of the plan that this process keeps, and the workers that are up in each.

    prepared --> served --> former --> forgotten, when nothing of it is in flight or held

Here: which generation is which, found by its number or by the tag of a frame. Not here: the state
of one (`generation`), the steps of a change (`rollout`, `state`), which worker is lost
(`events.workers`) or slow (`liveness.supervisor`).
"""

from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gateway.batches.generation import Generation
from triton_backend.serving.gateway.peers.addresses import WorkerAddress


class Generations:
    """All generations of this life that still matter.

    Attributes:
        served: batches are dispatched by its plan.
        prepared: may follow it; None where there is none.
        former: those before, by their numbers, as long as batches of them are in flight.
    """

    def __init__(self, served: Generation) -> None:
        self.served = served
        self.prepared: Generation | None = None
        self.former: dict[int, Generation] = {}
        self._up: dict[int, set[int]] = {}  # vGPUs by generation

    @property
    def deployment(self) -> Deployment:
        """Of the generation served."""
        return self.served.deployment

    def begun(self) -> tuple[Generation, ...]:
        """Those with batches: the one served, and former ones."""
        return (self.served, *self.former.values())

    def begun_of(self, number: int) -> Generation | None:
        """The generation of a number, served or former."""
        served = self.served
        return served if served.deployment.generation == number else self.former.get(number)

    def tagged(self, tag: int) -> Generation | None:
        """The generation whose frames carry a tag, the one prepared too."""
        known = (*self.begun(), *(() if self.prepared is None else (self.prepared,)))
        return next((one for one in known if one.deployment.tag == tag), None)

    def swap(self) -> None:
        """Serve the one prepared; the one served before is a former one."""
        assert self.prepared is not None
        self.former[self.deployment.generation] = self.served
        self.served, self.prepared = self.prepared, None

    def forget(self, number: int) -> None:
        """Nothing of a former one is in flight or held any more."""
        del self.former[number]
        self._up.pop(number, None)

    # Workers

    def up(self, number: int) -> set[int]:
        """The vGPUs of a generation whose workers are up."""
        return self._up.get(number, set())

    def up_served(self) -> set[int]:
        """The same of the generation served."""
        return self.up(self.deployment.generation)

    def came(self, worker: WorkerAddress) -> None:
        """A worker is up."""
        self._up.setdefault(worker.generation, set()).add(worker.vgpu)

    def went(self, worker: WorkerAddress) -> bool:
        """A worker is up no more; False where it was not."""
        up = self.up(worker.generation)
        if worker.vgpu not in up:
            return False
        up.remove(worker.vgpu)
        if not up:
            del self._up[worker.generation]
        return True
