"""Pools that follow the load: near the right size within three epochs, nothing lost in between."""

from typing import Any

import pytest

from tests.fakes.applications import hand_application, hand_module, with_applications
from tests.fakes.plans import (
    Own,
    hand_model,
    hand_pipeline,
    hand_plan,
    hand_stage,
    make_plan,
)
from triton_backend.contract.arrivals import parse_stated
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.entries import Entry
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.simulator.autoscale import epochs_of, with_gpus
from triton_backend.simulator.offered import Instant, Stated
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import PlanChange, SimOptions

TABLE_US = tuple(1_000 * b + 5_000 for b in range(1, 17))  # 21 ms for 16
SLO_US = 25_000
RATE_RPS = 5_000.0


def plan_of(*gpus: int, cluster: int = 24) -> Plan:
    """A model per pool, GPU by GPU on nodes of one."""
    models = []
    first = 0
    for number, count in enumerate(gpus):
        place = PlacementRun(node=first, gpu=0, slot=0, nodes=count)
        stage = hand_stage((0, 4), "GPU", place, TABLE_US, batch=14)
        pipeline = hand_pipeline(stage, batch=14, rate_rps=100.0 * count)
        models.append(hand_model(f"m{number}", pipeline, slo_us=SLO_US, policy="deferred"))
        first += count
    return hand_plan(*models, nodes=[NodeGroup(count=cluster, gpu_class="GPU", gpus=1, nic_gbps=8)])


@pytest.mark.slow
@pytest.mark.parametrize("start", [4, 16])
def test_a_pool_of_half_or_double_the_right_size_is_near_it_after_three_epochs(start: int) -> None:
    options = SimOptions(rate_rps=RATE_RPS, duration_s=10.0)
    epochs = list(epochs_of(plan_of(start), options, epoch_s=2.0))
    assert [epoch.start_s for epoch in epochs] == [0.0, 2.0, 4.0, 6.0, 8.0]
    fewest = next(
        gpus
        for gpus in range(6, 16)
        if simulate(plan_of(gpus), options).attainment >= 0.99  # more than one epoch, one size
    )
    for epoch in epochs[3:]:
        pool = next(iter(epoch.pools.values()))
        assert abs(pool.vgpus - fewest) <= max(1, 0.1 * fewest)
        assert epoch.attainment >= 0.99
    assert sum(epoch.offered for epoch in epochs) == len(simulate(plan_of(8), options).requests)


def test_pools_follow_their_own_load_and_take_no_more_gpus_than_there_are() -> None:
    plan = plan_of(4, 4, cluster=10)
    busy = Instant(by_model={"m0": plan_instants(4_000), "m1": plan_instants(200)})
    options = SimOptions(arrivals=busy, duration_s=4.0)
    last = list(epochs_of(plan, options, epoch_s=1.0))[-1]
    sizes = [pool.vgpus for pool in last.pools.values()]
    assert sizes[0] > 4
    assert sizes[1] < 4
    assert sum(sizes) <= 10
    assert last.to_dict()["pools"].keys() == last.pools.keys()


def test_advice_that_is_not_followed_is_told() -> None:
    epochs = list(epochs_of(plan_of(8), SimOptions(load_factor=0.1), 15.0, follow=False))
    assert [pool.vgpus for epoch in epochs for pool in epoch.pools.values()] == [8, 8]
    assert all(pool.change < 0 for epoch in epochs for pool in epoch.pools.values())


def application_plan() -> Plan:
    """An application whose second module runs two rows per request, each model on two GPUs."""
    modules = [hand_module("detect", "m0"), hand_module("cars", "m1", "detect", rows=2, max_rows=8)]
    own = [[Own(latency_us=(1_000,) * 8)]]
    return with_applications(make_plan(own, own), hand_application("app", modules, rate_rps=50))


def entries_plan() -> Plan:
    """Two entries of one model: the whole of it, and its second half."""
    place = [PlacementRun(node=number, gpu=0, slot=0) for number in range(2)]
    whole = hand_pipeline(
        hand_stage((0, 4), "GPU", place[0], TABLE_US, batch=1), batch=1, rate_rps=60, entry="whole"
    )
    tails = hand_pipeline(
        hand_stage((2, 4), "GPU", place[1], TABLE_US, batch=1), batch=1, rate_rps=30, entry="tails"
    )
    entries = (
        Entry(name="whole", block=0, budget_us=SLO_US, rate_rps=60),
        Entry(name="tails", block=2, budget_us=SLO_US, rate_rps=30),
    )
    model = hand_model("m", whole, tails, slo_us=SLO_US, entries=entries)
    return hand_plan(model, nodes=[NodeGroup(count=2, gpu_class="GPU", gpus=1, nic_gbps=8)])


@pytest.mark.parametrize("plan", [application_plan(), entries_plan()], ids=["app", "entries"])
def test_epochs_of_applications_and_entries_have_the_requests_of_the_whole_run(plan: Plan) -> None:
    options = SimOptions(duration_s=5.0, load_factor=0.5)
    epochs = list(epochs_of(plan, options, 2.0, follow=False))
    whole = simulate(plan, options)
    assert sum(epoch.offered for epoch in epochs) == len(whole.requests) > 100
    assert all(epoch.attainment == pytest.approx(1.0) for epoch in epochs)
    assert all(pool.idle < 1 for epoch in epochs for pool in epoch.pools.values())
    with pytest.raises(InputError, match="epoch: pools of applications and entries"):
        list(epochs_of(plan, options, 2.0))


def test_requests_of_an_epoch_keep_their_samples_deadlines_and_priority() -> None:
    plan = plan_of(8)
    rows = parse_stated(
        ["arrival_s,model,samples,deadline_ms", "0.5,m0,3,40", "1.5,m0,2,1", "1.6,m0,1,40"],
        model_column="model",
    )
    stated = SimOptions(arrivals=Stated(requests=rows), duration_s=2.0)
    epochs = list(epochs_of(plan, stated, 1.0, follow=False))
    assert [(epoch.offered, epoch.attainment) for epoch in epochs] == [(1, 1.0), (2, 0.5)]
    usual, more = SimOptions(duration_s=2.0), SimOptions(duration_s=2.0, low_load_factor=0.2)
    counts = [
        [epoch.offered for epoch in epochs_of(plan, options, 1.0, follow=False)]
        for options in (usual, more)
    ]
    assert counts[0] == counts[1]  # low requests are no demand


def plan_instants(rate_rps: float) -> Any:
    """Equal gaps over four seconds, in µs."""
    return [round(number * 1e6 / rate_rps) for number in range(int(4 * rate_rps))]


def test_a_pool_keeps_its_first_vgpus_and_grows_on_free_ones() -> None:
    plan = plan_of(4, 3, cluster=8)
    names = [pool.name for pool in plan.pools]
    fewer = with_gpus(plan, {names[0]: -2})
    assert fewer.pools[0].slots() == plan.pools[0].slots()[:2]
    assert fewer.gpus_used == {"GPU": 5}
    assert fewer.models[0].pipelines[0].throughput_rps == pytest.approx(200)
    more = with_gpus(plan, {names[0]: 5})
    assert more.pools[0].vgpus == 5  # one was free
    assert with_gpus(plan, {names[1]: -9}).pools[1].vgpus == 1
    both = with_gpus(plan, {names[0]: -2, names[1]: 2})
    assert [pool.vgpus for pool in both.pools] == [2, 5]


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(InputError, match=r"epoch: 0\.0 s is not positive"):
        list(epochs_of(plan_of(4), SimOptions(), 0.0))
    change = PlanChange(at_s=1.0, plan=plan_of(4))
    with pytest.raises(InputError, match="no other plan"):
        list(epochs_of(plan_of(4), SimOptions(changes=(change,)), 1.0))
