"""Policies of others that only the simulator runs, by name."""

from functools import partial

from triton_backend.scheduler.policies.registry import REACTIVE
from triton_backend.simulator.baselines.nexus import NEXUS, Nexus
from triton_backend.simulator.baselines.reactive import simulate_reactive
from triton_backend.simulator.baselines.shepherd import SHEPHERD, Shepherd
from triton_backend.simulator.baselines.triton import TRITON, Triton
from triton_backend.simulator.baselines.unreserved import TIMEOUTS
from triton_backend.simulator.baselines.whole_models import simulate_whole

BASELINES = {
    REACTIVE: simulate_reactive,
    NEXUS: partial(simulate_whole, Nexus, ()),
    SHEPHERD: partial(simulate_whole, Shepherd, ()),
    TRITON: partial(simulate_whole, Triton, TIMEOUTS),
}
"""`simulate` of every policy of `SIMULATOR_ONLY`."""
