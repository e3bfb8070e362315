"""Loads of stages on demand as the gateway counts them: by the order of runs."""

from tests.fakes.on_demand import MIB, on_demand_plan
from triton_backend.serving.gateway.counters import GatewayCounters
from triton_backend.serving.gateway.loads import Loads, loads_of


def test_loads_evictions_and_bytes_follow_from_the_order_of_runs() -> None:
    plan = on_demand_plan([100, 100, 100, 50], 200, pinned=(3,))
    counters = GatewayCounters()
    loads = Loads(plan, counters)
    assert loads.bytes_by_pool() == {plan.pools[0]: 0}
    for model in (0, 1, 0, 3, 2, 1):
        loads.ran((model, 0, 0), 0)
    assert {label.model: n for label, n in counters.loads.items()} == {"m0": 1, "m1": 2, "m2": 1}
    assert {label.model: n for label, n in counters.evictions.items()} == {"m0": 1, "m1": 1}
    assert loads.bytes_by_pool() == {plan.pools[0]: 200 * MIB}


def test_a_new_process_holds_nothing() -> None:
    plan = on_demand_plan([100, 100], 200, vgpus=2)
    counters = GatewayCounters()
    loads = Loads(plan, counters)
    for vgpu in (0, 1):
        loads.ran((0, 0, 0), vgpu)
    loads.worker_up(0)
    assert loads.bytes_by_pool() == {plan.pools[0]: 100 * MIB}
    loads.ran((0, 0, 0), 0)
    assert sum(counters.loads.values()) == 3


def test_plans_that_pin_all_stages_count_nothing() -> None:
    plan = on_demand_plan([100], 0, pinned=(0,))
    assert loads_of(plan, GatewayCounters()) is None
    assert loads_of(on_demand_plan([100], 100), GatewayCounters()) is not None
