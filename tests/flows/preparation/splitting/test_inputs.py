"""Open sizes are fixed as asked, values keep within what the graph allows, state is refused."""

import json
import math
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from flows.preparation.splitting import SplitChoices, SplitModel, split_model
from flows.preparation.splitting.inputs.values import (
    InputValues,
    ModelInputs,
    Range,
    read_ranges,
    read_samples,
)
from flows.preparation.splitting.running import open_session, relative_error, run_session
from tests.flows.preparation.splitting import tiny_models
from tests.flows.preparation.splitting.tiny_models import CHANNELS, SIZE
from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec

OPEN = ["n", CHANNELS, "height", "width"]


def picture_net(path: Path) -> Path:
    """A convolution of stride 2, enlarged again and added: sizes must be even."""
    nodes = [
        tiny_models.conv(0, "x", "a"),
        helper.make_node("Conv", ["a", "w1"], ["b"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Resize", ["b", "", "twice"], ["c"]),
        helper.make_node("Add", ["a", "c"], ["d"]),
        tiny_models.conv(2, "d", "y"),
    ]
    constants = tiny_models.conv_weights(3) | {"twice": np.array([1, 1, 2, 2], np.float32)}
    return tiny_models.save(path, nodes, inputs={"x": OPEN}, outputs=["y"], constants=constants)


def embedding_net(path: Path, kind: int = TensorProto.INT64, rows: int = 5) -> Path:
    """Rows of a table, chosen by whole numbers, and a layer behind them."""
    nodes = [
        helper.make_node("Cast", ["ids"], ["at"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "at"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    rng = np.random.default_rng(4)
    constants = {
        "table": rng.standard_normal((rows, 4)).astype(np.float32),
        "w": rng.standard_normal((4, 4)).astype(np.float32),
    }
    graph = helper.make_graph(
        nodes,
        "embedding",
        [helper.make_tensor_value_info("ids", kind, ["n", 7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 7, 4])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def split(path: Path, folder: Path, **choices: object) -> SplitModel:
    asked = SplitChoices(**choices)  # type: ignore[arg-type]
    return split_model(path, name="m", blocks=3, max_batch=3, out=folder, choices=asked)


def test_open_sizes_are_fixed_and_the_batch_stays_open(tmp_path: Path) -> None:
    path = picture_net(tmp_path / "m.onnx")
    found = split(path, tmp_path / "models", input_shapes={"x": (CHANNELS, 8, 10)})
    assert [spec.shape for spec in found.inputs] == [(-1, CHANNELS, 8, 10)]
    assert [spec.shape for spec in found.outputs] == [(-1, CHANNELS, 8, 10)]
    assert found.blocks == 3
    x = np.random.default_rng(0).standard_normal((2, CHANNELS, 8, 10)).astype(np.float32)
    expected = run_session(open_session(path, "as exported"), {"x": x})["y"]
    got = run_session(open_session(found.model_path, "fixed"), {"x": x})["y"]
    assert relative_error(got, expected) <= 1e-5
    again = split(path, tmp_path / "models", input_shapes={"x": (CHANNELS, 8, 8)})
    assert again.key != found.key


def test_sizes_left_open_are_listed_with_the_options_to_give(tmp_path: Path) -> None:
    path = picture_net(tmp_path / "m.onnx")
    with pytest.raises(InputError) as caught:
        split(path, tmp_path / "models")
    said = str(caught.value)
    assert "open sizes in x [batch, 4, height, width]; give --input-shape x=4xSIZExSIZE" in said
    assert "multiples of 2" in said
    assert "\n" not in said


def test_the_size_that_a_trainer_left_in_the_file_is_proposed(tmp_path: Path) -> None:
    path = picture_net(tmp_path / "m.onnx")
    model = onnx.load(path)
    model.metadata_props.add(key="imgsz", value="[32, 64]")
    onnx.save(model, path)
    with pytest.raises(InputError, match=r"give --input-shape x=4x32x64 .*metadata"):
        split(path, tmp_path / "models")


def test_a_batch_of_minus_one_is_open(tmp_path: Path) -> None:
    path = picture_net(tmp_path / "m.onnx")
    model = onnx.load(path)
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_value = dim.dim_value or -1
    onnx.save(model, path)
    found = split(path, tmp_path / "models", input_shapes={"x": (CHANNELS, 8, 8)})
    assert [spec.shape for spec in found.inputs] == [(-1, CHANNELS, 8, 8)]


def test_one_name_of_a_size_is_one_size_in_all_inputs(tmp_path: Path) -> None:
    shape = ["n", "length"]
    path = tiny_models.save(
        tmp_path / "m.onnx",
        [helper.make_node("Add", ["x", "z"], ["s"]), helper.make_node("Relu", ["s"], ["y"])],
        inputs={"x": shape, "z": shape},
        outputs=["y"],
    )
    found = split(path, tmp_path / "models", input_shapes={"x": (5,)})
    assert [spec.shape for spec in found.inputs] == [(-1, 5), (-1, 5)]
    with pytest.raises(InputError, match="input 'z': 'length' is 5 elsewhere, and 6 here"):
        split(path, tmp_path / "models", input_shapes={"x": (5,), "z": (6,)})


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ({"image": (4, 8, 8)}, r"has no input 'image'; its inputs: x \[batch, 4, height, width\]"),
        ({"x": (8, 8)}, "takes 3 sizes beside the batch, not 8x8"),
        ({"x": (3, 8, 8)}, "dimension 1 is 4 in the file, not 3"),
        (
            {"x": (4, 8, 9)},
            r"m\.onnx, --input-shape: height and width must be multiples of 2: .*Add",
        ),
        ({"x": (4, 99_999, 99_999)}, "MiB; at most 256 MiB are taken"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], reason: str
) -> None:
    path = picture_net(tmp_path / "m.onnx")
    with pytest.raises(InputError, match=reason):
        split(path, tmp_path / "models", input_shapes=shapes)


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT])
def test_indices_of_an_embedding_are_drawn_over_all_of_its_rows(tmp_path: Path, kind: int) -> None:
    found = split(embedding_net(tmp_path / "m.onnx", kind), tmp_path / "models")
    assert found.input_ranges == {"ids": Range(0, 4, whole=True)}
    drawn = found.model_inputs().draw(60, np.random.default_rng(0))["ids"]
    assert sorted(set(drawn.ravel().tolist())) == [0, 1, 2, 3, 4]


def test_a_range_is_drawn_to_both_of_its_ends(tmp_path: Path) -> None:
    path = embedding_net(tmp_path / "m.onnx", rows=50)
    found = split(path, tmp_path / "models", input_ranges=read_ranges(["ids=3..5"]))
    again = SplitModel.read(found.folder)
    drawn = again.model_inputs().draw(60, np.random.default_rng(0))["ids"]
    assert sorted(set(drawn.ravel().tolist())) == [3, 4, 5]


def test_bytes_of_pictures_are_drawn_over_all_values() -> None:
    spec = TensorSpec(name="x", dtype="UINT8", shape=(-1, 100))
    values = InputValues(ranges={"x": Range(0, 255, whole=True)})
    drawn = ModelInputs(specs=(spec,), values=values).draw(50, np.random.default_rng(0))["x"]
    assert (drawn.dtype, int(drawn.min()), int(drawn.max())) == (np.uint8, 0, 255)
    assert len({int(sample.mean()) for sample in drawn}) > 20


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x", "is not NAME=LOW..HIGH"),
        ("x=1-2", "is not NAME=LOW..HIGH"),
        ("x=0..inf", "is not NAME=LOW..HIGH"),
        ("x=5..2", "ends below its beginning"),
    ],
)
def test_texts_that_are_no_range_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_ranges([text])


def test_ranges_of_other_inputs_or_beyond_the_type_are_refused(tmp_path: Path) -> None:
    path = embedding_net(tmp_path / "m.onnx", TensorProto.UINT8)
    for text, reason in (("y=0..1", "has no input 'y'"), ("ids=0..256", "beyond UINT8")):
        with pytest.raises(InputError, match=reason):
            split(path, tmp_path / "models", input_ranges=read_ranges([text]))


def test_samples_are_taken_in_their_order_and_kept_with_the_split(tmp_path: Path) -> None:
    path = tiny_models.chain(tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((2, CHANNELS, SIZE, SIZE)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", x=x)
    found = split(path, tmp_path / "models", samples=tmp_path / "samples.npz")
    (tmp_path / "samples.npz").unlink()
    drawn = SplitModel.read(found.folder).model_inputs().draw(3, np.random.default_rng(0))["x"]
    np.testing.assert_array_equal(drawn, x[[0, 1, 0]])


def test_samples_of_a_folder_are_joined(tmp_path: Path) -> None:
    for i in range(3):
        arrays = {"inputs/x": np.full((1, 2), i), "outputs/y": np.zeros(1)}
        np.savez(tmp_path / f"{i}.npz", **arrays)
    assert read_samples(tmp_path)["x"].tolist() == [[0, 0], [1, 1], [2, 2]]


def test_files_that_hold_no_samples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no .npz file there"):
        read_samples(tmp_path)
    text = tmp_path / "text.npz"
    text.write_text("not an archive")
    one = tmp_path / "one.npz"
    np.savez(one, x=np.zeros((1, 2)))
    objects = tmp_path / "objects.npz"
    np.savez(objects, x=np.array([{}, {}], dtype=object))
    header = tmp_path / "header.npz"
    with zipfile.ZipFile(header, "w") as archive, archive.open("x.npy", "w") as stream:
        shape = {"shape": (1 << 40, 4), "fortran_order": False, "descr": "<f4"}
        np.lib.format.write_array_header_1_0(stream, shape)
    for file, reason in (
        (text, "is not an .npz file"),
        (one, "needs two samples or more"),
        (objects, "is not an .npz file"),
        (header, "more than 1024 MiB"),
    ):
        with pytest.raises(InputError, match=reason):
            read_samples(file)


def test_samples_of_another_shape_or_type_are_refused(tmp_path: Path) -> None:
    path = tiny_models.chain(tmp_path / "m.onnx")
    np.savez(tmp_path / "samples.npz", x=np.zeros((2, CHANNELS, SIZE, SIZE)))
    with pytest.raises(InputError, match=r"is float64 .*the model takes FP32"):
        split(path, tmp_path / "models", samples=tmp_path / "samples.npz")


def test_samples_of_a_tensor_that_the_model_lacks_are_named_with_its_inputs(tmp_path: Path) -> None:
    path = tiny_models.chain(tmp_path / "m.onnx")
    x = np.zeros((4, CHANNELS, SIZE, SIZE), np.float32)
    np.savez(tmp_path / "samples.npz", x=x, z=np.zeros((3, 2), np.float32))
    said = r"samples.npz: holds 'z', which is no input of the model; its inputs: x$"
    with pytest.raises(InputError, match=said):
        split(path, tmp_path / "models", samples=tmp_path / "samples.npz")
    with pytest.raises(InputError, match=r"as many of every input; has 4 of 'x', 3 of 'z'$"):
        read_samples(tmp_path / "samples.npz")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_samples_that_are_not_finite_are_named_where_results_are_none(
    tmp_path: Path, value: float
) -> None:
    path = tiny_models.chain(tmp_path / "m.onnx")
    x = np.zeros((4, CHANNELS, SIZE, SIZE), np.float32)
    x[2, 0] = value
    np.savez(tmp_path / "samples.npz", x=x)
    said = r"samples.npz, 'x', sample 2: holds values that are not finite \(NaN or infinity\)$"
    with pytest.raises(InputError, match=said):
        split(path, tmp_path / "models", samples=tmp_path / "samples.npz")


def test_answers_that_ignore_the_input_are_accepted_on_boundaries(tmp_path: Path) -> None:
    """As an untrained head of zeros gives them."""
    nodes = [
        tiny_models.conv(0, "x", "a"),
        tiny_models.conv(1, "a", "b"),
        helper.make_node("Mul", ["b", "zero"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    constants = tiny_models.conv_weights(2) | {"zero": np.zeros((1, 1, 1, 1), np.float32)}
    path = tiny_models.save(
        tmp_path / "m.onnx",
        nodes,
        inputs={"x": ["n", CHANNELS, SIZE, SIZE]},
        outputs=["y"],
        constants=constants,
    )
    found = split(path, tmp_path / "models")
    assert not found.answers_vary
    assert math.isclose(found.check["input_dependence"], 0)
    # Behind the zeros two samples do not differ: no cut there.
    assert (found.blocks, found.unproven) == (3, ("c",))
    assert found.remarks() == [
        "its answers do not depend on its input; it was compared at its boundaries",
        "two different inputs do not change c",
    ]
    every = split_model(
        path,
        name="m",
        blocks=4,
        out=tmp_path / "models",
        choices=SplitChoices(allow_unproven=True),
    )
    assert (every.blocks, every.unproven) == (4, ("c",))


def recurrent_net(path: Path, names: tuple[str, str]) -> Path:
    """A recurrent layer that begins with an input's part and gives its last state."""
    rng = np.random.default_rng(2)
    before, after = names
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("Identity", [before], ["h0"]),
        helper.make_node("GRU", ["t", "w", "r", "", "", "h0"], ["", after], hidden_size=3),
        helper.make_node("Squeeze", [after, "first"], ["y"]),
    ]
    constants = {
        "w": rng.standard_normal((1, 9, 2)).astype(np.float32),
        "r": rng.standard_normal((1, 9, 3)).astype(np.float32),
        "first": np.array([0], np.int64),
    }
    return tiny_models.save(
        path,
        nodes,
        inputs={"x": ["n", 4, 2], before: [1, "n", 3]},
        outputs=["y", after],
        constants=constants,
    )


def test_a_model_that_takes_and_gives_its_state_is_refused(tmp_path: Path) -> None:
    path = recurrent_net(tmp_path / "m.onnx", ("h", "hn"))
    with pytest.raises(InputError, match=r"input 'h': is state .*output 'hn'.*zero at the start"):
        split(path, tmp_path / "models")


def test_an_observation_called_state_is_an_input_as_any(tmp_path: Path) -> None:
    shape = ["n", 3]
    path = tiny_models.save(
        tmp_path / "m.onnx",
        [
            helper.make_node("Relu", ["state"], ["a"]),
            helper.make_node("Tanh", ["a"], ["state_value"]),
        ],
        inputs={"state": shape},
        outputs=["state_value"],
    )
    assert split(path, tmp_path / "models").blocks == 2


def test_a_cache_is_state(tmp_path: Path) -> None:
    shape = ["n", 2]
    path = tiny_models.save(
        tmp_path / "m.onnx",
        [
            helper.make_node("Add", ["x", "past_key_values.0"], ["present.0"]),
            helper.make_node("Relu", ["present.0"], ["y"]),
        ],
        inputs={"x": shape, "past_key_values.0": shape},
        outputs=["y", "present.0"],
    )
    with pytest.raises(InputError, match=r"'past_key_values.0': is state .*'present.0'"):
        split(path, tmp_path / "models")


def test_a_record_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    found = split(tiny_models.chain(tmp_path / "m.onnx"), tmp_path / "models")
    record = found.folder / "split.json"
    data = json.loads(record.read_text())
    del data["unproven"], data["input_ranges"]
    record.write_text(json.dumps(data))
    again = SplitModel.read(found.folder)
    assert (again.cuts, again.unproven, again.input_ranges) == (found.cuts, (), {})


def test_sizes_whose_inner_tensors_exceed_the_memory_are_refused_at_once(tmp_path: Path) -> None:
    nodes = [helper.make_node("Expand", ["x", "shape"], ["a"])]
    nodes += [helper.make_node("ReduceMean", ["a"], ["y"], axes=[1], keepdims=0)]
    path = tiny_models.save(
        tmp_path / "m.onnx",
        nodes,
        inputs={"x": ["n", 1, "width"]},
        outputs=["y"],
        constants={"shape": np.array([1, 1 << 30, 1], np.int64)},
    )
    with pytest.raises(InputError, match=r"inner tensors of 3 samples take \d+ MiB; \d+ MiB are"):
        split(path, tmp_path / "models", input_shapes={"x": (1, 4096)})
