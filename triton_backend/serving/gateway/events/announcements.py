"""Fronts and workers hear of generations: PLAN to fronts, ADOPT to workers that go on.

A generation that is only prepared is announced to one process after the other; one that is served,
at once. Not here: when deferred frames are sent (`peers.deferred`), which generation is which
(`batches.generations`), and when that changes (`state`).
"""

from collections.abc import Iterable

from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gateway.batches.generations import Generations
from triton_backend.serving.gateway.peers.addresses import FrontAddress, Send, WorkerAddress
from triton_backend.serving.gateway.peers.deferred import DeferredFrames
from triton_backend.serving.gateway.peers.fronts import fronts_in, plan_frame
from triton_backend.serving.transport.wire import AdoptBody, Kind, frame, pack_adopt


class Announcements:
    """Tells fronts and workers of generations.

    Attributes:
        deferred: what they are still to hear, one after the other.
    """

    def __init__(self, generations: Generations, send: Send, now_us: int) -> None:
        self.deferred = DeferredFrames(send, now_us)
        self._generations = generations
        self._send = send

    def plan_frames(self) -> list[bytes]:
        """Generations for a front: the one served, and the one prepared."""
        frames = [plan_frame(self._generations.deployment, prepared=False)]
        if self._generations.prepared is not None:
            frames.append(plan_frame(self._generations.prepared.deployment, prepared=True))
        return frames

    def expected_fronts(self) -> list[FrontAddress]:
        """The fronts of the plan served, and of the one prepared."""
        prepared = self._generations.prepared
        plans = [self._generations.deployment, *([] if prepared is None else [prepared.deployment])]
        return fronts_in(self._generations.deployment.settings.gateways, *plans)

    def announce(self, deployment: Deployment, other: Deployment, *, prepared: bool) -> None:
        """Tell the fronts of a plan of it, and those of the plan that it follows or outlives."""
        data = plan_frame(deployment, prepared=prepared)
        for front in fronts_in(self._generations.deployment.settings.gateways, deployment, other):
            self.deferred.forget(front)
            if prepared:
                self.deferred.put(front, data)
            else:
                self._send(front, data)

    def adopt(self, latest: Deployment, vgpus: Iterable[int]) -> None:
        """Have workers of the generation served serve another one too, and none after it."""
        oldest = min(self._generations.former, default=self._generations.deployment.generation)
        adopt = frame(Kind.ADOPT, pack_adopt(AdoptBody(latest.generation, oldest)))
        for vgpu in vgpus:
            self.deferred.put(WorkerAddress(self._generations.deployment.generation, vgpu), adopt)

    def offer(self, worker: WorkerAddress) -> None:
        """Have a worker that goes on serve the prepared generation too; harmless where it does."""
        prepared = self._generations.prepared
        if prepared is None or worker.generation != self._generations.deployment.generation:
            return
        if any(worker.vgpu == before for before, _ in self.inherited(prepared.deployment)):
            self.adopt(prepared.deployment, [worker.vgpu])

    def inherited(self, deployment: Deployment) -> tuple[tuple[int, int], ...]:
        """Numbers of the workers that go on: in the generation served, and in a later one."""
        numbers = {origin: vgpu for vgpu, origin in enumerate(self._generations.deployment.origins)}
        return tuple(
            (numbers[origin], vgpu)
            for vgpu, origin in enumerate(deployment.origins)
            if origin in numbers
        )
