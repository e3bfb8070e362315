"""Stages composed are the model; the check that says so is able to fail."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Barrier

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from flows.preparation.splitting import (
    SplitModel,
    check_split,
    extract_stage,
    extracting,
    split_model,
)
from flows.preparation.splitting.loading import save_model
from flows.preparation.splitting.running import (
    Arrays,
    open_session,
    random_inputs,
    relative_error,
    run_session,
)
from tests.flows.preparation.splitting import tiny_models
from triton_backend.contract.errors import InputError


@pytest.fixture
def split(tmp_path: Path) -> SplitModel:
    path = tiny_models.residual_net(tmp_path / "m.onnx")
    return split_model(path, name="m", blocks=6, out=tmp_path / "models")


def compose(split: SplitModel, edges: tuple[int, ...], feed: Arrays) -> Arrays:
    known = dict(feed)
    for first, last in pairwise(edges):
        known |= run_session(open_session(extract_stage(split, first, last), "stage"), known)
    return known


@pytest.mark.parametrize("edges", [(0, 6), (0, 3, 6), (0, 1, 2, 3, 4, 5, 6), (0, 4, 5, 6)])
@pytest.mark.parametrize("batch", [1, 5])
def test_stages_composed_are_the_model(
    split: SplitModel, edges: tuple[int, ...], batch: int
) -> None:
    feed = random_inputs(split.inputs, batch, np.random.default_rng(5))
    expected = run_session(open_session(split.model_path, "whole"), feed)
    assert relative_error(compose(split, edges, feed)["y"], expected["y"]) <= 1e-5


def test_late_inputs_and_early_outputs_pass_through_stages(tmp_path: Path) -> None:
    path = tiny_models.two_ended(tmp_path / "m.onnx")
    two_ended = split_model(path, name="m", blocks=4, out=tmp_path / "models")
    stage = onnx.load(extract_stage(two_ended, 1, 2)).graph
    assert {"late", "early"} <= {i.name for i in stage.input} & {o.name for o in stage.output}
    feed = random_inputs(two_ended.inputs, 3, np.random.default_rng(5))
    expected = run_session(open_session(two_ended.model_path, "whole"), feed)
    got = compose(two_ended, (0, 1, 2, 3, 4), feed)
    assert relative_error(got["early"], expected["early"]) <= 1e-5
    assert relative_error(got["y"], expected["y"]) <= 1e-5


def test_shared_constants_are_in_every_stage_that_uses_them(split: SplitModel) -> None:
    graphs = [onnx.load(extract_stage(split, i, i + 1)).graph for i in range(split.blocks)]
    users = [g for g in graphs if any(n.op_type == "Mul" for n in g.node)]
    assert len(users) == 2
    assert all(any(t.name == "scale_squared" for t in g.initializer) for g in users)


def test_a_stage_carries_only_its_own_weights(split: SplitModel) -> None:
    weights = [
        {t.name for t in onnx.load(extract_stage(split, i, i + 1)).graph.initializer} & {"w0", "w2"}
        for i in range(split.blocks)
    ]
    assert sorted(name for names in weights for name in names) == ["w0", "w2"]


def test_a_stage_says_its_tensors_with_a_free_batch(split: SplitModel) -> None:
    stage = onnx.load(extract_stage(split, 2, 4)).graph
    for specs, values in (
        (split.stage_inputs(2), stage.input),
        (split.stage_outputs(4), stage.output),
    ):
        for spec, value in zip(specs, values, strict=True):
            dims = value.type.tensor_type.shape.dim
            assert value.name == spec.name
            assert dims[0].dim_param == "batch"
            assert tuple(d.dim_value for d in dims[1:]) == spec.shape[1:]


def test_extracting_again_gives_the_same_bytes(split: SplitModel) -> None:
    first = extract_stage(split, 1, 3)
    before = first.read_bytes()
    first.unlink()
    assert extract_stage(split, 1, 3).read_bytes() == before


def test_blocks_that_do_not_exist_are_refused(split: SplitModel) -> None:
    with pytest.raises(InputError, match=r"blocks \[3, 9\) of 6 blocks"):
        extract_stage(split, 3, 9)


def test_the_check_compares_every_boundary_and_before_the_softmax(split: SplitModel) -> None:
    found = check_split(split)
    assert found.compared == ("c", "e", "g", "i", "j", "y")
    assert found.batches == (1, split.max_batch)
    assert found.max_relative_error <= 1e-5 < found.input_dependence


def test_the_check_finds_a_wrong_stage(split: SplitModel) -> None:
    path = extract_stage(split, 2, 4)
    stage = onnx.load(path)
    for tensor in stage.graph.initializer:
        value = numpy_helper.to_array(tensor)
        if value.dtype == np.float32:
            tensor.CopyFrom(numpy_helper.from_array(value * np.float32(1.001), tensor.name))
    path.write_bytes(stage.SerializeToString())
    check_split(split, (3,))
    said = r"differs from the whole model by .* at 'i', .* first layer .* is 'node_of_g' \(Mul\)"
    with pytest.raises(InputError, match=said):
        check_split(split, (2, 4))


def test_a_model_whose_answer_ignores_its_input_fails_the_check(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "zero"], ["a"]),
        helper.make_node("Add", ["a", "one"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    constants = {"zero": np.zeros((1, 4), np.float32), "one": np.ones((1, 4), np.float32)}
    path = tiny_models.save(
        tmp_path / "m.onnx", nodes, inputs={"x": ["n", 4]}, outputs=["y"], constants=constants
    )
    with pytest.raises(InputError, match="answer does not depend on the input"):
        split_model(path, name="m", blocks=2, out=tmp_path / "models")
    assert not list((tmp_path / "models").rglob("*.json"))


def test_threads_that_want_the_same_stage_at_once_all_get_it(
    split: SplitModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when two classes are measured at once by threads of one process."""
    both = Barrier(2, timeout=30)

    def save_together(model: onnx.ModelProto, path: Path) -> None:
        both.wait()
        save_model(model, path)
        both.wait()

    monkeypatch.setattr(extracting, "save_model", save_together)
    with ThreadPoolExecutor(2) as pool:
        stages = [pool.submit(extract_stage, split, 1, 4) for _ in range(2)]
    paths = [stage.result() for stage in stages]
    assert paths[0] == paths[1]
    assert onnx.load(paths[0]).graph.node
    assert [path for path in paths[0].parent.iterdir() if path.name.startswith(".")] == []


def test_layers_in_half_precision_are_compared_with_its_tolerance(tmp_path: Path) -> None:
    """As converters leave a model: FP32 outside, FP16 inside."""
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.FLOAT16),
        tiny_models.conv(0, "a", "b"),
        tiny_models.conv(1, "b", "c"),
        helper.make_node("Cast", ["c"], ["y"], to=TensorProto.FLOAT),
    ]
    constants = {n: w.astype(np.float16) for n, w in tiny_models.conv_weights(2).items()}
    path = tiny_models.save(
        tmp_path / "m.onnx",
        nodes,
        inputs={"x": ["n", tiny_models.CHANNELS, tiny_models.SIZE, tiny_models.SIZE]},
        outputs=["y"],
        constants=constants,
    )
    half = split_model(path, name="m", blocks=4, out=tmp_path / "models")
    assert [spec.dtype for specs in half.boundaries for spec in specs] == ["FP16"] * 3
    assert half.check["max_relative_error"] <= 2e-3
    stage = extract_stage(half, 1, 2)
    model = onnx.load(stage)
    (weights,) = model.graph.initializer
    wrong = numpy_helper.to_array(weights) * np.float16(1.01)
    weights.CopyFrom(numpy_helper.from_array(wrong, weights.name))
    stage.write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match=r"more than 2e-03; .*'node_of_b' \(Conv\)"):
        check_split(half)


def test_int8_models_with_fixed_ranges_are_split_and_their_stages_are_the_model(
    tmp_path: Path,
) -> None:
    """As static quantisation leaves a model: a pair of nodes around each tensor and weight."""
    constants = {"s": np.array(0.05, np.float32), "z": np.array(0, np.int8)}
    nodes: list[onnx.NodeProto] = []
    last = "x"
    for number, weights in enumerate(tiny_models.conv_weights(3).values()):
        constants[f"q{number}"] = np.clip(np.round(weights / 0.01), -128, 127).astype(np.int8)
        constants[f"t{number}"] = np.array(0.01, np.float32)
        nodes += [
            helper.make_node("QuantizeLinear", [last, "s", "z"], [f"a{number}"]),
            helper.make_node("DequantizeLinear", [f"a{number}", "s", "z"], [f"b{number}"]),
            helper.make_node("DequantizeLinear", [f"q{number}", f"t{number}", "z"], [f"w{number}"]),
            tiny_models.conv(number, f"b{number}", f"c{number}"),
        ]
        last = f"c{number}"
    nodes.append(helper.make_node("Relu", [last], ["y"]))
    shape = ["n", tiny_models.CHANNELS, tiny_models.SIZE, tiny_models.SIZE]
    path = tiny_models.save(
        tmp_path / "m.onnx", nodes, inputs={"x": shape}, outputs=["y"], constants=constants
    )
    whole = split_model(path, name="m", blocks=6, out=tmp_path / "models")
    feed = random_inputs(whole.inputs, 5, np.random.default_rng(5))
    expected = run_session(open_session(whole.model_path, "whole"), feed)
    found = compose(whole, (0, 2, 4, len(whole.boundaries) + 1), feed)
    assert whole.check["max_relative_error"] == 0.0  # layers as they are written
    # Fused layers round at other places: by a step or two, of about 70 to the largest value.
    assert relative_error(found["y"], expected["y"]) <= 0.03


def test_models_of_old_opsets_are_split_as_they_are(tmp_path: Path) -> None:
    """Attributes that later opsets have as inputs: Clip's bounds, Upsample's scales."""
    nodes = [
        tiny_models.conv(0, "x", "a"),
        helper.make_node("Dropout", ["a"], ["b"], ratio=0.5),
        helper.make_node("Upsample", ["b"], ["c"], mode="nearest", scales=[1.0, 1.0, 2.0, 2.0]),
        tiny_models.conv(1, "c", "d"),
        helper.make_node("Clip", ["d"], ["y"], min=0.0, max=6.0),
    ]
    shape = ["n", tiny_models.CHANNELS, tiny_models.SIZE, tiny_models.SIZE]
    path = tiny_models.save(
        tmp_path / "m.onnx",
        nodes,
        inputs={"x": shape},
        outputs=["y"],
        constants=tiny_models.conv_weights(2),
        opset=8,
    )
    whole = split_model(path, name="m", blocks=4, out=tmp_path / "models")
    feed = random_inputs(whole.inputs, 3, np.random.default_rng(5))
    expected = run_session(open_session(whole.model_path, "whole"), feed)
    found = compose(whole, (0, 2, len(whole.boundaries) + 1), feed)
    assert relative_error(found["y"], expected["y"]) <= 1e-5
