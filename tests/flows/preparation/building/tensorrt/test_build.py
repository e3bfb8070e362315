"""Engines really built with tensorrt-rtx, which needs no GPU."""

import fcntl
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from flows.preparation.building.tensorrt.build import build_engines, lock_folder
from flows.preparation.building.tensorrt.requests import (
    EngineFailure,
    EngineRequest,
    EngineResult,
    EngineSettings,
    compute_capability,
)
from tests.flows.preparation.building.tensorrt import stage_models as models
from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import Artifact
from triton_backend.runtimes.registry import load_runtime
from triton_backend.runtimes.tensorrt.layers import EngineDescription
from triton_backend.serve_folder.files import make_private_folder

# The locks of classes are machine-wide: a class of its own keeps tests from waiting for builds.
CLASS = "L4-test"
RTX = EngineSettings(library="tensorrt-rtx")


def request(onnx: Path, **more: Any) -> EngineRequest:
    fields: dict[str, Any] = {"stage": onnx.stem, "onnx": onnx, "gpu_class": CLASS, **more}
    return EngineRequest(**fields)


def build_one(onnx: Path, root: Path, **more: Any) -> EngineResult | EngineFailure:
    report = build_engines([request(onnx, **more)], root, RTX)
    return (*report.results, *report.failures)[0]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> EngineResult:
    folder = tmp_path_factory.mktemp("built")
    result = build_one(models.convolutions(folder / "m.onnx"), folder / "art", batches=(1, 4))
    assert isinstance(result, EngineResult)
    return result


@pytest.mark.slow
def test_engine_is_kept_with_manifest_log_and_layers(built: EngineResult) -> None:
    artifact = Artifact.read(built.folder)
    assert artifact.runtime == "tensorrt"
    assert artifact.inputs == (TensorSpec(name="x", dtype="FP32", shape=(-1, 8, 8, 8)),)
    assert artifact.outputs == (TensorSpec(name="y", dtype="FP32", shape=(-1, 8, 8, 8)),)
    assert artifact.max_batch == 4
    assert artifact.options["library"] == "tensorrt-rtx"
    assert artifact.options["module"] == "tensorrt_rtx_bindings"
    assert artifact.options["compute_capability"] == "8.9"
    assert artifact.options["precision"] == "fp32"
    assert artifact.options["batches"] == [1, 4]
    for file in artifact.files.values():
        assert (built.folder / file).stat().st_size > 0


@pytest.mark.slow
def test_engine_description_names_every_profile_and_node(built: EngineResult) -> None:
    description = EngineDescription.from_dict(
        json.loads((built.folder / "layers.json").read_text())
    )
    for profile in (0, 1):
        nodes = {n for layer in description.of_profile(profile) for n in layer.nodes}
        assert nodes == {"c0", "r0", "c1", "r1", "c2", "r2"}
    assert len(description.of_profile(0)) == Artifact.read(built.folder).options["layers"]
    assert {(t.name, t.is_input) for t in description.tensors} == {("x", True), ("y", False)}


@pytest.mark.slow
def test_second_call_builds_nothing(built: EngineResult) -> None:
    report = build_engines([built.request], built.folder.parent, RTX)
    assert (report.built, report.reused) == (0, 1)
    assert report.results[0].key == built.key
    assert not report.left_out()


@pytest.mark.slow
def test_same_stage_asked_twice_is_built_once(tmp_path: Path) -> None:
    onnx = models.two_in_three_out(tmp_path / "m.onnx")
    report = build_engines([request(onnx), request(onnx, stage="again")], tmp_path / "art", RTX)
    assert len({result.key for result in report.results}) == 1
    assert len(list((tmp_path / "art").glob("*/engine.json"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"batches": (1, 2)},
        {"gpu_class": "A10-test"},
        {"dimensions": {"unused": 3}},
    ],
)
def test_anything_that_changes_the_engine_changes_its_key(
    built: EngineResult, tmp_path: Path, change: dict[str, Any]
) -> None:
    other = build_one(built.request.onnx, tmp_path, **{"batches": (1, 4), **change})
    assert isinstance(other, EngineResult)
    assert other.key != built.key


@pytest.mark.slow
def test_two_inputs_and_three_outputs_with_int64(tmp_path: Path) -> None:
    result = build_one(models.two_in_three_out(tmp_path / "m.onnx"), tmp_path / "art")
    assert isinstance(result, EngineResult)
    artifact = Artifact.read(result.folder)
    assert [(s.name, s.dtype) for s in artifact.inputs] == [("a", "INT64"), ("b", "FP32")]
    assert [(s.name, s.dtype) for s in artifact.outputs] == [
        ("o1", "FP32"),
        ("o2", "FP32"),
        ("s", "INT64"),
    ]


@pytest.mark.slow
def test_tensor_handed_on_stays_at_the_edge_but_not_in_the_engine(tmp_path: Path) -> None:
    result = build_one(models.hands_on(tmp_path / "m.onnx"), tmp_path / "art")
    assert isinstance(result, EngineResult)
    artifact = Artifact.read(result.folder)
    assert [s.name for s in artifact.inputs] == ["x", "skip"]
    assert [s.name for s in artifact.outputs] == ["y", "skip"]
    assert artifact.options["forwarded"] == artifact.options["unused"] == ["skip"]
    layers = json.loads((result.folder / "layers.json").read_text())
    assert {t["name"] for t in layers["tensors"]} == {"x", "y"}


@pytest.mark.slow
def test_weights_in_a_file_of_their_own(tmp_path: Path) -> None:
    onnx = models.with_weights_beside(tmp_path / "m.onnx", mebibytes=8)
    result = build_one(onnx, tmp_path / "art", batches=(1,))
    assert isinstance(result, EngineResult)
    assert (result.folder / "engine.plan").stat().st_size > 8 << 20
    data = np.fromfile(tmp_path / "m.onnx.data", np.uint8)
    data[-1] ^= 1
    data.tofile(tmp_path / "m.onnx.data")
    again = build_one(onnx, tmp_path / "art", batches=(1,))
    assert isinstance(again, EngineResult)
    assert again.key != result.key


@pytest.mark.slow
def test_dynamic_size_is_refused_by_name_or_fixed_by_option(tmp_path: Path) -> None:
    shape = ["N", 3, "height", 8]
    onnx = models.one_node(tmp_path / "m.onnx", "Relu", (shape, shape))
    refused = build_one(onnx, tmp_path / "art")
    assert isinstance(refused, EngineFailure)
    assert "input 'x'" in refused.reason
    assert "dimension 2 ('height') is dynamic" in refused.reason
    fixed = build_one(onnx, tmp_path / "art", dimensions={"height": 6})
    assert isinstance(fixed, EngineResult)
    assert Artifact.read(fixed.folder).inputs[0].shape == (-1, 3, 6, 8)


@pytest.mark.slow
def test_one_failure_names_stage_and_node_and_keeps_the_rest(tmp_path: Path) -> None:
    square = (["N", 4, 4], ["N"])
    bad = models.one_node(tmp_path / "bad.onnx", "Det", square)
    good = models.two_in_three_out(tmp_path / "good.onnx")
    report = build_engines([request(bad), request(good)], tmp_path / "art", RTX)
    assert [r.request.stage for r in report.results] == ["good"]
    (failure,) = report.failures
    assert (failure.request.stage, failure.node) == ("bad", "only")
    assert failure.reason.startswith("operator Det is not supported")
    assert report.left_out() == {("bad", CLASS)}
    assert list((tmp_path / "art" / "failed").glob("*.log"))


def operator_of_mine(path: Path) -> Path:
    return models.one_node(path, "Mine", (["N", 4], ["N", 4]), domain="my.ops")


def doubles(path: Path) -> Path:
    return models.one_node(path, "Relu", (["N", 4], ["N", 4]), dtype=TensorProto.DOUBLE)


def batch_of_one(path: Path) -> Path:
    return models.one_node(path, "Relu", ([1, 4], [1, 4]))


def no_model(path: Path) -> Path:
    path.write_bytes(b"no model")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (operator_of_mine, "operator Mine is not supported"),
        (doubles, "TensorRT cannot take DOUBLE"),
        (batch_of_one, "dimension 0 must be the batch"),
        (models.frozen_batch, "the batch is frozen in the graph"),
        (no_model, "not an ONNX model"),
    ],
)
def test_what_cannot_become_an_engine_is_refused_with_its_reason(
    tmp_path: Path, make: Callable[[Path], Path], reason: str
) -> None:
    failure = build_one(make(tmp_path / "m.onnx"), tmp_path / "art")
    assert isinstance(failure, EngineFailure)
    assert reason in failure.reason


def test_card_that_the_library_does_not_build_for_is_a_failure_of_that_class(
    tmp_path: Path,
) -> None:
    failure = build_one(
        models.two_in_three_out(tmp_path / "m.onnx"), tmp_path / "art", gpu_class="V100"
    )
    assert isinstance(failure, EngineFailure)
    assert "compute capability 7.0" in failure.reason
    assert "SM89" in failure.reason


@pytest.mark.slow
def test_builder_that_dies_costs_the_stage_it_was_building(tmp_path: Path) -> None:
    onnx = models.two_in_three_out(tmp_path / "m.onnx")
    settings = EngineSettings(library="tensorrt-rtx", time_limit_s=0.01)
    report = build_engines([request(onnx)], tmp_path / "art", settings)
    (failure,) = report.failures
    assert "stopped after" in failure.reason


@pytest.mark.slow
def test_two_builds_never_share_a_gpu(tmp_path: Path) -> None:
    gpu = f"GPU-of-{tmp_path.name}"
    lock = lock_folder() / f"{gpu}.lock"
    make_private_folder(lock.parent)
    wanted = request(models.two_in_three_out(tmp_path / "m.onnx"))
    impatient = EngineSettings(library="tensorrt-rtx", devices={CLASS: gpu}, time_limit_s=2.5)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        (failure,) = build_engines([wanted], tmp_path / "art", impatient).failures
        assert "stopped after" in failure.reason
    patient = replace(impatient, time_limit_s=60.0)
    assert build_engines([wanted], tmp_path / "art", patient).built == 1
    lock.unlink()


@pytest.mark.parametrize("made", ["open to others", "not this user's folder"])
def test_a_lock_folder_that_another_user_may_have_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if made == "open to others":
        lock_folder().mkdir()
        lock_folder().chmod(0o777)
    else:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        lock_folder().symlink_to(tmp_path / "elsewhere")
    wanted = request(models.two_in_three_out(tmp_path / "m.onnx"))
    with pytest.raises(InputError, match=f"poolpipe-build-locks-.*: is {made}"):
        build_engines([wanted], tmp_path / "art", RTX)


def test_capability_comes_from_the_name_or_is_stated() -> None:
    assert compute_capability("NVIDIA-L4", {}) == "8.9"
    assert compute_capability("T4", {"T4": "7.5"}) == "7.5"
    assert compute_capability("mine", {"mine": "12.0"}) == "12.0"
    with pytest.raises(InputError, match="state it"):
        compute_capability("mine", {})


@pytest.mark.slow
def test_loading_without_a_gpu_says_so_in_one_line(
    built: EngineResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(InputError, match=r"^GPU: ") as caught:
        load_runtime(built.folder)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_engine_of_another_library_version_is_refused(built: EngineResult, tmp_path: Path) -> None:
    manifest = json.loads((built.folder / "engine.json").read_text())
    manifest["options"]["library_version"] = "0.1"
    (tmp_path / "engine.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"built with tensorrt-rtx 0\.1, here is"):
        load_runtime(tmp_path)
