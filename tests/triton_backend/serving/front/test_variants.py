"""The choice of a variant follows what the scheduler says of lost workers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.fakes.clock import VirtualClock
from tests.fakes.variants import with_rates
from tests.triton_backend.serving.one_name.variant_plans import VARIANTS, variant_plan
from tests.triton_backend.serving.system import LocalSystem, wait_for
from triton_backend.contract.plan import Plan
from triton_backend.serving.front.variants import VariantTable

RATE_RPS = 160.0  # of two GPUs that run batches of 4 in 50 ms
GAP_US = 6_300


def two_gpus() -> Plan:
    """The small plan on two GPUs that are planned in full."""
    plan = variant_plan()
    (nodes,), (pool,) = plan.cluster.nodes, plan.pools
    cluster = replace(plan.cluster, nodes=(replace(nodes, gpus=2),))
    run = replace(pool.placement[0], gpus=2)
    plan = replace(plan, cluster=cluster, pools=(replace(pool, vgpus=2, placement=(run,)),))
    return with_rates(plan, RATE_RPS, 0.0)


@pytest.mark.slow
def test_a_lost_worker_sends_requests_to_the_cheap_variant_until_it_is_back(tmp_path: Path) -> None:
    system = LocalSystem(tmp_path, two_gpus())
    try:
        front, clock = system.fronts[VARIANTS[0]], VirtualClock()
        fronts = [system.fronts[name] for name in VARIANTS]
        table = VariantTable(VARIANTS[0], fronts, system.deployment, clock)
        sent = np.ones((1, 3), np.float32)

        def variants() -> set[str]:
            """The models that take requests at little less than the planned rate."""
            found: set[str] = set()
            for _ in range(50):
                clock.at_us += GAP_US
                found.add(table.front_of({"x": lambda: sent}, lambda: False).model)
            return found

        wait_for(lambda: not front.lost)
        assert variants() == {VARIANTS[0]}
        system.stop_worker(1, 1)
        wait_for(lambda: front.lost == {system.deployment.plan.pools[0].name: 1})
        assert variants() == {VARIANTS[1]}
        system.start_worker(system.deployment, 1)
        wait_for(lambda: not front.lost)
        assert variants() == {VARIANTS[0]}
    finally:
        system.stop()
