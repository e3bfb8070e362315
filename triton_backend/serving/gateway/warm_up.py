"""Compiling the core's kernels before the first request needs them.

The first event of a scheduler takes 0.5 s (from the cache on disk) to 20 s (without). Every kind of
event goes through one compiled call (`kernel_api`), so a scheduler of its own gets one, and the
real one never waits for a compiler. As a program it leaves them in the cache on disk, for any plan.
"""

import numpy as np

from triton_backend.contract.events import Pause
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.compiled import compile_for
from triton_backend.scheduler.kernel_api import handle_event
from triton_backend.scheduler.scheduler import Scheduler


def warm_up(plan: Plan, *, policy: str | None, nic: str) -> None:
    """Give one event to a scheduler that is thrown away."""
    Scheduler(plan, policy=policy, nic=nic).handle(Pause(now_us=0))


if __name__ == "__main__":
    compile_for(handle_event, np.zeros(0, dtype=np.int64), 0, 0, 0, 0, 0, 0)
