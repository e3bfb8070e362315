"""Stages that are loaded on demand: their form, and the room that a vGPU has for them."""

from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.on_demand import MIB, load_us, on_demand_plan, with_load
from tests.fakes.plans import hand_model, hand_pipeline, hand_plan, hand_stage
from triton_backend.contract.cluster import GpuClass, NodeGroup
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import (
    PlacementRun,
    Plan,
    PoolInterference,
    SeatInterference,
    Stage,
    StageMemory,
    load_time_us,
)
from triton_backend.contract.shares import WHOLE_GPU


def stage_of(plan: Plan, model: int = 0) -> Stage:
    (stage,) = plan.models[model].pipelines[0].stages
    return stage


def test_a_plan_on_demand_reads_back_and_states_its_loads_alone() -> None:
    plan = on_demand_plan([100, 200, 300], 350, pinned=(1,))
    data = plan.to_dict()
    stated = [m["pipelines"][0]["stages"][0].get("load_us") for m in data["models"]]
    assert stated == [load_us(100), None, load_us(300)]
    assert Plan.from_dict(data) == plan


@pytest.mark.parametrize(
    ("sizes", "room", "pinned", "expected"),
    [
        ([100, 200, 300], 350, (), 350),
        ([100, 200, 300], 700, (), 600),  # all of them: no more is used
        ([100, 200, 300], 300, (1,), 300),
        ([100, 200], 0, (0, 1), 0),
    ],
)
def test_the_room_is_what_pinned_stages_leave_and_no_more_than_all_take(
    sizes: list[int], room: int, pinned: tuple[int, ...], expected: int
) -> None:
    assert on_demand_plan(sizes, room, pinned=pinned).room_bytes(0) == expected * MIB


def test_workspace_of_the_largest_stage_leaves_less_room() -> None:
    plan = on_demand_plan([100, 200, 300], 500)
    models = [
        replace(m, pipelines=(replace(p, stages=(replace(s, memory=memory),)),))
        for m in plan.models
        for p in m.pipelines
        for s in p.stages
        if s.memory
        for memory in [replace(s.memory, dynamic=50 * MIB)]
    ]
    assert replace(plan, models=tuple(models)).room_bytes(0) == 450 * MIB


def test_the_largest_stage_must_find_room() -> None:
    with pytest.raises(InputError, match=r"'gpu-0.0.0', load_us: 0.293 GiB are loaded at once, of"):
        on_demand_plan([100, 300], 299)


def test_time_of_a_load_follows_from_bytes_and_class() -> None:
    kind = GpuClass(name="GPU", load_gib_per_s=2.0, load_ms=10.0)
    assert load_time_us(kind, 1 << 30) == 510_000
    assert load_time_us(GpuClass(name="GPU"), 1 << 30) is None
    with pytest.raises(InputError, match="load_ms: needs load_gib_per_s"):
        GpuClass(name="GPU", load_ms=10.0)
    with pytest.raises(InputError, match="load_gib_per_s: 0 is not positive"):
        GpuClass(name="GPU", load_gib_per_s=0)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"memory": None}, "load_us: needs memory_bytes"),
        ({"boards": True}, "load_us: a stage that boards"),
        ({"load_us": 40_000}, "load_us: a load of 40000 µs is contained in no run of"),
    ],
)
def test_a_stage_that_cannot_be_loaded_on_demand_is_refused(
    change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        replace(stage_of(on_demand_plan([100], 100)), **change)


def test_a_class_must_state_its_memory() -> None:
    plan = on_demand_plan([100], 100)
    kinds = tuple(replace(kind, memory_gib=None) for kind in plan.cluster.gpu_classes)
    with pytest.raises(InputError, match="load_us: class GPU needs memory_gib"):
        replace(plan, cluster=replace(plan.cluster, gpu_classes=kinds))


def test_a_pool_with_interference_pins_all_stages() -> None:
    plan = on_demand_plan([100], 100)
    seat = SeatInterference(susceptibility=0.0, pressure=0.0, factor=1.0)
    felt = PoolInterference(pressure=0.0, felt=0.0, inflation=1.0, seats=(seat,))
    with pytest.raises(InputError, match="load_us: stands beside interference"):
        replace(plan, pools=(replace(plan.pools[0], interference=felt),))


def test_a_model_is_loaded_by_one_pipeline_of_a_pool() -> None:
    plan = on_demand_plan([100], 100)
    (model,) = plan.models
    with pytest.raises(InputError, match="load_us: 'm0' has two pipelines here"):
        replace(plan, models=(replace(model, pipelines=model.pipelines * 2),))


def test_parts_of_a_gpu_have_their_part_of_the_room() -> None:
    place = PlacementRun(node=0, gpu=0, slot=0)
    stage = hand_stage(
        (0, 1),
        "GPU",
        place,
        (40_000,),
        vgpu_divisor=2,
        memory=StageMemory(static=100 * MIB, dynamic=0),
    )
    made = hand_model("m0", hand_pipeline(stage, batch=1, rate_rps=1.0), slo_us=200_000)
    node = NodeGroup(count=1, gpu_class="GPU", gpus=1, nic_gbps=10.0)
    plan = hand_plan(made, nodes=[node])
    (kind,) = plan.cluster.gpu_classes
    assert plan.pools[0].share == WHOLE_GPU // 2
    for gib, fits in ((200 / 1024, True), (199 / 1024, False)):
        cluster = replace(plan.cluster, gpu_classes=(replace(kind, memory_gib=gib),))
        models = (with_load(plan.models[0], 20_000),)
        if fits:
            assert replace(plan, cluster=cluster, models=models).room_bytes(0) == 100 * MIB
        else:
            with pytest.raises(InputError, match="loaded at once"):
                replace(plan, cluster=cluster, models=models)
