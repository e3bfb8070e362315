"""A plan as arrays: links shared or isolated, transfers counted, paces corrected."""

from dataclasses import replace

import numpy as np
import pytest

from tests.fakes.arrivals import SLO_US, arrival, arrive, ran
from tests.fakes.plans import Own, Way, make_boarding_plan, make_plan, two_stages, two_tails
from triton_backend.contract.decisions import (
    Decision,
    Dispatch,
    Drop,
    Hop,
)
from triton_backend.contract.errors import InputError
from triton_backend.contract.events import (
    LinkPaceChanged,
    PaceChanged,
    StageDone,
    TransferDone,
)
from triton_backend.contract.tensors import TensorSpec
from triton_backend.scheduler.plan_rows import build_topology
from triton_backend.scheduler.scheduler import Scheduler
from triton_backend.scheduler.topology import Nic


def test_isolated_links_do_not_hinder_other_pipelines() -> None:
    def finishes(nic: str) -> list[int]:
        pools = [
            Own(latency_us=(1_000,), gpus=1, bytes_out=5_000_000),
            Own(latency_us=(1_000,), gpus=2, gpus_per_node=2),
        ]
        scheduler = Scheduler(make_plan([pools, pools]), nic=nic)
        decided = arrive(scheduler, 2)
        return [d.hops[-1].end_us for d in decided if isinstance(d, Dispatch)]

    assert finishes("isolated") == [7_000, 7_000]


@pytest.mark.parametrize(("nic", "downlinks"), [("shared", [0, 1, 1]), ("isolated", [0, 1, 2])])
def test_only_isolated_vgpus_of_a_last_stage_have_a_downlink_each(
    nic: Nic, downlinks: list[int]
) -> None:
    first, last = Own(latency_us=(1_000,)), Own(latency_us=(1_000,), gpus=2, gpus_per_node=2)
    vgpus = build_topology(make_plan([[first, last]]), nic=nic).vgpus
    assert np.unique(vgpus["downlink"], return_inverse=True)[1].tolist() == downlinks
    assert np.unique(vgpus["uplink"], return_inverse=True)[1].tolist() == [0, 1, 1]


def counting_io() -> Scheduler:
    """One vGPU: an input takes 2 ms to it, a run 10 ms, an answer 1 ms."""
    image = TensorSpec(name="image", dtype="UINT8", shape=(-1, 2_000_000))
    classes = TensorSpec(name="classes", dtype="UINT8", shape=(-1, 1_000_000))
    plan = make_plan([[Own(latency_us=(10_000,))]])
    plan = replace(plan, models=(replace(plan.models[0], inputs=(image,), outputs=(classes,)),))
    return Scheduler(plan, count_io=True)


def test_counting_io_reserves_the_transfers_of_input_and_answer() -> None:
    scheduler = counting_io()
    first, second = arrive(scheduler, 2)
    assert isinstance(first, Dispatch)
    assert isinstance(second, Dispatch)
    assert first.hops[0] == Hop(
        vgpu=0, transfer_start_us=0, transfer_end_us=2_000, start_us=2_000, end_us=12_000
    )
    assert second.hops[0].transfer_start_us == 2_000
    done = {"now_us": 12_000, "batch_id": 0, "end_us": 12_000}
    scheduler.handle(StageDone(stage=0, start_us=2_000, **done))
    assert scheduler.in_flight() == 2
    scheduler.handle(
        TransferDone(now_us=13_000, batch_id=0, stage=1, start_us=12_000, end_us=13_000)
    )
    assert scheduler.in_flight() == 1
    scheduler.check_invariants()


def test_an_answer_leaves_later_where_its_run_ends_later() -> None:
    scheduler = counting_io()
    arrive(scheduler, 2)
    scheduler.handle(
        StageDone(now_us=15_000, batch_id=0, stage=0, start_us=2_000, end_us=15_000)
    )  # 3 ms later than reserved, and so are the run and the answer behind it
    scheduler.check_invariants()
    (third,) = arrive(scheduler, 1, now_us=15_000, first=2)
    assert isinstance(third, Dispatch)
    assert third.hops[0].start_us == 25_000


def test_company_is_worth_waiting_for_only_where_stages_behind_board() -> None:
    shared, own = Own(latency_us=(4_000, 5_000)), Own(latency_us=(3_000, 4_000))
    ways = (Way(pools=(0, 1)), Way(pools=(0, 2)))
    before = build_topology(
        make_boarding_plan([((0, 2), shared), ((2, 4), own), ((2, 4), own)], *ways)
    )
    assert before.stages["capacity"].tolist() == [2, 0, 2, 0]
    assert before.stages["company_us"].tolist() == [0, 0, 0, 0]
    behind = build_topology(two_tails())
    assert behind.stages["capacity"].tolist() == [0, 4, 4]
    assert (behind.stages["company_us"] > 0).tolist() == [True, False, False]


def test_links_that_have_become_slower_are_planned_as_if_they_always_were() -> None:
    planned = two_stages()
    senders, receivers = planned.cluster.nodes
    slower = replace(
        planned.cluster,
        nodes=(
            replace(senders, nic_gbps=senders.nic_gbps / 4),
            replace(receivers, nic_gbps=receivers.nic_gbps / 2),
        ),
    )
    scheduler, planned_so = Scheduler(planned), Scheduler(replace(planned, cluster=slower))
    for node in range(planned.cluster.node_count):
        percent = 400 if node < senders.count else 200
        change = LinkPaceChanged(
            now_us=0, node=node, uplink_percent=percent, downlink_percent=percent
        )
        assert scheduler.handle(change) == []
    for number in range(40):
        event = arrival(number, number * 700)
        assert scheduler.handle(event) == planned_so.handle(event)
    scheduler.check_invariants()


def test_a_slow_uplink_alone_delays_what_leaves_its_node() -> None:
    scheduler = Scheduler(two_stages())
    scheduler.handle(LinkPaceChanged(now_us=0, node=0, uplink_percent=300, downlink_percent=100))
    decided = arrive(scheduler, 20)
    moves = {
        d.hops[0].vgpu: d.hops[1].transfer_end_us - d.hops[1].transfer_start_us
        for d in decided
        if isinstance(d, Dispatch)
    }
    assert moves == {0: 12_000, 1: 4_000, 2: 4_000, 3: 4_000}
    back = LinkPaceChanged(now_us=1, node=0, uplink_percent=100, downlink_percent=100)
    assert scheduler.handle(back) == []
    scheduler.check_invariants()


def test_a_link_may_be_a_hundred_times_faster_and_no_more() -> None:
    scheduler = Scheduler(two_stages())
    fast = LinkPaceChanged(now_us=0, node=0, uplink_percent=1, downlink_percent=1)
    assert scheduler.handle(fast) == []
    for field in ("uplink_percent", "downlink_percent"):
        with pytest.raises(InputError, match="no such node, or not positive"):
            scheduler.handle(replace(fast, **{field: 0}))


def test_a_link_slower_by_a_hundredth_takes_a_hundredth_longer() -> None:
    scheduler = Scheduler(two_stages())
    scheduler.handle(LinkPaceChanged(now_us=0, node=0, uplink_percent=101, downlink_percent=100))
    moves = {
        d.hops[0].vgpu: d.hops[1].transfer_end_us - d.hops[1].transfer_start_us
        for d in arrive(scheduler, 20)
        if isinstance(d, Dispatch)
    }
    assert moves[0] == 4_040


def test_a_stage_that_has_become_slower_is_planned_with_its_new_pace() -> None:
    scheduler = Scheduler(make_plan([[Own(latency_us=(1_000,), gpus=1)]]))

    def takes(now_us: int, number: int) -> int:
        (decided,) = [d for d in arrive(scheduler, 1, now_us, number) if isinstance(d, Dispatch)]
        done = ran(decided)
        scheduler.handle(done)
        scheduler.check_invariants()
        return done.end_us - done.start_us

    def pace(now_us: int, percent: int) -> list[Decision]:
        changed = PaceChanged(now_us=now_us, model=0, pipeline=0, stage=0, percent=percent)
        return scheduler.handle(changed)

    assert takes(0, 1) == 1_000
    pace(20_000, 250)
    assert takes(20_000, 2) == 2_500
    pace(40_000, 100)
    assert takes(40_000, 3) == 1_000
    pace(50_000, 1)
    assert takes(50_000, 4) == 10
    pace(60_000, 100 * SLO_US)
    (refused,) = arrive(scheduler, 1, now_us=60_000, first=5)
    assert isinstance(refused, Drop)
    with pytest.raises(InputError, match="no such stage"):
        scheduler.handle(PaceChanged(now_us=70_000, model=0, pipeline=0, stage=1, percent=100))
