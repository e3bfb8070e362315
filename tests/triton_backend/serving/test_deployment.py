import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.triton_backend.serving.small_plans import model, plan, stage, two_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.transition.workers import MAX_SLOTS, MIN_SLOTS
from triton_backend.runtimes.stage_tensors import complete_tensors
from triton_backend.scheduler.measured.guard import MIN_GUARD_US
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.deployment import Deployment, check_complete


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return deploy(tmp_path, plan(two_stage()), ServeOptions(hosts={"SLOW": "10.0.0.2"}))


def test_what_flows_through_a_stage_is_what_the_plan_says(deployment: Deployment) -> None:
    (first,), (last,) = deployment.rows_of(0), deployment.rows_of(2)
    assert [spec.name for spec in deployment.inputs_of(first)] == ["image", "mask"]
    assert [spec.name for spec in deployment.outputs_of(first)] == ["middle"]
    assert [spec.name for spec in deployment.inputs_of(last)] == ["middle"]
    assert [spec.name for spec in deployment.outputs_of(last)] == ["scores"]
    assert deployment.nodes() == ("FAST", "SLOW")
    assert deployment.vgpus_on("SLOW") == (1, 2)


def test_hosts_decide_between_shared_memory_and_tcp(deployment: Deployment) -> None:
    assert deployment.same_host("FAST", None)
    assert not deployment.same_host("SLOW", None)
    assert not deployment.same_host("FAST", "SLOW")
    assert deployment.same_host("SLOW", "SLOW")
    port = deployment.worker_port(1)
    assert deployment.worker_address(1, same_host=False) == f"tcp:10.0.0.2:{port}"
    assert deployment.settings.scheduler_address_from("SLOW").startswith("tcp:127.0.0.1:")
    assert deployment.settings.scheduler_address_from("FAST").startswith("unix:")


def test_two_generations_share_no_name_address_or_tag(
    deployment: Deployment, tmp_path: Path
) -> None:
    others = two_stage()
    (pipeline,) = others.model.pipelines
    stages = tuple(
        replace(stage, latency_us_by_batch=(3_000, 4_000, 5_000, 6_000))
        for stage in pipeline.stages
    )
    others = others.replaced(pipelines=(replace(pipeline, stages=stages),))
    other = deploy(tmp_path, plan(others), generation=2)
    for same_host in (True, False):
        assert other.worker_address(1, same_host=same_host) != deployment.worker_address(
            1, same_host=same_host
        )
    assert other.worker_segment(1) != deployment.worker_segment(1)
    assert other.front_segment("pair") != deployment.front_segment("pair")
    assert other.tag != deployment.tag


def test_a_worker_that_goes_on_keeps_its_names(deployment: Deployment, tmp_path: Path) -> None:
    other = deploy(tmp_path, replace(deployment.plan, plan_id="next"), generation=2)
    assert other.origins == deployment.origins
    for vgpu in range(3):
        assert other.worker_segment(vgpu) == deployment.worker_segment(vgpu)
        for same_host in (True, False):
            assert other.worker_address(vgpu, same_host=same_host) == deployment.worker_address(
                vgpu, same_host=same_host
            )
    assert other.tag != deployment.tag
    assert other.front_segment("pair") != deployment.front_segment("pair")


@pytest.mark.parametrize("policy", ["reservation", "eager"])
def test_slots_of_a_worker_that_goes_on_have_room_for_what_later_plans_send(
    tmp_path: Path, policy: str
) -> None:
    """Plans whose planned batch is 1, 4, 2 samples, of stages that are known up to 4."""

    def of_batch(batch: int) -> Plan:
        one = two_stage(policy=policy)
        (pipeline,) = one.model.pipelines
        return plan(one.replaced(pipelines=(replace(pipeline, batch=batch),)), plan_id=f"p{batch}")

    first, *later = [
        deploy(tmp_path, of_batch(batch), generation=generation)
        for generation, batch in enumerate((1, 4, 2), 1)
    ]
    for one in later:
        assert one.origins == first.origins
        for vgpu in range(3):
            (row,) = one.rows_of(vgpu)
            assert one.layout_of(row, vgpu).slot_bytes == first.slot_bytes(vgpu)


def test_limits_follow_from_the_plan(deployment: Deployment, tmp_path: Path) -> None:
    assert deployment.worker_slots(0) == MAX_SLOTS
    short = two_stage(slo_us=1)
    tight = deploy(tmp_path / "tight", plan(short))
    assert tight.worker_slots(0) == MIN_SLOTS + 1
    assert deployment.front_slots(0) == 2 * MAX_SLOTS
    assert deployment.max_waiting(deployment.plan.models[0]) == 4 * 40 + 8 * 4


def test_the_guard_is_a_part_of_the_time_but_never_more_than_half(
    deployment: Deployment,
) -> None:
    guard_us = deployment.settings.guard_us
    assert guard_us(1_000_000) == 100_000
    assert guard_us(10_000) == MIN_GUARD_US
    assert guard_us(1_000) == 500


def test_plans_that_name_no_tensors_are_not_served_uncompleted() -> None:
    bare = plan(model("bare", (stage((0, 5), "FAST", 0), stage((5, 10), "SLOW", 1))))
    with pytest.raises(InputError, match="does not name all of its tensors"):
        check_complete(bare, "plan")
    assert check_complete(complete_tensors(bare), "plan")
    empty = replace(bare.models[0], pipelines=())
    with pytest.raises(InputError, match="has no pipeline"):
        check_complete(replace(bare, models=(empty,), pools=()), "plan")


def test_generations_that_are_none_are_named(deployment: Deployment) -> None:
    with pytest.raises(InputError, match="not a plan"):
        Deployment.read(deployment.settings, 9)
    place = deployment.settings.generation_folder(3)
    place.mkdir(parents=True)
    (place / "plan.json").write_text(json.dumps({"plan_id": "x"}))
    with pytest.raises(InputError, match="is missing"):
        Deployment.read(deployment.settings, 3)
