"""Workers that go on, start or end over a change, and their slots."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.on_demand import on_demand_plan
from tests.fakes.plans import (
    Own,
    hand_model,
    hand_pipeline,
    hand_plan,
    hand_stage,
    make_plan,
)
from tests.triton_backend.contract.transition.full_gpus import GIB, with_memory
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.plan import PlacementRun, Plan, StageMemory
from triton_backend.contract.tensors import TensorSpec
from triton_backend.contract.transition.memory import transition
from triton_backend.contract.transition.steps import steps
from triton_backend.contract.transition.workers import Inherited, inherited_vgpus, slot_needs


@pytest.mark.parametrize(("latency_us", "slots"), [(10_000, 14), (1_700, 63), (1_600, 64)])
def test_a_worker_has_slots_for_all_runs_in_an_slo_and_four_more_up_to_sixty_four(
    latency_us: int, slots: int
) -> None:
    (needs,) = slot_needs(make_plan([[Own(latency_us=(latency_us,))]], slo_us=100_000))
    assert needs.slots == slots


def test_a_slot_has_room_for_the_inputs_of_the_largest_batch() -> None:
    plan = make_plan([[Own(latency_us=(1_000, 1_500))]])
    inputs = (TensorSpec(name="x", dtype="UINT8", shape=(-1, 4_096)),)
    (needs,) = slot_needs(replace(plan, models=(replace(plan.models[0], inputs=inputs),)))
    assert needs.slot_bytes == 2 * 4_096


def test_a_plan_equal_to_the_old_starts_and_ends_nothing() -> None:
    plan = make_plan([[Own(latency_us=(5, 6), gpus=2, divisor=3)]], [[Own(latency_us=(5,))]])
    change = transition(plan, replace(plan, plan_id="again"))
    assert change.nothing
    assert change.inherited == tuple(Inherited(n, n) for n in range(7))
    assert (change.drops, change.bytes_loaded, change.fits) == ({}, {}, True)
    assert steps(plan, plan) == (plan,)


def test_vgpus_go_on_under_the_number_they_have_in_the_new_plan() -> None:
    a, b = Own(latency_us=(5,)), Own(latency_us=(7,), gpus=2)
    before = make_plan([[a]], [[b]], names=["a", "b"])
    after = replace(before, models=before.models[::-1])
    assert inherited_vgpus(before, after) == ((1, 0), (2, 1), (0, 2))


@pytest.mark.parametrize(
    "changed",
    [
        Own(latency_us=(4, 7, 9)),  # an emulated stage is its latencies
        Own(latency_us=(5, 7, 9, 12)),  # larger batches than it was started for
        Own(latency_us=(5, 7, 9), divisor=2),  # another share
    ],
)
def test_a_worker_of_other_content_or_share_starts_anew(changed: Own) -> None:
    before, after = make_plan([[Own(latency_us=(5, 7, 9))]]), make_plan([[changed]])
    assert inherited_vgpus(before, after) == ()
    change = transition(before, after)
    assert (len(change.starts), change.ends) == (changed.divisor, (0,))


def test_a_worker_goes_on_with_smaller_batches_and_under_another_node_number() -> None:
    before = make_plan([[Own(latency_us=(5, 7, 9))]])
    after = make_plan([[Own(latency_us=(5, 7))]])
    assert inherited_vgpus(before, after) == ((0, 0),)
    other = NodeGroup(count=1, gpu_class="GPU", gpus=1, nic_gbps=1.0, name="first")
    moved = replace(after.cluster, nodes=(other, *after.cluster.nodes))
    pool = replace(after.pools[0], placement=(PlacementRun(node=1, gpu=0, slot=0),))
    assert inherited_vgpus(before, replace(after, cluster=moved, pools=(pool,))) == ((0, 0),)


def shared_gpu(*stages: tuple[str, int, int], plan_id: str = "plan") -> Plan:
    """One GPU shared by models: name, static and dynamic GiB of each."""
    place = PlacementRun(node=0, gpu=0, slot=0)
    models = [
        hand_model(
            name,
            hand_pipeline(
                hand_stage(
                    (0, 4), "GPU", place, (10,), memory=StageMemory(static=s * GIB, dynamic=d * GIB)
                ),
                batch=1,
                rate_rps=1.0,
            ),
            slo_us=100,
            policy="eager",
        )
        for name, s, d in stages
    ]
    nodes = [NodeGroup(count=1, gpu_class="GPU", gpus=1, nic_gbps=1.0, name="n")]
    return with_memory(hand_plan(*models, nodes=nodes, plan_id=plan_id), 12, 0.5)


def test_stages_are_loaded_into_a_living_worker_and_dropped_from_it() -> None:
    before = shared_gpu(("kept", 2, 1), ("gone", 3, 2))
    after = shared_gpu(("kept", 2, 1), ("new", 4, 1), plan_id="after")
    change = transition(before, after)
    assert (change.inherited, change.starts, change.ends) == (((0, 0),), (), ())
    assert [[key.model for key in keys] for keys in change.loads.values()] == [["new"]]
    assert [[key.model for key in keys] for keys in change.drops.values()] == [["gone"]]
    assert change.bytes_loaded == {"n": 4 * GIB}
    (gpu,) = change.gpus
    assert gpu[2:6] == (7.5, 11.5, 7.5, 12)
    assert gpu.share == 300


@pytest.mark.parametrize(
    ("larger", "goes_on"),
    [({}, True), ({"size": 9}, False), ({"policy": "turns"}, True), ({"slo_us": 300}, False)],
)
def test_stages_are_loaded_only_where_their_batches_find_room(
    larger: Mapping[str, Any], goes_on: bool
) -> None:
    def shared(*models: Mapping[str, Any]) -> Plan:
        place = PlacementRun(node=0, gpu=0, slot=0)
        made = [
            hand_model(
                f"m{number}",
                hand_pipeline(hand_stage((0, 4), "GPU", place, (10, 12)), batch=2, rate_rps=1.0),
                slo_us=model.get("slo_us", 100),
                inputs=(TensorSpec(name="x", dtype="FP32", shape=(-1, model.get("size", 8))),),
                policy=models[-1].get("policy", "eager"),
            )
            for number, model in enumerate(models)
        ]
        nodes = [NodeGroup(count=1, gpu_class="GPU", gpus=1, nic_gbps=1.0, name="n")]
        return hand_plan(*made, nodes=nodes)

    change = transition(shared({}), shared({}, larger))
    assert (len(change.inherited), len(change.starts)) == ((1, 0) if goes_on else (0, 1))


@pytest.mark.parametrize(("larger", "goes_on"), [(2, True), (4, False)])
def test_a_worker_goes_on_only_where_larger_batches_of_its_stages_find_room(
    larger: int, goes_on: bool
) -> None:
    """The second stage's table bounds the pipeline's batches, whatever the first one's has."""

    def with_second(batches: int) -> Plan:
        first, second = Own(latency_us=(5, 6, 7, 8)), Own(latency_us=(5, 6, 7, 8)[:batches])
        plan = make_plan([[first, second]])
        inputs = (TensorSpec(name="x", dtype="FP32", shape=(-1, 64)),)
        return replace(plan, models=(replace(plan.models[0], inputs=inputs),))

    inherited = inherited_vgpus(with_second(2), with_second(larger))
    assert (Inherited(0, 0) in inherited) == goes_on


def test_a_worker_that_holds_more_than_is_wanted_goes_on() -> None:
    before = shared_gpu(("kept", 2, 1), ("gone", 3, 2))
    after = shared_gpu(("kept", 2, 1), plan_id="after")
    change = transition(before, after)
    assert (change.inherited, change.nothing) == (((0, 0),), True)
    assert [[key.model for key in keys] for keys in change.drops.values()] == [["gone"]]


def test_a_worker_goes_on_where_other_models_are_loaded_on_demand() -> None:
    before = on_demand_plan([100, 200, 300], 400, plan_id="before")
    after = on_demand_plan([100, 200, 300, 250], 400, plan_id="after")
    change = transition(before, after)
    assert change.inherited == (Inherited(0, 0),)
    assert change.nothing
    assert change.fits
    (gpu,) = change.gpus
    assert (gpu.before_gib, gpu.during_gib, gpu.after_gib) == (400 / 1024,) * 3
    assert sum(change.bytes_loaded.values()) == 0
    back = transition(after, before)
    assert back.inherited == (Inherited(0, 0),)
    assert [key.model for key in back.drops[0]] == ["m3"]


@pytest.mark.parametrize("pinned", [(0,), (0, 1, 2)])
def test_a_worker_ends_where_other_models_are_pinned_beside_those_on_demand(
    pinned: tuple[int, ...],
) -> None:
    before = on_demand_plan([100, 200, 300], 400, plan_id="before")
    after = on_demand_plan([100, 200, 300], 300, pinned=pinned, plan_id="after")
    for one, other in ((before, after), (after, before)):
        change = transition(one, other)
        assert change.inherited == ()
        assert not change.fits  # the room of one and all of the other
