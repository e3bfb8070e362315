"""Which workers have reported to a new scheduler, and when it begins to dispatch.

A new scheduler takes all workers for lost until they say HELLO. Those of the life before may be busy with
its batches; they say so at once, and HELLO again when they are idle. Dispatching while a pool has nobody
up would drop what only that pool can run, so the scheduler waits: for all workers, or a moment for
whoever is left once every pool has somebody. A pool whose workers are all busy is used as it is:
what is sent there waits in a worker's queue.
"""

from triton_backend.serving.deployment import Deployment

# Workers that live connect anew within 20 ms.
MOMENT_US = 40_000
# Those of a pool that nobody of has reported are waited for so long.
PATIENCE_US = 1_000_000


class RollCall:
    """Of the workers of one generation, from `now_us` on."""

    def __init__(self, deployment: Deployment, now_us: int) -> None:
        self._began_us = now_us
        self._pools = [vgpu.pool for vgpu in deployment.vgpus]
        self._busy: set[int] = set()

    def busy(self, vgpu: int) -> None:
        """A worker lives, and runs batches of the life before."""
        self._busy.add(vgpu)

    def gone(self, vgpu: int) -> None:
        """A worker's connection ended."""
        self._busy.discard(vgpu)

    def is_over(self, up: set[int], now_us: int) -> bool:
        """Whether to dispatch from now on; `up` are the vGPUs whose workers are idle."""
        waited_us = now_us - self._began_us
        if len(up) == len(self._pools) or waited_us >= PATIENCE_US:
            return True
        present = {self._pools[vgpu] for vgpu in up | self._busy}
        return waited_us >= MOMENT_US and len(present) == len(set(self._pools))

    def stand_ins(self, up: set[int]) -> list[int]:
        """Busy workers of pools that have nobody idle."""
        served = {self._pools[vgpu] for vgpu in up}
        return sorted(vgpu for vgpu in self._busy if self._pools[vgpu] not in served)
