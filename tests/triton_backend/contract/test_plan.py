"""Plans: numbering, plain form, checks."""

import json
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.applications import hand_application, hand_module, with_applications
from tests.fakes.plans import Own, make_plan, two_stages
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import (
    BYTES_PER_GIB,
    LONGEST_PIPELINE,
    PlacementRun,
    Plan,
    Slot,
    Stage,
    StageMemory,
)
from triton_backend.contract.tensors import TensorSpec

STAGE = ("models", 0, "pipelines", 0, "stages", 0)
POOL = ("pools", 0)
AT = r"models\[0\].pipelines\[0\].stages\[0\]"
SPEC = TensorSpec(name="x", dtype="FP16", shape=(-1, 4))


def stage(**changes: Any) -> Stage:
    return replace(two_stages().models[0].pipelines[0].stages[0], **changes)


def test_vgpus_are_numbered_by_pool_and_place_and_pools_as_stages_name_them() -> None:
    pool = Own(latency_us=(10,), gpus=2, divisor=2)
    plan = make_plan([[pool, pool], [pool]], [[pool]])
    vgpus = plan.vgpus()
    assert [v.index for v in vgpus] == list(range(16))
    assert [v.pool for v in vgpus] == [number for number in range(4) for _ in range(4)]
    assert plan.stage_rows() == ((0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 0, 2), (1, 0, 0, 3))
    assert replace(plan, pools=plan.pools[::-1]) == plan
    assert [v.slot for v in vgpus[:4]] == [
        Slot(0, 0, 0),
        Slot(0, 0, 1),
        Slot(1, 0, 0),
        Slot(1, 0, 1),
    ]


def test_gpus_count_once_however_many_parts_they_have_and_unused_classes_not_at_all() -> None:
    plan = make_plan([[Own(latency_us=(10,), gpus=2, divisor=2), Own(latency_us=(10,), gpus=3)]])
    (used,) = plan.cluster.gpu_classes
    both = replace(plan.cluster, gpu_classes=(used, replace(used, name="idle")))
    assert replace(plan, cluster=both).gpus() == {used.name: 5, "idle": 0}


@pytest.mark.parametrize("gpus", [4, 1_000])
def test_the_plain_form_goes_through_json_and_back(gpus: int) -> None:
    plan = make_plan([[Own(latency_us=(10, 15), gpus=gpus, bytes_out=7)]])
    first = plan.models[0].pipelines[0].stages[0]
    full = replace(first, boundary=(SPEC,), artifact="0f3a")
    pipeline = replace(plan.models[0].pipelines[0], stages=(full,))
    model = replace(plan.models[0], pipelines=(pipeline,), inputs=(SPEC,), outputs=(SPEC,))
    plan = replace(plan, models=(model,), certificate={"status": "optimal"})
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again.to_dict() == plan.to_dict()
    assert again.vgpus() == plan.vgpus()


def test_the_last_stage_gives_the_models_outputs_and_others_what_the_next_takes() -> None:
    answer = TensorSpec(name="y", dtype="FP32", shape=(-1, 2))
    (model,) = two_stages().models
    (pipeline,) = model.pipelines
    first, second = pipeline.stages
    stages = (replace(first, boundary=(SPEC,)), second)
    model = replace(model, pipelines=(replace(pipeline, stages=stages),), outputs=(answer,))
    assert [model.stage_outputs(0, stage) for stage in (0, 1)] == [(SPEC,), (answer,)]


def test_what_enters_a_stage_is_what_the_one_before_it_gives() -> None:
    given, wide = (replace(SPEC, name=name) for name in ("given", "wide"))
    (model,) = make_plan([[Own(latency_us=(1_000,)) for _ in range(3)]]).models
    (pipeline,) = model.pipelines
    first, second, third = pipeline.stages
    stages = (replace(first, boundary=(SPEC,)), replace(second, boundary=(wide,)), third)
    model = replace(model, pipelines=(replace(pipeline, stages=stages),), inputs=(given,))
    assert [model.stage_inputs(0, stage) for stage in range(3)] == [(given,), (SPEC,), (wide,)]


def test_clients_of_a_model_may_ask_for_what_applications_leave_of_its_rate() -> None:
    plan = make_plan(*([[Own(latency_us=(1_000,))]] for _ in range(2)))
    modules = hand_module("a", "m0"), hand_module("b", "m1", "a", rows=2.5, max_rows=8)
    plan = with_applications(plan, hand_application("app", modules, rate_rps=30.0))
    left = [plan.model(name).throughput_rps - plan.own_rate_rps(name) for name in ("m0", "m1")]
    assert left == pytest.approx([30.0, 75.0])


def test_many_vgpus_are_listed_as_ranges() -> None:
    def entries(gpus: int) -> int:
        plan = make_plan([[Own(latency_us=(10,), gpus=gpus)]])
        return len(plan.to_dict()["pools"][0]["placement"])

    assert (entries(512), entries(513)) == (512, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"blocks": (2, 2)},
        {"latency_us_by_batch": ()},
        {"latency_us_by_batch": (0,)},
        {"latency_us_by_batch": (10, 0)},
        {"transfer_us": -1},
        {"batch": 5},
    ],
)
def test_an_impossible_stage_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="stage"):
        stage(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"vgpus": 0},
        {"vgpus": 3},
        {"share": 77},
        {"placement": (PlacementRun(node=0, gpu=0, slot=0),)},
    ],
)
def test_an_impossible_pool_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="pool"):
        replace(two_stages().pools[0], **changes)


def test_stages_must_cover_the_model_in_order_with_one_batch() -> None:
    model = two_stages().models[0]
    (pipeline,) = model.pipelines
    late = replace(pipeline, stages=pipeline.stages[1:])
    with pytest.raises(InputError, match="starts at block 1, its entry at 0"):
        replace(model, pipelines=(late,))
    with pytest.raises(InputError, match="starts at block 0, not 4"):
        replace(pipeline, stages=pipeline.stages[::-1])
    with pytest.raises(InputError, match="no latency for batch 5"):
        replace(pipeline, batch=5)
    one = pipeline.stages[0]
    long = [replace(one, blocks=(k, k + 1)) for k in range(LONGEST_PIPELINE + 1)]
    replace(pipeline, stages=tuple(long[:-1]))
    with pytest.raises(InputError, match="and 101 stages, at most 100"):
        replace(pipeline, stages=tuple(long))
    with pytest.raises(InputError, match="0 stages"):
        replace(pipeline, stages=())


@pytest.mark.parametrize(("more", "fits"), [(0, True), (1, False)])
def test_stages_may_take_all_of_the_memory_that_a_part_of_a_gpu_has(more: int, fits: bool) -> None:
    plan = make_plan([[Own(latency_us=(10,), divisor=2)]])
    (model,), (gpu_class,) = plan.models, plan.cluster.gpu_classes
    (pipeline,) = model.pipelines
    memory = StageMemory(static=8 * BYTES_PER_GIB + more, dynamic=0)
    held = replace(pipeline, stages=(replace(pipeline.stages[0], memory=memory),))
    cluster = replace(plan.cluster, gpu_classes=(replace(gpu_class, memory_gib=16.0),))
    with nullcontext() if fits else pytest.raises(InputError, match="1/2 of 16 GiB is there"):
        replace(plan, cluster=cluster, models=(replace(model, pipelines=(held,)),))


def test_a_model_that_is_not_there_is_named() -> None:
    assert two_stages().model("m0").slo_us == 100_000
    with pytest.raises(InputError, match="no model 'x'; it has m0"):
        two_stages().model("x")


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (("cluster",), None, "cluster: is missing"),
        (("models",), 3, "models: 3 is not a list"),
        (("models",), [], "models: there is none"),
        (("models", 0), [], r"models\[0\]: \[\] is not an object"),
        (("plan_id",), 7, "plan_id: 7 is not a text"),
        (("options",), [1], r"options: \[1\] is not an object"),
        (("models", 0, "slo_us"), "soon", r"models\[0\].slo_us: 'soon' is not a whole number"),
        (("models", 0, "slo_us"), float("nan"), "slo_us: nan is not a whole number"),
        (("models", 0, "slo_us"), 10**30, "slo_us: 1000000000.* is not within 1 and"),
        (("models", 0, "throughput_rps"), -1, "throughput_rps: -1 is not within 0 and"),
        (("models", 0, "throughput_rps"), 10**400, "throughput_rps: 1000000000.* is not within 0"),
        ((*POOL, "vgpus"), None, r"pools\[0\].vgpus: is missing"),
        ((*POOL, "vgpus"), True, r"pools\[0\].vgpus: True is not a whole number"),
        ((*POOL, "vgpus"), 1.5, r"pools\[0\].vgpus: 1.5 is not a whole number"),
        ((*STAGE, "pool"), "x", "pipeline 0, stage 0, pool: 'x' is not one of the pools"),
        ((*STAGE, "blocks"), [0], f"{AT}.blocks: \\[0\\] is not"),
        (
            (*STAGE, "latency_us_by_batch"),
            [0],
            rf"{AT}.latency_us_by_batch\[0\]: 0 is not within 1",
        ),
        ((*STAGE, "latency_us_by_batch"), [10**30], "1000000000.* is not within 1 and"),
        ((*POOL, "placement", 0, "node"), 3, r"pools\[0\].placement\[0\].node: 3 is not a text"),
        ((*POOL, "placement", 0, "gpu"), 10**9, "GPU 1000000000 on a node of at most"),
        ((*POOL, "placement", 0, "slot"), 4, "no such slot on a GPU of class"),
        ((*POOL, "placement", 0, "slot"), 100, "slot 100 of at most 100"),
        ((*POOL, "placement", 0, "nodes"), 10**9, "nodes: 1000000000 from node 0 on, of"),
        (("cluster", "nodes", 0, "count"), 10**30, r"cluster.nodes\[0\].count: 1000000"),
        (("cluster", "nodes", 0, "nic_gbps"), 1e-9, "1e-09 is not within 1e-06 and 1e"),
        (("workload", "models", 0, "weight"), "x", r"workload.models\[0\].weight: 'x' is not a"),
    ],
)
def test_a_damaged_plan_names_the_field(
    path: tuple[str | int, ...], value: object, complaint: str
) -> None:
    data: Any = json.loads(json.dumps(two_stages().to_dict()))
    at = data
    for step in path[:-1]:
        at = at[step]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    with pytest.raises(InputError, match=complaint):
        Plan.from_dict(data)


def test_a_duty_cycle_is_at_least_a_microsecond() -> None:
    assert stage(duty_cycle_us=1).duty_cycle_us == 1
    with pytest.raises(InputError, match="0 is not positive"):
        stage(duty_cycle_us=0)


def test_a_promise_beyond_its_vgpus_is_refused_of_shared_pools_alone() -> None:
    """One stage's promise is `verify`'s to judge, which knows what else limits it."""
    plan = two_stages()
    pipeline = plan.models[0].pipelines[0]
    busier = replace(pipeline, throughput_rps=1e6 * pipeline.throughput_rps)
    model = replace(plan.models[0], pipelines=(busier, *plan.models[0].pipelines[1:]))
    assert replace(plan, models=(model,)).models == (model,)
