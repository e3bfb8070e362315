"""Plan format 2: shared pools, unequal shares, entries, policies; every wrong form is one line."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.unequal_shares import example, memory
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan, upgrade_format_1


def test_a_plan_written_by_hand_is_read_with_its_defaults() -> None:
    plan = Plan.from_dict(example())
    assert [p.name for p in plan.pools] == ["p20", "p40", "p60", "p80"]  # by first mention
    assert [p.share for p in plan.pools] == [60, 120, 180, 240]
    assert [tuple(v.slot) for v in plan.vgpus()] == [(0, 0, 0), (0, 1, 0), (0, 1, 1), (0, 0, 1)]
    assert [tuple(row) for row in plan.stage_rows()] == [
        (0, 0, 0, 0),
        (0, 0, 1, 1),
        (0, 1, 0, 2),
        (1, 0, 0, 3),
        (2, 0, 0, 3),
    ]
    assert [s.blocks for s in plan.stages_of(3)] == [(0, 6), (0, 3)]
    assert [e.name for e in plan.models[0].queues] == ["whole", "tail"]
    assert [(e.block, e.budget_us) for e in plan.models[1].queues] == [(0, 50_000)]
    assert (plan.options, plan.solver, plan.solve_seconds, plan.certificate) == ({}, "", 0.0, {})


def test_the_plain_form_goes_through_json_and_back() -> None:
    plan = Plan.from_dict(example())
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan
    assert again.to_dict() == plan.to_dict()


Change = Callable[[dict[str, Any]], None]


def put(*path: Any) -> Change:
    """Set the field at `path[:-1]` to the last item."""

    def change(data: dict[str, Any]) -> None:
        *way, name, value = path
        for step in way:
            data = data[step]
        data[name] = value

    return change


def drop(*path: Any) -> Change:
    def change(data: dict[str, Any]) -> None:
        *way, name = path
        for step in way:
            data = data[step]
        del data[name]

    return change


def both(*changes: Change) -> Change:
    def change(data: dict[str, Any]) -> None:
        for each in changes:
            each(data)

    return change


CLASS = ("cluster", "gpu_classes", "A100")
A0 = ("models", 0, "pipelines", 0)
B0 = ("models", 1, "pipelines", 0)
GIB = 1 << 30

WRONG: list[tuple[Change, str]] = [
    (put("format", 3), r"format: 3 is not within 2 and 2"),
    (put("format", "2"), r"format: '2' is not a whole number"),
    (drop("plan_id"), r"plan_id: is missing"),
    (drop("planner"), r"planner: is missing"),
    (drop("objective"), r"objective: is missing"),
    (drop("objective", "gap"), r"objective.gap: is missing"),
    (drop("cluster"), r"cluster: is missing"),
    (drop("workload"), r"workload: is missing"),
    (drop("gpus_used"), r"gpus_used: is missing"),
    (drop("pools"), r"pools: is missing"),
    (drop("models"), r"models: is missing"),
    (put("models", []), r"models: there is none"),
    (put("models", 1, "name", "a"), r"models: a name is listed twice"),
    # Pools
    (put("pools", 0, "name", "p80"), r"pools: a name is listed twice"),
    (put("pools", 0, "name", ""), r"pools.name: is empty"),
    (put(*A0, "stages", 0, "pool", "p60"), r"pool 'p20': no stage names it"),
    (put(*A0, "stages", 0, "pool", "p99"), r"model 'a', pipeline 0, stage 0, pool: 'p99' is not"),
    (drop(*A0, "stages", 0, "pool"), r"models\[0\].pipelines\[0\].stages\[0\].pool: is missing"),
    (put("pools", 0, "gpu_class", "H100"), r"no GPU class 'H100'"),
    (drop("pools", 0, "gpu_class"), r"pools\[0\].gpu_class: is missing"),
    (drop("pools", 0, "vgpu_percent"), r"pools\[0\].vgpu_divisor: is missing"),
    (put("pools", 0, "vgpu_divisor", 2), r"pools\[0\].vgpu_percent: stands beside vgpu_divisor"),
    (put("pools", 0, "vgpu_percent", 0), r"pools\[0\].vgpu_percent: 0 is not within 1 and 100"),
    (put("pools", 0, "vgpu_percent", 101), r"pools\[0\].vgpu_percent: 101 is not within"),
    (put("pools", 0, "vgpu_percent", 20.5), r"pools\[0\].vgpu_percent: 20.5 is not a whole number"),
    (put("pools", 0, "vgpu_percent", 30), r"pool 'p20': vGPUs of 30 %, but class A100 lists 20 %"),
    (
        both(drop("pools", 0, "vgpu_percent"), put("pools", 0, "vgpu_divisor", 5)),
        r"pools\[0\].vgpu_divisor: 5 is not within 1 and 4",
    ),
    (put("pools", 0, "vgpus", 2), r"pool 'p20', placement: 2 vGPUs but 1 placed"),
    (put("pools", 0, "vgpus", 0), r"pools\[0\].vgpus: 0 is not within"),
    (put("pools", 0, "starts_anywhere", "yes"), r"starts_anywhere: 'yes' is neither true nor"),
    # Places
    (put("pools", 0, "placement", 0, "node", "m"), r"no node named 'm'"),
    (put("pools", 0, "placement", 0, "gpu", 2), r"GPU 2 on a node of at most 2"),
    (put("pools", 0, "placement", 0, "slot", 2), r"pool 'p20', placement: .* no such slot"),
    (put("pools", 0, "placement", 0, "slot", 1), r"GPU 0, slot 1: stands in pools 'p20' and 'p80'"),
    (
        both(put("pools", 0, "vgpu_percent", 40), put(*CLASS, "partitions", [])),
        r"node n, GPU 0, share: its vGPUs take 120 % of it",
    ),
    (
        both(put("pools", 0, "vgpu_percent", 40), put("pools", 1, "vgpu_percent", 40)),
        (
            r"node n, GPU 0, partitions: cut into \[40, 40\], "
            r"its class allows \[\[20, 80\], \[40, 60\]\]"
        ),
    ),
    (put(*CLASS, "max_vgpus_per_gpu", 1), r"pool 'p60', placement: .* no such slot"),
    # Memory
    (
        put(*B0, "stages", 0, "memory_bytes", memory(3 * GIB, 0)),
        r"node n, GPU 0, memory: 5.250 GiB needed, it has 4",
    ),
    (put(*B0, "stages", 0, "memory_bytes", memory(-1, 0)), r"memory_bytes.static: -1 is not"),
    (put(*B0, "stages", 0, "memory_bytes", {"static": 1}), r"memory_bytes.dynamic: is missing"),
    # Classes
    (put(*CLASS, "vgpu_divisors", [1]), r"gpu_classes.A100: either vgpu_divisors or vgpu_percents"),
    (put(*CLASS, "vgpu_percents", [20, 20]), r"gpu_classes.A100.vgpu_percents: \[20, 20\] must be"),
    (put(*CLASS, "vgpu_percents", {"step": 0}), r"vgpu_percents.step: 0 is not within 1 and 100"),
    (put(*CLASS, "partitions", [[20, 90]]), r"partitions\[0\]: \[20, 90\] must be percents of at"),
    (put(*CLASS, "partitions", [[10, 80]]), r"partitions\[0\]: .* no vGPU of 10 % is listed"),
    (put(*CLASS, "partitions", [20, 80]), r"partitions\.0: 20 is not a list"),
    (put(*CLASS, "max_vgpus_per_gpu", 0), r"max_vgpus_per_gpu: 0 is not within"),
    (put(*CLASS, "process_memory_gib", -1), r"process_memory_gib: -1 is not positive"),
    # Policies and sharing
    (put("models", 2, "policy", "eager"), r"pool 'p80', policy: 'c' has eager, others on it def"),
    (put("models", 2, "policy", ""), r"model 'c', policy: is empty"),
    (put("models", 2, "policy", 3), r"models\[2\].policy: 3 is not a text"),
    (
        put(*B0, "throughput_rps", 1_600.0),
        r"pool 'p80', vgpus: its stages promise the work of 1.062 vGPUs, it has 1",
    ),
    # Stages and entries
    (put(*A0, "stages", 1, "blocks", [5, 10]), r"a stage starts at block 5, not 4"),
    (put(*A0, "stages", 1, "blocks", [4]), r"blocks: \[4\] is not \[first, last\)"),
    (put(*A0, "stages", 1, "blocks", [4, 4]), r"blocks must be \[first, last\) with first < last"),
    (put(*A0, "stages", 1, "blocks", [4, 9]), r"model 'a': pipelines end at different blocks"),
    (put(*A0, "batch", 5), r"pipeline: no latency for batch 5"),
    (put(*A0, "stages", 0, "batch", 5), r"batch: 5, but latencies are known for batches 1 to 4"),
    (put(*A0, "stages", 0, "latency_us_by_batch", []), r"latency_us_by_batch must be positive"),
    (put(*A0, "stages", 0, "duty_cycle_us", 0), r"duty_cycle_us: 0 is not within"),
    (put(*A0, "entry", "nobody"), r"model 'a', pipeline 0, entry: 'nobody' is not one of"),
    (drop(*A0, "entry"), r"model 'a', pipeline 0, entry: is missing; the model has whole, tail"),
    (put(*A0, "entry", "tail"), r"pipeline 0, stages: starts at block 0, its entry at 4"),
    (put(*B0, "entry", "x"), r"model 'b', pipeline 0, entry: 'x' is not one of .* \(none\)"),
    (put("models", 0, "entries", 1, "block", 10), r"entry 'tail', block: 10, but the model has"),
    (put("models", 0, "entries", 1, "name", "whole"), r"entries: a name is listed twice"),
    (put("models", 0, "entries", 1, "budget_us", 0), r"entries\[1\].budget_us: 0 is not within"),
    (
        drop("models", 0, "pipelines", 1),
        r"model 'a', entry 'tail': has no pipeline",
    ),
]


@pytest.mark.parametrize(("change", "complaint"), WRONG, ids=[c for _, c in WRONG])
def test_a_wrong_form_is_named_in_one_line(change: Change, complaint: str) -> None:
    data = copy.deepcopy(example())
    change(data)
    with pytest.raises(InputError, match=complaint) as error:
        Plan.from_dict(data)
    assert "\n" not in str(error.value)


def test_there_are_at_least_sixty_wrong_forms() -> None:
    assert len(WRONG) >= 60


def test_a_plan_of_format_1_has_a_pool_for_every_stage() -> None:
    old = {
        "plan_id": "old",
        "models": [
            {
                "name": "m",
                "slo_ms": 20.5,
                "pipelines": [
                    {
                        "batch": 1,
                        "latency_ms": 1.25,
                        "stages": [
                            {
                                "blocks": [0, 1],
                                "gpu_class": gpu_class,
                                "vgpu_divisor": 2,
                                "vgpus": 1,
                                "latency_ms": 0.75,
                                "transfer_ms": 0.25,
                                "placement": [],
                            }
                        ],
                    }
                    for gpu_class in ("L4", "l4")
                ],
            }
        ],
    }
    new = upgrade_format_1(old)
    assert (new["format"], new["plan_id"]) == (2, "old")
    assert new["pools"] == [
        {"name": "l4-0", "gpu_class": "L4", "vgpu_divisor": 2, "vgpus": 1, "placement": []},
        {"name": "l4-1", "gpu_class": "l4", "vgpu_divisor": 2, "vgpus": 1, "placement": []},
    ]
    (model,) = new["models"]
    assert (model["slo_us"], model["pipelines"][0]["latency_us"]) == (20_500, 1_250)
    assert model["pipelines"][1]["stages"] == [
        {"pool": "l4-1", "blocks": [0, 1], "latency_us": 750, "transfer_us": 250}
    ]


def test_stages_that_board_are_read_and_written_and_must_be_alike() -> None:
    data = example()
    shared = data["models"][0]["pipelines"][1]["stages"][0]
    first = data["models"][0]["pipelines"][0]
    first["stages"][1] = {**shared, "boards": True, "batch": 2, "latency_us": 1_500}
    shared |= {"boards": True, "batch": 2, "latency_us": 1_500}
    data["pools"] = [p for p in data["pools"] if p["name"] != "p40"]
    plan = Plan.from_dict(data)
    assert [s.boards for s in plan.stages_of(1)] == [True, True]
    assert Plan.from_dict(plan.to_dict()).to_dict() == plan.to_dict()
    shared |= {"batch": 4, "latency_us": 2_500}
    with pytest.raises(InputError, match="pool 'p60', boards: its stages differ in model, blocks"):
        Plan.from_dict(data)
