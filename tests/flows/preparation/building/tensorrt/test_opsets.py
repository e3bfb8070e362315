"""Stages of old opsets are converted for TensorRT's parser, or refused with the operator."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from flows.cli.main import run
from flows.preparation.building.tensorrt import opsets
from flows.preparation.building.tensorrt.opsets import LEAST_OPSET, opset_of, readable_stages
from flows.preparation.building.tensorrt.precision_loss import stage_inputs
from flows.preparation.splitting.running import open_session, run_session
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.base import Artifact

BIAS = numpy_helper.from_array(np.array([[[1.0]], [[2.0]], [[3.0]]], np.float32), "bias")
EDGE = ["N", 3, 8, 8]


def save(path: Path, opset: int, nodes: Sequence[onnx.NodeProto]) -> Path:
    """A model of `x` and a bias to `y`, of the shape of `EDGE`."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, EDGE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, EDGE)],
        [BIAS],
    )
    opset_imports = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=opset_imports, ir_version=8), path)
    return path


def enlarging(path: Path, opset: int = 7, layers: int = 1) -> Path:
    """Opset 7 enlarges by an attribute, which is an input in opset 9."""
    nodes: list[onnx.NodeProto] = []
    before = "x"
    for layer in range(layers):
        after = "y" if layer == layers - 1 else f"r{layer}"
        added, large, small = (f"{name}{layer}" for name in "als")
        nodes += [
            helper.make_node("Add", [before, "bias"], [added]),
            helper.make_node("Upsample", [added], [large], scales=[1.0, 1.0, 2.0, 2.0]),
            helper.make_node("MaxPool", [large], [small], kernel_shape=[2, 2], strides=[2, 2]),
            helper.make_node("Relu", [small], [after]),
        ]
        before = after
    return save(path, opset, nodes)


def test_an_old_stage_is_converted_and_answers_as_before(tmp_path: Path) -> None:
    old = enlarging(tmp_path / "old.onnx")
    (new,) = readable_stages([old], tmp_path / "converted")
    assert (opset_of(old), opset_of(new)) == (7, LEAST_OPSET)
    assert new.name == "old.opset9.onnx"
    sessions = [open_session(path, "test") for path in (old, new)]
    assert [[edge.shape for edge in one.get_inputs()] for one in sessions] == [[EDGE]] * 2
    feed = stage_inputs(old, 5)
    expected, got = (run_session(one, feed)["y"] for one in sessions)
    np.testing.assert_array_equal(got, expected)


def test_a_stage_of_a_later_opset_stays_as_it_is(tmp_path: Path) -> None:
    path = save(tmp_path / "new.onnx", LEAST_OPSET, [helper.make_node("Relu", ["x"], ["y"])])
    assert readable_stages([path], tmp_path / "converted") == [path]
    assert not (tmp_path / "converted").exists()


def test_an_operator_that_cannot_be_converted_is_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["x", "bias"], ["a"]),
        helper.make_node("Mystery", ["a"], ["y"], name="middle"),
    ]
    path = save(tmp_path / "odd.onnx", 7, nodes)
    with pytest.raises(InputError) as refused:
        readable_stages([path], tmp_path / "converted")
    said = str(refused.value)
    assert "odd.onnx, opset 7: operator Mystery ('middle') cannot be converted to opset 9" in said
    assert said.endswith("export the model with that or a later one")
    assert "\n" not in said


def test_a_conversion_that_answers_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = onnx.load(save(tmp_path / "w.onnx", 9, [helper.make_node("Neg", ["x"], ["y"])]))

    def convert(_model: onnx.ModelProto, _opset: int) -> onnx.ModelProto:
        return wrong

    monkeypatch.setattr(opsets.version_converter, "convert_version", convert)
    with pytest.raises(InputError, match=r"output 'y' differs by .* after conversion to opset 9"):
        readable_stages([enlarging(tmp_path / "old.onnx")], tmp_path / "converted")


@pytest.mark.slow
def test_build_converts_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POOLPIPE_HOME", raising=False)
    monkeypatch.delenv("POOLPIPE_WAREHOUSE", raising=False)
    (tmp_path / "gpus.yaml").write_text(
        "gpu_classes: {L4-test: {}}\n"
        "nodes: [{count: 1, gpu_class: L4-test, gpus: 1, nic_gbps: 10}]\n"
    )
    enlarging(tmp_path / "old.onnx", layers=4)
    assert run(["split", "old.onnx", "--blocks", "2", "--max-batch", "2"]) == 0
    capsys.readouterr()
    build = ["build", "--cluster", "gpus.yaml", "--runtime", "tensorrt", "--json", "--batch", "2"]
    assert run([*build, "--library", "tensorrt-rtx"]) == 0
    out, err = capsys.readouterr()
    assert "old is of opset 7: converted to opset 9 for TensorRT, same answers" in err
    engines = json.loads(out)["old"]["engines"]
    assert len(engines) == 3
    for engine in engines:
        artifact = Artifact.read(tmp_path / ".poolpipe" / "artifacts" / engine["artifact"])
        assert artifact.options["converted_from_opset"] == 7
