"""Whole models behind Triton's own batcher."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flows.preparation.triton_repository.configuration import read_configuration
from scripts.benchmarks.adoption.batcher import (
    Batcher,
    BatcherOptions,
    main,
    write_repository,
)
from scripts.benchmarks.served import Load, samples_file, small_model, small_plan
from tests.fakes.plans import hand_pipeline, hand_plan, hand_stage
from tests.ports import free_ports
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.runtimes.base import CUDA, Artifact
from triton_backend.runtimes.emulated import LATENCY_OPTION
from triton_backend.runtimes.mps import VISIBLE

LATENCIES = {"alpha": (20_000, 24_000, 28_000, 32_000), "beta": (15_000, 18_000)}
VGPUS, SLO_US = 2, 400_000


def whole_plan() -> Plan:
    """Two whole models, each on two GPUs of one node."""
    models = []
    for number, (name, latency_us) in enumerate(LATENCIES.items()):
        place = PlacementRun(node=0, nodes=1, gpu=VGPUS * number, gpus=VGPUS, slot=0)
        stage = hand_stage((0, 10), "FAST", place, latency_us, batch=2)
        models.append(small_model(name, SLO_US, hand_pipeline(stage, batch=2)))
    nodes = [NodeGroup(count=1, gpu_class="FAST", gpus=VGPUS * len(LATENCIES), nic_gbps=10)]
    return hand_plan(*models, nodes=nodes)


def with_artifact(plan: Plan, name: str) -> Plan:
    """The same with an artifact for every stage."""
    models = tuple(
        replace(
            model,
            pipelines=tuple(
                replace(p, stages=tuple(replace(s, artifact=name) for s in p.stages))
                for p in model.pipelines
            ),
        )
        for model in plan.models
    )
    return replace(plan, models=models)


def test_a_plan_becomes_a_repository_that_is_tuned(tmp_path: Path) -> None:
    write_repository(tmp_path, whole_plan(), BatcherOptions(delay_share=0.1))
    for name, latency_us in LATENCIES.items():
        file = tmp_path / name / "config.pbtxt"
        read = read_configuration(file.read_text(), str(file))
        assert read.unknown == ()
        config = read.message
        assert (config.name, config.backend) == (name, "python")
        assert config.max_batch_size == len(latency_us)
        batching = config.dynamic_batching
        assert list(batching.preferred_batch_size) == sorted({2, len(latency_us)})
        assert batching.max_queue_delay_microseconds == SLO_US // 10
        # with a timeout Triton leaves requests waiting beside free instances
        assert not batching.HasField("default_queue_policy")
        assert [group.count for group in config.instance_group] == [VGPUS]
        rows = json.loads((tmp_path / name / "instances.json").read_text())["instances"]
        assert [row[LATENCY_OPTION] for row in rows] == [list(latency_us)] * VGPUS
        assert {row["artifact"] for row in rows} == {None}


def test_each_instance_of_an_engine_has_its_gpu_and_batches_that_it_holds(tmp_path: Path) -> None:
    artifacts = tmp_path / "artifacts"
    (artifacts / "engine").mkdir(parents=True)
    plan = with_artifact(whole_plan(), "engine")
    (model, _) = plan.models
    Artifact(
        runtime="tensorrt",
        gpu_class="FAST",
        inputs=model.inputs,
        outputs=model.outputs,
        max_batch=3,
        device=CUDA,
    ).write(artifacts / "engine")
    options = BatcherOptions(artifacts=artifacts)
    assert not options.on_parts(plan)
    halves = replace(plan, pools=tuple(replace(pool, share=150) for pool in plan.pools))
    assert options.on_parts(halves)
    write_repository(tmp_path / "models", plan, options)
    found = json.loads((tmp_path / "models" / "alpha" / "instances.json").read_text())
    rows = found["instances"]
    assert [row["environment"] for row in rows] == [{VISIBLE: "0"}, {VISIBLE: "1"}]
    assert {row["artifact"] for row in rows} == {str(artifacts / "engine")}
    text = (tmp_path / "models" / "alpha" / "config.pbtxt").read_text()
    config = read_configuration(text, "alpha").message
    assert list(config.dynamic_batching.preferred_batch_size) == [2, 3]


def test_what_the_batcher_cannot_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="runs in stages"):
        write_repository(tmp_path, small_plan("stages"), BatcherOptions())
    with pytest.raises(InputError, match="no folder is given"):
        write_repository(tmp_path, with_artifact(whole_plan(), "engine"), BatcherOptions())


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("{")
    words = [str(plan), "--reference", str(plan), "--load", "1", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_requests_are_answered_in_the_batches_of_triton(tmp_path: Path) -> None:
    plan = whole_plan()
    with Batcher(plan, free_ports(3)[0], BatcherOptions(delay_share=0.05)) as served:
        checks = [f"--check={m.name}={samples_file(tmp_path, m)}" for m in plan.models]
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(plan.to_dict()))
        loaded = Load(served.url, path, "--rate=60", "--duration=3", *checks).result()
        summary = served.load(plan, 0.1, 2)
        root = served.root
    for name in LATENCIES:
        row = loaded.summary["models"][name]
        assert row["offered"] > 30
        assert row["served"] > 0
        assert row["checked"]["wrong"] == 0
        assert row["checked"]["responses"] == row["served"] + row["late"]
        assert summary["models"][name]["offered"] > 0
    assert not root.exists()
    assert not list(Path("/dev/shm").glob(f"{root.name}*"))


@pytest.mark.slow
def test_a_server_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    plan = with_artifact(whole_plan(), "engine")
    model = plan.models[0]
    Artifact(
        runtime="onnxruntime",
        gpu_class="FAST",
        inputs=model.inputs,
        outputs=model.outputs,
        max_batch=4,
        files={"model": "lost.onnx"},
    ).write(tmp_path / "engine")
    with (
        pytest.raises(RuntimeError, match="does not come up"),
        Batcher(plan, free_ports(3)[0], BatcherOptions(artifacts=tmp_path)),
    ):
        pass
