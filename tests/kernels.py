"""Compiling what many tests run, where no cache has it.

`scripts/test` has it done beside the files that begin. Scheduler and simulator run the same
kernels, which one process lowers once.
"""

from tests.fakes.plans import two_stages
from triton_backend.serving.gateway.warm_up import warm_up
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

if __name__ == "__main__":
    plan = two_stages()
    warm_up(plan, policy=None, nic="shared")
    simulate(plan, SimOptions(duration_s=0.1, load_factor=0.5))
