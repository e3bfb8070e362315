"""Plans: numbering, plain form, checks."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.plans import Pool, make_plan, two_stages
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import PlacementRun, Plan, Slot, Stage
from triton_backend.contract.tensors import TensorSpec

STAGE = ("models", 0, "pipelines", 0, "stages", 0)
AT = r"models\[0\].pipelines\[0\].stages\[0\]"
SPEC = TensorSpec(name="x", dtype="FP16", shape=(-1, 4))


def stage(**changes: Any) -> Stage:
    return replace(two_stages().models[0].pipelines[0].stages[0], **changes)


def test_vgpus_are_numbered_by_model_pipeline_stage_and_place() -> None:
    pool = Pool(latency_us=(10,), gpus=2, divisor=2)
    plan = make_plan([[pool, pool], [pool]], [[pool]])
    vgpus = plan.vgpus()
    assert [v.index for v in vgpus] == list(range(16))
    assert [(v.model, v.pipeline, v.stage) for v in vgpus[::4]] == [
        (0, 0, 0),
        (0, 0, 1),
        (0, 1, 0),
        (1, 0, 0),
    ]
    assert [v.slot for v in vgpus[:4]] == [
        Slot(0, 0, 0),
        Slot(0, 0, 1),
        Slot(1, 0, 0),
        Slot(1, 0, 1),
    ]


@pytest.mark.parametrize("gpus", [4, 1_000])
def test_the_plain_form_goes_through_json_and_back(gpus: int) -> None:
    plan = make_plan([[Pool(latency_us=(10, 15), gpus=gpus, bytes_out=7)]])
    first = plan.models[0].pipelines[0].stages[0]
    full = replace(first, boundary=(SPEC,), artifact="m/0.onnx")
    pipeline = replace(plan.models[0].pipelines[0], stages=(full,))
    model = replace(plan.models[0], pipelines=(pipeline,), inputs=(SPEC,), outputs=(SPEC,))
    plan = replace(plan, models=(model,), certificate={"status": "optimal"})
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again.to_dict() == plan.to_dict()
    assert again.vgpus() == plan.vgpus()


def test_many_vgpus_are_listed_as_ranges() -> None:
    def entries(gpus: int) -> int:
        plan = make_plan([[Pool(latency_us=(10,), gpus=gpus)]])
        return len(plan.to_dict()["models"][0]["pipelines"][0]["stages"][0]["placement"])

    assert (entries(512), entries(513)) == (512, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"blocks": (2, 2)},
        {"vgpus": 0},
        {"vgpus": 3},
        {"latency_us_by_batch": ()},
        {"latency_us_by_batch": (0,)},
        {"transfer_us": -1},
        {"placement": (PlacementRun(node=0, gpu=0, slot=0),)},
    ],
)
def test_an_impossible_stage_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="stage"):
        stage(**changes)


def test_stages_must_cover_the_model_in_order_with_one_batch() -> None:
    pipeline = two_stages().models[0].pipelines[0]
    with pytest.raises(InputError, match="starts at block 1"):
        replace(pipeline, stages=pipeline.stages[1:])
    with pytest.raises(InputError, match="no latency for batch 5"):
        replace(pipeline, batch=5)
    with pytest.raises(InputError, match="0 stages"):
        replace(pipeline, stages=())


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
        (("models", 0, "slo_ms"), "soon", r"models\[0\].slo_ms: 'soon' is not a number"),
        (("models", 0, "slo_ms"), float("nan"), "slo_ms: nan is not a number"),
        (("models", 0, "slo_ms"), 1e300, "slo_ms: 1e\\+300 is not within 0.001 and 1e\\+12"),
        (("models", 0, "throughput_rps"), -1, "throughput_rps: -1 is not within 0 and"),
        ((*STAGE, "vgpus"), None, f"{AT}.vgpus: is missing"),
        ((*STAGE, "vgpus"), True, f"{AT}.vgpus: True is not a whole number"),
        ((*STAGE, "vgpus"), 1.5, f"{AT}.vgpus: 1.5 is not a whole number"),
        ((*STAGE, "blocks"), [0], f"{AT}.blocks: \\[0\\] is not"),
        (
            (*STAGE, "latency_us_by_batch"),
            [0],
            rf"{AT}.latency_us_by_batch\[0\]: 0 is not within 1",
        ),
        ((*STAGE, "latency_us_by_batch"), [10**30], "1000000000.* is not within 1 and"),
        ((*STAGE, "placement", 0, "node"), 3, rf"{AT}.placement\[0\].node: 3 is not a text"),
        ((*STAGE, "placement", 0, "gpu"), 10**9, "GPU 1000000000 on a node of at most"),
        ((*STAGE, "placement", 0, "slot"), 4, "slot 4 of at most 4"),
        ((*STAGE, "placement", 0, "nodes"), 10**9, "nodes: 1000000000 from node 0 on, of"),
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
