"""Compiling the core's kernels before the first request needs them.

The first event of a scheduler takes 0.5 s (from the cache on disk) to 20 s (without). Every kind of
event goes through one compiled call (`kernel_api`), so a scheduler of its own gets one, and the
real one never waits for a compiler. As a program, `python -m … PLAN` leaves them in the cache on
disk.
"""

import json
import sys
from pathlib import Path

from triton_backend.contract.events import Pause
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.scheduler import Scheduler


def warm_up(plan: Plan, *, policy: str | None, nic: str) -> None:
    """Give one event to a scheduler that is thrown away."""
    Scheduler(plan, policy=policy, nic=nic).handle(Pause(now_us=0))


if __name__ == "__main__":
    asked = Plan.from_dict(json.loads(Path(sys.argv[1]).read_text()))
    warm_up(asked, policy=None, nic="shared")
