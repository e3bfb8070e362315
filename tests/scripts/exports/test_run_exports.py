"""Exports from the file to answers, on models that the test writes.

One is a transformer of BERT's kind.
"""

import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from flows.preparation.splitting import split_model
from scripts.exports.run_exports import MAX_ERROR, Row, files_of, main, run_file
from scripts.exports.weightless import KEPT, with_weights, without_weights
from tests.flows.preparation.splitting.tiny_models import residual_net
from triton_backend.contract.errors import InputError

pytestmark = pytest.mark.slow

WORDS, TOKENS, WIDTH, HEADS, LAYERS = 40, 12, 16, 2, 2


def layer_of(number: int, weights: dict[str, Any]) -> list[onnx.NodeProto]:
    """Masked attention and two dense layers, each added to what it read and normalized."""
    rng = np.random.default_rng(number)
    for name, shape in {
        **dict.fromkeys(("q", "k", "v", "o"), (WIDTH, WIDTH)),
        "up": (WIDTH, 4 * WIDTH),
        "down": (4 * WIDTH, WIDTH),
    }.items():
        drawn = rng.standard_normal(shape) / np.sqrt(shape[0])
        weights[f"{name}{number}"] = drawn.astype(np.float32)
    for name in ("scale1", "scale2"):
        weights[f"{name}_{number}"] = rng.uniform(0.5, 1.5, WIDTH).astype(np.float32)
    x, nodes = f"x{number}", list[onnx.NodeProto]()

    def node(kind: str, inputs: list[str], output: str, **how: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"{output}_{number}"], **how))
        return f"{output}_{number}"

    turned: dict[str, str] = {}
    for part, order in {"q": [0, 2, 1, 3], "k": [0, 2, 3, 1], "v": [0, 2, 1, 3]}.items():
        dense = node("MatMul", [x, f"{part}{number}"], f"{part}dense")
        apart = node("Reshape", [dense, "by_head"], f"{part}heads")
        turned[part] = node("Transpose", [apart], f"{part}turned", perm=order)
    scores = node("MatMul", [turned["q"], turned["k"]], "scores")
    scaled = node("Mul", [scores, "per_root"], "scaled")
    masked = node("Add", [scaled, "masked_by"], "masked")
    shares = node("Softmax", [masked], "shares", axis=-1)
    mixed = node("MatMul", [shares, turned["v"]], "mixed")
    back = node("Transpose", [mixed], "back", perm=[0, 2, 1, 3])
    joined = node("Reshape", [back, "together"], "joined")
    attended = node("Add", [x, node("MatMul", [joined, f"o{number}"], "out")], "attended")
    plain = node("LayerNormalization", [attended, f"scale1_{number}"], "plain")
    wide = node("Relu", [node("MatMul", [plain, f"up{number}"], "wide")], "bent")
    narrow = node("MatMul", [wide, f"down{number}"], "narrow")
    added = node("Add", [plain, narrow], "added")
    nodes.append(
        helper.make_node("LayerNormalization", [added, f"scale2_{number}"], [f"x{number + 1}"])
    )
    return nodes


def write_transformer(path: Path) -> Path:
    """Tokens of a fixed length and their mask; the first token's state as the answer."""
    rng = np.random.default_rng(7)
    weights: dict[str, Any] = {
        "words": rng.standard_normal((WORDS, WIDTH)).astype(np.float32),
        "places": rng.standard_normal((TOKENS, WIDTH)).astype(np.float32),
        "by_head": np.array([0, TOKENS, HEADS, WIDTH // HEADS]),
        "together": np.array([0, TOKENS, WIDTH]),
        "per_root": np.float32(1 / np.sqrt(WIDTH / HEADS)),
        "first": np.array(0),
        "heads_and_queries": np.array([1, 2]),
        "one": np.float32(1),
        "far": np.float32(-1e4),
    }
    nodes = [
        helper.make_node("Gather", ["words", "ids"], ["embedded"]),
        helper.make_node("Add", ["embedded", "places"], ["x0"]),
        helper.make_node("Unsqueeze", ["mask", "heads_and_queries"], ["mask4"]),
        helper.make_node("Cast", ["mask4"], ["seen"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["one", "seen"], ["unseen"]),
        helper.make_node("Mul", ["unseen", "far"], ["masked_by"]),
        *(node for number in range(LAYERS) for node in layer_of(number, weights)),
        helper.make_node("Gather", [f"x{LAYERS}", "first"], ["state"], axis=1),
    ]
    shape = ["batch", TOKENS]
    graph = helper.make_graph(
        nodes,
        "transformer",
        [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in ("ids", "mask")],
        [helper.make_tensor_value_info("state", TensorProto.FLOAT, ["batch", WIDTH])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    return path


def test_a_transformer_of_a_fixed_length_goes_from_its_file_to_answers(tmp_path: Path) -> None:
    path = write_transformer(tmp_path / "transformer.onnx")
    row = run_file(path, tmp_path / "models")
    assert row.refused == ""
    assert row.passed
    assert len(row.cuts) >= 4
    assert row.answers_vary
    assert row.error <= MAX_ERROR


def test_ids_of_a_transformer_are_drawn_within_its_vocabulary(tmp_path: Path) -> None:
    path = write_transformer(tmp_path / "transformer.onnx")
    split = split_model(path, name="m", out=tmp_path / "models", blocks=3, max_batch=2)
    ids = split.model_inputs().draw(64, np.random.default_rng(0))["ids"]
    assert ids.dtype == np.int64
    assert set(np.unique(ids)) <= set(range(-WORDS, WORDS))
    assert len(np.unique(ids)) > WORDS // 2


def test_models_without_weights_get_some_of_the_same_size() -> None:
    rng = np.random.default_rng(1)
    given = {
        "large": rng.normal(3, 2, (40, 50)).astype(np.float32),
        "variance": rng.uniform(0, 1, 1000).astype(np.float16),
        "small": np.arange(KEPT, dtype=np.float32),
        "places": np.arange(2 * KEPT),
    }
    tensors = [numpy_helper.from_array(value, name) for name, value in given.items()]
    model = helper.make_model(helper.make_graph([], "g", [], [], tensors))
    light = without_weights(model)
    assert light.ByteSize() < model.ByteSize() / 2
    again = {t.name: numpy_helper.to_array(t) for t in with_weights(light).graph.initializer}
    assert {name: (a.shape, a.dtype) for name, a in again.items()} == {
        name: (a.shape, a.dtype) for name, a in given.items()
    }
    np.testing.assert_array_equal(again["small"], given["small"])
    np.testing.assert_array_equal(again["places"], given["places"])
    assert again["variance"].min() >= 0
    assert abs(again["large"].mean() - 3) < 0.2
    assert abs(again["large"].std() - 2) < 0.2


def test_what_is_no_model_is_a_line_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    residual_net(tmp_path / "net.onnx")
    for least, code in ((1, 0), (2, 1)):
        monkeypatch.setattr(sys, "argv", ["run_exports", str(tmp_path), f"--least={least}"])
        assert main() == code
        shown = capsys.readouterr().out.splitlines()
        assert shown[0].startswith("broken.onnx: ")
        assert "broken.onnx" in shown[0].partition(": ")[2]
        assert shown[1].startswith("net.onnx: cuts 0 ")


def test_archives_are_unpacked_with_weights(tmp_path: Path) -> None:
    source = residual_net(tmp_path / "net.onnx")
    archive = tmp_path / "exports.zip"
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("net.onnx", without_weights(onnx.load(source)).SerializeToString())
    (tmp_path / "unpacked").mkdir()
    rows = [run_file(path, tmp_path / "m") for path in files_of(archive, tmp_path / "unpacked")]
    assert [row.passed for row in rows] == [True]


def test_nothing_to_run_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run_exports", str(tmp_path)])
    assert main() == 2
    assert capsys.readouterr().err == f"{tmp_path}: no .onnx file in this folder\n"
    with pytest.raises(InputError, match="neither a folder nor an archive"):
        list(files_of(tmp_path / "absent", tmp_path))


def test_a_row_passes_only_with_a_cut_and_equal_answers() -> None:
    cut = Row(file="f", cuts=(0, 3, 7), error=MAX_ERROR)
    assert cut.passed
    assert not Row(file="f", cuts=(0, 7), error=0.0).passed
    assert not Row(file="f", cuts=(0, 3, 7), error=2 * MAX_ERROR).passed
    assert not Row(file="f", refused="f: no", cuts=(0, 3, 7), error=0.0).passed
