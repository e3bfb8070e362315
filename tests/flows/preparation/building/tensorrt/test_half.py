"""Stages in half precision, and what that costs."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from flows.preparation.building.tensorrt.build import build_engines
from flows.preparation.building.tensorrt.half import convert_chain, convert_stage
from flows.preparation.building.tensorrt.requests import EngineRequest, EngineSettings
from tests.flows.preparation.building.tensorrt import stage_models as models
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.base import Artifact

FLOAT, FLOAT16, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64


def edge_types(path: Path) -> dict[str, int]:
    graph = onnx.load(path).graph
    return {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}


def two_stages(folder: Path) -> list[Path]:
    """Convolutions in two files that meet at `y`, renamed `z` behind the second."""
    first = models.convolutions(folder / "first.onnx")
    model = onnx.load(models.convolutions(folder / "second.onnx", layers=2))
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [{"x": "y", "y": "z"}.get(name, name) for name in names]
    model.graph.input[0].name, model.graph.output[0].name = "y", "z"
    onnx.save(model, folder / "second.onnx")
    return [first, folder / "second.onnx"]


def test_boundaries_become_half_and_the_models_own_edges_stay(tmp_path: Path) -> None:
    chain = convert_chain(two_stages(tmp_path), tmp_path / "half")
    assert edge_types(chain.stages[0]) == {"x": FLOAT, "y": FLOAT16}
    assert edge_types(chain.stages[1]) == {"y": FLOAT16, "z": FLOAT}
    for stage in chain.stages:
        model = onnx.load(stage)
        onnx.checker.check_model(model, full_check=True)
        assert {t.data_type for t in model.graph.initializer} == {FLOAT16}


def test_loss_is_measured_on_the_models_outputs(tmp_path: Path) -> None:
    loss = convert_chain(two_stages(tmp_path), tmp_path / "half", samples=3).loss
    assert 0 < loss.max_relative < 5e-3
    assert loss.samples == 3
    assert loss.clipped_weights == 0
    assert loss.to_dict()["computed_by"].startswith("onnxruntime")


@pytest.mark.slow
def test_converted_stages_become_engines_that_keep_the_loss(tmp_path: Path) -> None:
    chain = convert_chain(two_stages(tmp_path), tmp_path / "half")
    request = EngineRequest(
        stage="second",
        onnx=chain.stages[1],
        gpu_class="L4-test",
        batches=(2,),
        notes={"precision_loss": chain.loss.to_dict()},
    )
    report = build_engines([request], tmp_path, EngineSettings(library="tensorrt-rtx"))
    artifact = Artifact.read(report.results[0].folder)
    assert (artifact.inputs[0].dtype, artifact.outputs[0].dtype) == ("FP16", "FP32")
    assert artifact.options["precision"] == "fp16"
    assert artifact.options["precision_loss"]["samples"] == 8


def test_delicate_operators_stay_in_fp32_between_casts(tmp_path: Path) -> None:
    shape = ["N", 8]
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("Softmax", ["r"], ["s"], name="softmax", axis=1),
        helper.make_node("Neg", ["s"], ["y"], name="neg"),
    ]
    source = models.save(tmp_path / "m.onnx", nodes, [("x", FLOAT, shape)], [("y", FLOAT, shape)])
    convert_stage(source, tmp_path / "h.onnx", fp32_edges=())
    model = onnx.load(tmp_path / "h.onnx")
    onnx.checker.check_model(model, full_check=True)
    operators = [node.op_type for node in model.graph.node]
    assert operators == ["Relu", "Cast", "Softmax", "Cast", "Neg"]
    assert set(edge_types(tmp_path / "h.onnx").values()) == {FLOAT16}


def test_fp32_output_of_a_delicate_operator_is_not_rounded(tmp_path: Path) -> None:
    source = models.one_node(tmp_path / "m.onnx", "Softmax", (["N", 8], ["N", 8]))
    convert_stage(source, tmp_path / "h.onnx", fp32_edges=("x", "y"))
    nodes = onnx.load(tmp_path / "h.onnx").graph.node
    assert [node.op_type for node in nodes] == ["Softmax", "Identity"]


def test_inputs_that_the_operator_wants_in_fp32_stay_so(tmp_path: Path) -> None:
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], name="resize", mode="nearest")
    source = models.save(
        tmp_path / "m.onnx",
        [node],
        [("x", FLOAT, ["N", 1, 2, 2])],
        [("y", FLOAT, ["N", 1, 4, 4])],
        [scales],
    )
    convert_stage(source, tmp_path / "h.onnx", fp32_edges=())
    model = onnx.load(tmp_path / "h.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [t.data_type for t in model.graph.initializer] == [FLOAT]
    assert edge_types(tmp_path / "h.onnx") == {"x": FLOAT16, "y": FLOAT16}


def test_integers_casts_and_handed_on_tensors_keep_their_sense(tmp_path: Path) -> None:
    chain = convert_chain([models.two_in_three_out(tmp_path / "a.onnx")], tmp_path / "half")
    assert edge_types(chain.stages[0]) == {
        "a": INT64,
        "b": FLOAT,
        "o1": FLOAT,
        "o2": FLOAT,
        "s": INT64,
    }
    convert_stage(models.hands_on(tmp_path / "b.onnx"), tmp_path / "h.onnx", fp32_edges=("x",))
    assert edge_types(tmp_path / "h.onnx") == {"x": FLOAT, "skip": FLOAT16, "y": FLOAT16}


def test_weights_beyond_the_range_are_clipped_and_counted(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.array([[1e6, -2e5], [1, 2]], np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    source = models.save(
        tmp_path / "m.onnx",
        [node],
        [("x", FLOAT, ["N", 2])],
        [("y", FLOAT, ["N", 2])],
        [weights],
    )
    assert convert_stage(source, tmp_path / "h.onnx", fp32_edges=()) == 2


def test_model_that_overflows_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "big"], ["m"], name="enlarge"),
        helper.make_node("Mul", ["m", "big"], ["y"], name="overflow"),
    ]
    big = numpy_helper.from_array(np.array([5e4], np.float32), "big")
    source = models.save(
        tmp_path / "m.onnx", nodes, [("x", FLOAT, ["N", 4])], [("y", FLOAT, ["N", 4])], [big]
    )
    with pytest.raises(InputError, match="leaves fp16's range: keep this model in fp32"):
        convert_chain([source], tmp_path / "half")


def test_control_flow_is_refused(tmp_path: Path) -> None:
    branch = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"])],
        "branch",
        [],
        [helper.make_tensor_value_info("r", FLOAT, ["N", 4])],
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    inputs = [("c", TensorProto.BOOL, []), ("x", FLOAT, ["N", 4])]
    source = models.save(tmp_path / "m.onnx", [node], inputs, [("y", FLOAT, ["N", 4])])
    with pytest.raises(InputError, match="control flow"):
        convert_stage(source, tmp_path / "h.onnx", fp32_edges=())
