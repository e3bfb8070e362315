"""Which workers have reported to a new scheduler, and when it begins to dispatch.

A new scheduler takes all workers for lost until they say HELLO. Those of the life before may be
busy with its batches; they say so at once, and until when. Dispatching before they have would drop
what they could run in time, so the scheduler waits: for all workers, or a moment after the last
report for those left once every pool has a worker.
"""

from triton_backend.serving.deployment import Deployment

# Workers that live connect again within 20 ms; on a busy machine one after the other, as they get a
# processor.
MOMENT_US = 40_000
LONGEST_US = 150_000
# Those of a pool without a report are waited for so long.
PATIENCE_US = 1_000_000


class StartupBarrier:
    """Of the workers of one generation, from `now_us` on.

    Attributes:
        busy: vGPUs whose workers run batches of the life before, and when they will be idle.
        heard_us: when a worker reported last.
    """

    def __init__(self, deployment: Deployment, now_us: int) -> None:
        self._began_us = self.heard_us = now_us
        self._pools = [vgpu.pool for vgpu in deployment.vgpus]
        self.busy: dict[int, int] = {}

    def is_over(self, up: set[int], now_us: int) -> bool:
        """True if to dispatch from now on; `up` are the vGPUs whose workers are idle."""
        waited_us = now_us - self._began_us
        reported = up | self.busy.keys()
        if len(reported) == len(self._pools) or waited_us >= PATIENCE_US:
            return True
        waits_for_more = now_us - self.heard_us < MOMENT_US and waited_us < LONGEST_US
        present = {self._pools[vgpu] for vgpu in reported}
        return not waits_for_more and len(present) == len(set(self._pools))
