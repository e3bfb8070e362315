"""A split is found again by content, and the examples are what they say."""

from pathlib import Path

import onnx
import pytest
from onnx import helper

from flows.splitting import SplitModel, check_split, example_names, split_model, write_example
from tests.splitting import tiny_models
from triton_backend.core.errors import InputError


def test_the_same_model_is_split_once(tmp_path: Path) -> None:
    path, out = tiny_models.chain(tmp_path / "m.onnx"), tmp_path / "models"
    first = split_model(path, name="m", blocks=3, out=out)
    again = split_model(path, name="m", blocks=3, out=out)
    assert not first.reused
    assert again.reused
    assert again.key == first.key
    assert again.boundaries == first.boundaries
    assert again == SplitModel.read(first.folder)


def test_another_content_or_request_is_another_split(tmp_path: Path) -> None:
    out = tmp_path / "models"
    path = tiny_models.chain(tmp_path / "m.onnx")
    other = tiny_models.chain(tmp_path / "other.onnx", layers=5)
    keys = {
        split_model(path, name="m", blocks=3, out=out).key,
        split_model(path, name="m", blocks=2, out=out).key,
        split_model(path, name="m", blocks=3, out=out, max_batch=2).key,
        split_model(other, name="m", blocks=3, out=out).key,
    }
    assert len(keys) == 4


def test_a_failed_split_leaves_nothing_behind(tmp_path: Path) -> None:
    path, out = tiny_models.chain(tmp_path / "m.onnx"), tmp_path / "models"
    with pytest.raises(InputError, match="0 blocks"):
        split_model(path, name="m", blocks=0, out=out)
    assert not out.exists()


@pytest.mark.parametrize("name", ["", "../m", "a b", ".hidden"])
def test_a_name_that_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    path = tiny_models.chain(tmp_path / "m.onnx")
    with pytest.raises(InputError, match="model name"):
        split_model(path, name=name, out=tmp_path / "models")


def test_a_broken_record_is_named(tmp_path: Path) -> None:
    split = split_model(
        tiny_models.chain(tmp_path / "m.onnx"), name="m", blocks=2, out=tmp_path / "models"
    )
    (split.folder / "split.json").write_text("{}")
    with pytest.raises(InputError, match=r"split\.json: not the record of a split"):
        SplitModel.read(split.folder)


def test_examples_are_the_graphs_of_the_onnx_wheel() -> None:
    assert {"squeezenet", "shufflenet", "resnet50", "densenet121"} <= set(example_names())


def test_an_unknown_example_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"example 'lenet': is none of .*squeezenet"):
        write_example("lenet", tmp_path / "m.onnx")


def test_an_example_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    paths = [
        write_example("shufflenet", tmp_path / f"{i}.onnx", seed=seed)
        for i, seed in enumerate((1, 1, 2))
    ]
    assert paths[0].read_bytes() == paths[1].read_bytes() != paths[2].read_bytes()
    graph = onnx.load(paths[0]).graph
    assert not graph.value_info
    assert graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_an_example_splits_into_ten_blocks_that_depend_on_the_input(
    tmp_path: Path, name: str
) -> None:
    path = write_example(name, tmp_path / "m.onnx")
    split = split_model(path, name=name, out=tmp_path / "models", max_batch=4)
    assert split.blocks == 10
    found = check_split(split, (3, 7))
    assert found.max_relative_error <= 1e-5
    assert found.input_dependence > 0.01


def test_an_output_that_cannot_be_served_is_refused(tmp_path: Path) -> None:
    path = tiny_models.save(
        tmp_path / "m.onnx",
        [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Cast", ["r"], ["y"], to=8)],
        inputs={"x": ["n", 2]},
        outputs=["y"],
    )
    model = onnx.load(path)
    served = model.graph.output[0]
    served.CopyFrom(helper.make_tensor_value_info("y", onnx.TensorProto.STRING, ["n", 2]))
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match=r"output 'y'"):
        split_model(path, name="m", out=tmp_path / "models")
