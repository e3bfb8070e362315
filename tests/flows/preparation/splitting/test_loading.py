"""Models that cannot be split are refused with one line that names the file and the reason."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from flows.preparation.splitting import split_model
from flows.preparation.splitting.loading import load_external_data, load_skeleton, save_model
from tests.flows.preparation.splitting import tiny_models
from triton_backend.contract.errors import InputError


def refused(path: Path, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        split_model(path, name="m", out=path.parent / "models")
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert not list((path.parent / "models").rglob("*.onnx"))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none.onnx", "no such file")


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    refused(tmp_path / "net", "is a folder; name the ONNX file in it")


@pytest.mark.parametrize("name", ["model.onnx", "plan.json", "model.textproto", "model.onnxtxt"])
@pytest.mark.parametrize("content", [b"", b"this is text, not a model\n", bytes(range(256))])
def test_a_file_that_is_not_onnx_is_refused(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    refused(path, "is not an ONNX file")


def test_a_model_without_layers_is_refused(tmp_path: Path) -> None:
    path = tiny_models.save(tmp_path / "m.onnx", [], inputs={"x": ["n", 2]}, outputs=["x"])
    refused(path, "no layers")


def choice(tmp_path: Path, operator: str) -> Path:
    """A Relu, then an `If` whose branches have one layer."""
    branch = helper.make_graph(
        [helper.make_node(operator, ["r"], ["b"], name="inner")],
        "branch",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)],
    )
    node = helper.make_node(
        "If", ["flag"], ["y"], name="choose", then_branch=branch, else_branch=branch
    )
    return tiny_models.save(
        tmp_path / "m.onnx",
        [helper.make_node("Relu", ["x"], ["r"]), node],
        inputs={"x": ["n", 2]},
        outputs=["y"],
        constants={"flag": np.array(1, np.bool_)},
    )


def test_control_flow_that_takes_any_batch_stays_as_it_is(tmp_path: Path) -> None:
    split = split_model(choice(tmp_path, "Neg"), name="m", out=tmp_path / "models")
    assert [(spec.name, spec.shape) for spec in split.outputs] == [("y", (-1, 2))]
    kinds = [node.op_type for node in onnx.load(split.model_path).graph.node]
    assert kinds == ["Relu", "If"]


def test_a_random_layer_in_a_branch_is_refused(tmp_path: Path) -> None:
    refused(choice(tmp_path, "RandomNormalLike"), "inner.*another answer on every run")


def test_a_random_layer_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("RandomUniformLike", ["x"], ["y"])
    path = tiny_models.save(tmp_path / "m.onnx", [node], inputs={"x": ["n", 2]}, outputs=["y"])
    refused(path, "another answer on every run")


def test_values_that_are_not_tensors_are_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Optional", ["x"], ["o"]),
        helper.make_node("OptionalGetElement", ["o"], ["y"]),
    ]
    path = tiny_models.save(tmp_path / "m.onnx", nodes, inputs={"x": ["n", 2]}, outputs=["y"])
    refused(path, "Optional makes values that are not tensors")


def test_an_output_that_is_not_a_tensor_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    path = tiny_models.save(tmp_path / "m.onnx", [node], inputs={"x": ["n", 2]}, outputs=["y"])
    model = onnx.load(path)
    model.graph.output[0].type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    path.write_bytes(model.SerializeToString())
    refused(path, "'y': is not a tensor")


def test_inputs_that_disagree_about_the_batch_are_refused(tmp_path: Path) -> None:
    node = helper.make_node("Add", ["x", "z"], ["y"])
    path = tiny_models.save(
        tmp_path / "m.onnx", [node], inputs={"x": [4, 2], "z": [1, 2]}, outputs=["y"]
    )
    refused(path, r"inputs disagree about the batch.*'x': 4, 'z': 1")


def test_an_invalid_graph_is_refused(tmp_path: Path) -> None:
    path = tiny_models.chain(tmp_path / "m.onnx")
    model = onnx.load(path)
    model.graph.node[1].input[0] = "nobody"
    path.write_bytes(model.SerializeToString())
    refused(path, "not a valid ONNX model.*nobody")


def test_several_dynamic_dimensions_are_refused(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    path = tiny_models.save(
        tmp_path / "m.onnx", [node], inputs={"x": ["n", 3, "height"]}, outputs=["y"]
    )
    refused(path, r"open sizes in x \[batch, 3, height\]; give --input-shape x=3xSIZE")


def test_an_input_without_dimensions_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    path = tiny_models.save(tmp_path / "m.onnx", [node], inputs={"x": []}, outputs=["y"])
    refused(path, "no batch dimension .*; make a value that never changes an initializer")


def test_an_input_whose_batch_may_be_another_dimension_than_the_first_is_named(
    tmp_path: Path,
) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    path = tiny_models.save(tmp_path / "m.onnx", [node], inputs={"x": [7, "n", 4]}, outputs=["y"])
    refused(path, "the batch is the first dimension; transpose x where it is another")


@pytest.mark.parametrize("shape", [[0, 3], [1, 0], ["n", 0, 2]])
def test_an_input_that_holds_no_element_is_refused(tmp_path: Path, shape: list[int | str]) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    path = tiny_models.save(tmp_path / "m.onnx", [node], inputs={"x": shape}, outputs=["y"])
    refused(path, "input 'x': shape .* holds no element")


def test_an_element_type_that_clients_cannot_send_is_refused(tmp_path: Path) -> None:
    path = tiny_models.save(
        tmp_path / "m.onnx",
        [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)],
        inputs={"x": ["n", 2]},
        outputs=["y"],
    )
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    path.write_bytes(model.SerializeToString())
    refused(path, "input 'x': element type is not served")


def test_an_operator_nobody_knows_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    path = tiny_models.save(tmp_path / "m.onnx", [node], inputs={"x": ["n", 2]}, outputs=["y"])
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("nowhere", 1))
    model.graph.node[0].domain, model.graph.node[0].op_type = "nowhere", "Quux"
    path.write_bytes(model.SerializeToString())
    refused(path, "onnxruntime cannot load it")


def test_a_model_without_inputs_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["c"], ["y"])
    path = tiny_models.save(
        tmp_path / "m.onnx", [node], inputs={}, outputs=["y"], constants={"c": np.ones(2, "f")}
    )
    refused(path, "has no input")


def test_an_output_that_no_input_reaches_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Relu", ["c"], ["z"])]
    path = tiny_models.save(
        tmp_path / "m.onnx",
        nodes,
        inputs={"x": ["n", 2]},
        outputs=["y", "z"],
        constants={"c": np.ones((1, 2), "f")},
    )
    refused(path, "output 'z': is not computed from any input")


def test_missing_external_data_is_refused(tmp_path: Path) -> None:
    model = onnx.load(tiny_models.chain(tmp_path / "inline.onnx"))
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()
    refused(path, "its weights are in 'weights.bin', which is not in its folder: copy it there")


def test_external_data_is_read_and_the_split_is_the_inline_ones(tmp_path: Path) -> None:
    inline = tiny_models.chain(tmp_path / "inline.onnx")
    external = tmp_path / "external.onnx"
    onnx.save(
        onnx.load(inline), external, save_as_external_data=True, location="w.bin", size_threshold=0
    )
    splits = [
        split_model(path, name=path.stem, blocks=2, out=tmp_path / "models")
        for path in (inline, external)
    ]
    assert splits[0].model_path.read_bytes() == splits[1].model_path.read_bytes()


def test_large_weights_are_written_beside_the_model(tmp_path: Path) -> None:
    source = tiny_models.residual_net(tmp_path / "m.onnx")
    model = onnx.load(source)
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "large")
    )
    target = tmp_path / "split.onnx"
    save_model(model, target, inline_up_to_bytes=1000)
    assert (tmp_path / "split.onnx.data").stat().st_size >= 64 * 64 * 4
    skeleton = onnx.load(target, load_external_data=False)
    load_external_data(skeleton, target)
    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in skeleton.graph.initializer}
    assert tensors["large"].sum() == 64 * 64


def test_local_functions_are_inlined(tmp_path: Path) -> None:
    body = [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Neg", ["b"], ["c"])]
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "ReluNeg", ["a"], ["c"], body, opsets)
    graph = helper.make_graph(
        [helper.make_node("ReluNeg", ["x"], ["y"], domain="own")],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
    )
    model = helper.make_model(
        graph,
        opset_imports=[*opsets, helper.make_opsetid("own", 1)],
        functions=[function],
        ir_version=9,
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert [node.op_type for node in load_skeleton(path).graph.node] == ["Relu", "Neg"]


def test_nodes_in_any_order_are_sorted(tmp_path: Path) -> None:
    path = tiny_models.chain(tmp_path / "m.onnx")
    model = onnx.load(path)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend([*nodes[1:], nodes[0]])
    onnx.save(model, path)
    assert [node.output[0] for node in load_skeleton(path).graph.node] == ["t0", "t1", "t2", "y"]
    assert split_model(path, name="m", out=tmp_path / "models", blocks=4).blocks == 4


def test_a_cycle_is_refused(tmp_path: Path) -> None:
    path = tiny_models.chain(tmp_path / "m.onnx")
    model = onnx.load(path)
    model.graph.node[1].input[0] = model.graph.node[2].output[0]
    onnx.save(model, path)
    refused(path, "is not a valid ONNX model: Nodes in a graph must be topologically sorted")


def test_a_model_quantised_by_the_range_of_its_batch_is_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("MatMul", ["d", "w"], ["y"]),
    ]
    path = tiny_models.save(
        tmp_path / "m.onnx",
        nodes,
        inputs={"x": ["n", 8]},
        outputs=["y"],
        constants={"w": rng.standard_normal((8, 8)).astype(np.float32)},
    )
    refused(path, "quantise it with fixed ranges")
