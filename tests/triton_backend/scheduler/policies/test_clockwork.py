"""Clockwork's rule is eager late binding that drops only what is too late."""

import numpy as np
import pytest

from tests.fakes.plans import Own, make_plan
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions


@pytest.mark.long
def test_it_decides_as_eager_does_with_heads_head() -> None:
    table_us = tuple(1_000 * b + 5_000 for b in range(1, 17))
    plan = make_plan([[Own(latency_us=table_us, gpus=3)]], slo_us=25_000)
    for rate_rps in (500.0, 1_800.0, 3_000.0):
        runs = [
            simulate(
                plan, SimOptions(policy=policy, heads=heads, rate_rps=rate_rps, duration_s=2.0)
            )
            for policy, heads in (("clockwork", None), ("eager", "head"))
        ]
        assert len(runs[0].uses) > 100
        assert np.array_equal(runs[0].requests, runs[1].requests)
        assert np.array_equal(runs[0].uses, runs[1].uses)
