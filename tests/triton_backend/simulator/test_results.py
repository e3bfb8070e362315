"""Figures of a run, derived by hand."""

from dataclasses import replace

import numpy as np
import pytest

from tests.fakes.plans import hand_model, hand_pipeline, hand_plan, hand_stage
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.entries import Entry
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.simulator.counted import request_columns
from triton_backend.simulator.offered import POISSON, Instant, Stated, StatedRequests
from triton_backend.simulator.results import SPANS, Outcome, PoolResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import PlanChange, SimOptions
from triton_backend.simulator.world import DROPPED, REQUEST_RECORD, SERVED

NODES = [NodeGroup(count=1, gpu_class="GPU", gpus=3, nic_gbps=10.0)]


def one_pool(slo_us: int = 100_000) -> Plan:
    """A model of 10 ms on two GPUs."""
    stage = hand_stage((0, 1), "GPU", PlacementRun(node=0, gpu=0, slot=0, gpus=2), (10_000,))
    model = hand_model("m", hand_pipeline(stage, batch=1), slo_us=slo_us, policy="eager")
    return hand_plan(model, nodes=NODES)


def with_entries() -> Plan:
    """A model of two blocks.

    Its tail is an entry of its own, on the pool of the whole model's tail.
    """
    head, tail = (PlacementRun(node=0, gpu=gpu, slot=0) for gpu in (0, 1))
    first = hand_stage((0, 1), "GPU", head, (10_000,))
    second = hand_stage((1, 2), "GPU", tail, (5_000,))
    whole = hand_pipeline(first, second, batch=1, rate_rps=50.0, entry="whole")
    cut = hand_pipeline(second, batch=1, rate_rps=25.0, entry="cut")
    entries = (
        Entry(name="whole", block=0, budget_us=40_000, rate_rps=50.0),
        Entry(name="cut", block=1, budget_us=7_000, rate_rps=25.0),
    )
    return hand_plan(
        hand_model("m", whole, cut, slo_us=40_000, policy="eager", entries=entries), nodes=NODES[:1]
    )


def test_pools_tell_how_busy_each_vgpu_was_and_what_that_advises() -> None:
    arrivals = Instant(by_model={"m": np.asarray([0, 0, 5_000])})
    result = simulate(one_pool(), SimOptions(arrivals=arrivals, duration_s=0.1))
    (pool,) = result.to_dict()["pools"].values()
    assert pool == {
        "vgpus": 2,
        "idle_fraction": pytest.approx(0.85),
        "busy_by_vgpu": [0.2, 0.1],
        "bad_rate": 0.0,
        "advice_gpus": -1,
    }


def test_batches_and_queueing_count_from_arrival_to_the_first_stage() -> None:
    arrivals = Instant(by_model={"m": np.asarray([0, 0, 5_000])})
    (model,) = simulate(one_pool(), SimOptions(arrivals=arrivals)).models
    told = model.to_dict()
    assert told["batches"] == {"1": 3}
    assert told["queueing_ms"] == {"p50": 0.0, "p99": pytest.approx(4.9)}
    assert told["latency_ms"]["p50"] == 10.0


def test_a_reserved_batch_is_dispatched_when_its_first_stage_begins() -> None:
    arrivals = Instant(by_model={"m": np.asarray([0, 1, 2])})
    options = SimOptions(arrivals=arrivals, policy="reservation")
    assert simulate(one_pool(), options).requests["dispatch_us"].tolist() == [0, 1, 10_000]


@pytest.mark.parametrize(
    ("offered", "bad", "busy", "advice"),
    [
        (100, 1, (0.5, 0.5), -1),  # at the threshold: 2 x 0.5 idle
        (100, 2, (1.0, 1.0), 1),  # 2 x 2 / 98
        (4, 2, (1.0, 1.0), 2),
        (3, 3, (1.0, 1.0), 18),  # no more than ten times as many
        (0, 0, (0.0, 0.0), -1),  # one stays
    ],
)
def test_gpus_are_advised_by_bad_requests_or_by_idle_time(
    offered: int, bad: int, busy: tuple[float, ...], advice: int
) -> None:
    pool = PoolResult(gpus=2.0, busy_by_vgpu=busy, offered=offered, bad=bad)
    assert pool.advice_gpus == advice


def test_a_pool_counts_the_requests_of_every_entry_on_it() -> None:
    stated = StatedRequests(
        arrival_us=np.asarray([0, 0, 1_000, 1_000]),
        deadline_us=np.asarray([-1, -1, -1, -1]),
        samples=np.asarray([1, 1, 1, 1]),
        models=("m",) * 4,
        entries=("whole", "cut", "cut", "cut"),
    )
    result = simulate(with_entries(), SimOptions(arrivals=Stated(requests=stated), duration_s=0.1))
    told = result.to_dict()
    assert {name: e["dropped"] for name, e in told["entries"]["m"].items()} == {
        "whole": 0,
        "cut": 2,
    }
    assert [pool["bad_rate"] for pool in told["pools"].values()] == [0.0, 0.5]
    assert request_columns(result)["entry"].tolist() == ["whole", "cut", "cut", "cut"]


def test_after_a_change_pools_are_those_of_the_new_plan() -> None:
    change = PlanChange(at_s=0.05, plan=one_pool())
    arrivals = Instant(by_model={"m": np.asarray([0, 60_000])})
    result = simulate(one_pool(), SimOptions(arrivals=arrivals, duration_s=0.1, changes=(change,)))
    (pool,) = result.pools.values()
    assert pool.busy_by_vgpu == (0.2, 0.0)
    assert pool.offered == 1


@pytest.mark.parametrize("together", [False, True])
def test_requests_missed_in_one_burst_leave_their_attainment_less_sure(*, together: bool) -> None:
    rows = np.zeros(100 * SPANS, dtype=REQUEST_RECORD)
    rows["outcome"] = SERVED
    missed = np.arange(SPANS) if together else np.arange(SPANS) * 100
    rows["outcome"][missed] = DROPPED
    found = Outcome.of(rows)
    assert found.attainment == pytest.approx(0.99)
    of_one = 0.2 / SPANS  # one part misses 20 %: its deviation of the mean of all
    assert found.error == pytest.approx(of_one if together else 0.0)


def test_other_seeds_attain_what_is_sure_of_one_run() -> None:
    options = SimOptions(arrivals=POISSON, load_factor=0.5, duration_s=100.0)
    result = simulate(one_pool(slo_us=12_000), options)
    (sure,) = result.attained(errors=2.0).values()
    assert sure < result.least_attainment < 1
    others = [
        simulate(one_pool(slo_us=12_000), replace(options, seed=seed)).least_attainment
        for seed in range(1, 11)
    ]
    assert sum(each >= sure for each in others) >= 9
