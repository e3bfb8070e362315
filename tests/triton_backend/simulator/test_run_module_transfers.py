"""Transfers between modules in the simulator: they take time and links of both nodes."""

from dataclasses import replace

import numpy as np
import pytest

from tests.fakes.applications import hand_application, with_applications
from tests.fakes.plans import Own, make_plan
from triton_backend.contract.applications import Module
from triton_backend.contract.plan import (
    PlacementRun,
    Plan,
    modules_spread,
    with_module_transfers,
)
from triton_backend.contract.tensors import TensorSpec
from triton_backend.scheduler.compiled import NONE
from triton_backend.scheduler.plan_rows import build_topology
from triton_backend.simulator.offered import POISSON, Instant
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

LATENCY_US = (4_000, 5_000, 6_000, 7_000)
MODULES = (
    Module(name="one", model="m0", inputs={"x": "request.x"}),
    Module(name="two", model="m1", inputs={"x": "one.y"}),
)


def chained(
    floats: int = 25_000,
    *,
    slo_us: int = 60_000,
    rate_rps: float = 100.0,
    latency_us: tuple[int, ...] = LATENCY_US,
) -> Plan:
    """Two modules on nodes of their own at 1 Gbit/s; each row between them has so many floats."""
    one = [[Own(latency_us=latency_us)]]
    plan = make_plan(one, one, slo_us=slo_us // 2, nic_gbps=1.0)
    tensors = (TensorSpec(name="x", dtype="FP32", shape=(-1, floats)),)
    models = tuple(replace(model, inputs=tensors) for model in plan.models)
    app = hand_application("app", MODULES, slo_us=slo_us, rate_rps=rate_rps)
    return with_applications(replace(plan, models=models), app)


def on_one_node(plan: Plan) -> Plan:
    """The same with both pools on GPUs of one node."""
    group = replace(plan.cluster.nodes[0], gpus=2)
    cluster = replace(plan.cluster, nodes=(group,))
    places = (PlacementRun(node=0, gpu=gpu, slot=0) for gpu in range(2))
    pools = tuple(replace(p, placement=(at,)) for p, at in zip(plan.pools, places, strict=True))
    return replace(plan, cluster=cluster, pools=pools).counted()


def latency_us(plan: Plan) -> int:
    """Of one job alone."""
    arrivals = Instant(by_model={"app": np.asarray([0], dtype=np.int64)})
    options = SimOptions(duration_s=1.0, applications=("app",), arrivals=arrivals)
    requests = simulate(plan, options).requests
    return int(requests["finish_us"][0] - requests["arrival_us"][0])


def test_a_job_takes_the_time_of_its_bytes_between_nodes() -> None:
    """100 kB at 1 Gbit/s are 800 µs."""
    plan = chained(latency_us=(4_000,))  # no wait for others
    assert modules_spread(plan)
    assert latency_us(with_module_transfers(plan)) == latency_us(plan) + 800
    assert not modules_spread(on_one_node(plan))
    assert latency_us(with_module_transfers(on_one_node(plan))) == latency_us(on_one_node(plan))


def test_both_nodes_links_are_reserved() -> None:
    topology = build_topology(with_module_transfers(chained()))
    source = topology.pipelines["source"].tolist()
    assert source[0] == NONE
    assert topology.vgpus[source[1]]["uplink"] != topology.vgpus[1]["uplink"]
    assert topology.move_us[1, 0, :5].tolist() == [0, 800, 1600, 2400, 3200]
    assert not topology.move_us[0].any()


@pytest.mark.parametrize("load", [0.5, 0.8, 0.95])
def test_what_is_accepted_is_in_time_and_links_carry_what_they_can(load: float) -> None:
    """300 kB a row: 417 rows/s of the link, 571 of the GPUs."""
    plan = with_module_transfers(chained(75_000, slo_us=120_000, rate_rps=400.0))
    options = SimOptions(duration_s=4.0, applications=("app",), arrivals=POISSON, load_factor=load)
    jobs = simulate(plan, options).applications["app"].outcome
    assert jobs.late == 0
    assert jobs.offered == jobs.served + jobs.dropped
    assert jobs.attainment > (0.99 if load < 0.9 else 0.5)


def test_more_than_links_carry_is_dropped_where_free_transfers_would_serve_all() -> None:
    plan = chained(75_000, slo_us=120_000, rate_rps=500.0)
    options = SimOptions(duration_s=4.0, applications=("app",), arrivals=POISSON)
    free, real = (
        simulate(p, options).applications["app"].outcome
        for p in (plan, with_module_transfers(plan))
    )
    assert free.attainment > 0.99
    served = np.asarray([real.served]) / 4.0
    assert served < 417 * 1.05
    assert real.late == 0
