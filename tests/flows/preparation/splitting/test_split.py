"""A split is found again by content, and the examples are what they say."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import numpy as np
import onnx
import pytest
from onnx import helper

from flows.preparation.graphs.examples import example_names, write_example
from flows.preparation.splitting import (
    SplitModel,
    check_split,
    observing,
    split_model,
)
from flows.preparation.splitting import split as split_module
from flows.preparation.splitting.graph import node_label, read_layers
from flows.preparation.splitting.symbolic import make_batch_symbolic
from tests.flows.preparation.splitting import tiny_models
from triton_backend.contract.errors import InputError


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


def test_a_model_that_is_to_stay_whole_is_not_run_for_its_inner_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept at two batches, they take more time and memory than all other steps together."""

    def never(*_: object) -> None:
        pytest.fail("inner tensors were asked for")

    monkeypatch.setattr(split_module, "boundary_specs", never)
    path = tiny_models.chain(tmp_path / "m.onnx")
    found = split_model(path, name="m", blocks=1, out=tmp_path / "models")
    assert (found.blocks, found.boundaries, found.legal_cuts) == (1, (), 0)
    assert found.in_words == "one block, the whole model"


def test_layer_times_of_a_file_decide_the_cuts(tmp_path: Path) -> None:
    path, out, file = tiny_models.chain(tmp_path / "m.onnx"), tmp_path / "models", tmp_path / "t"
    own = split_model(path, name="m", blocks=2, out=out)
    assert own.in_words == f"2 blocks from {own.legal_cuts} legal cuts"
    assert replace(own, legal_cuts=1).in_words == "2 blocks from 1 legal cut"
    labels = [node_label(node) for node in read_layers(onnx.load(own.model_path).graph).nodes]
    cuts = set[tuple[int, ...]]()
    for heavy in (0, len(labels) - 1):
        file.write_text(json.dumps(dict.fromkeys(labels, 1.0) | {labels[heavy]: 100.0}))
        split = split_model(path, name="m", blocks=2, out=out, layer_times=file)
        assert split.key != own.key
        assert max(split.block_times_us) >= 100
        cuts.add(split.cuts)
    assert len(cuts) == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", "not a file of layer times"),
        ('{"nobody": 1}', "'nobody' is no layer of the model"),
        ('{"nobody": -1}', "-1.0 is no time"),
        ("{}", "no layer takes any time"),
    ],
)
def test_layer_times_that_do_not_fit_are_told(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "times.json"
    file.write_text(text)
    with pytest.raises(InputError, match=told):
        split_model(
            tiny_models.chain(tmp_path / "m.onnx"), name="m", out=tmp_path / "o", layer_times=file
        )


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


def test_a_record_whose_folder_was_deleted_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        SplitModel.read(tmp_path / "m" / "0f")
    assert str(caught.value) == f"{tmp_path}/m/0f/split.json: no such file; split the model again"


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


@pytest.mark.parametrize("name", ["", "-net", "poolpipe_net", "a/b", ".."])
def test_a_name_that_could_not_be_served_is_refused_at_once(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"model name.*(cannot be served|is no name|is empty)"):
        split_model(tmp_path / "net.onnx", name=name, out=tmp_path)


@pytest.mark.parametrize("seed", range(6))
def test_a_choice_by_the_sum_of_a_batch_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The sums of the first one, the first two and all samples often have the same sign."""
    monkeypatch.setattr(observing, "SEED", seed)
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["more"]),
        helper.make_node("Neg", ["x"], ["m"]),
        helper.make_node("Where", ["more", "x", "m"], ["y"]),
    ]
    path = tiny_models.save(
        tmp_path / "m.onnx",
        nodes,
        inputs={"x": ["n", 16]},
        outputs=["y"],
        constants={"zero": np.array(0, np.float32)},
    )
    with pytest.raises(InputError, match=r"output 'y': a sample's result.*each sample alone"):
        split_model(path, name="m", out=tmp_path / "models")


def test_threads_that_split_the_same_model_at_once_share_one_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, both = tiny_models.chain(tmp_path / "m.onnx"), Barrier(2, timeout=60)

    def together(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
        both.wait()
        return make_batch_symbolic(model, where)

    monkeypatch.setattr(split_module, "make_batch_symbolic", together)
    with ThreadPoolExecutor(2) as pool:
        asked = [
            pool.submit(split_model, path, name="m", out=tmp_path / "models") for _ in range(2)
        ]
    splits = [each.result() for each in asked]
    assert splits[0].folder == splits[1].folder
    assert [folder.name for folder in (tmp_path / "models" / "m").iterdir()] == [splits[0].key]
