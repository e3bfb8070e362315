"""What the quickstart offers by itself, and when asked."""

from dataclasses import replace

import pytest

from flows.planning import make_plan
from flows.quickstart.example_project import LOAD_FACTOR, MOST_RPS, offered_share
from tests.flows.planning.small import cluster, profile, workload


def test_a_plan_beyond_what_one_machine_offers_is_loaded_with_that_at_most() -> None:
    plan = make_plan({"net": profile()}, cluster(), workload())
    model = plan.models[0]
    slow = replace(plan, models=(replace(model, throughput_rps=10.0),))
    fast = replace(plan, models=(replace(model, throughput_rps=10_000.0),))
    assert offered_share(slow, None) == LOAD_FACTOR
    assert offered_share(fast, None) == pytest.approx(MOST_RPS / 10_000)
    assert offered_share(fast, 0.9) == 0.9
