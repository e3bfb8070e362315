"""The example detector finds 0 to `most` boxes in pictures, of both classes."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from flows.preparation.graphs.detector import MOST_BOXES, add_heads, write_detector
from flows.preparation.graphs.examples import write_example
from flows.preparation.splitting.running import random_inputs
from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec


@pytest.mark.slow
def test_boxes_lie_in_the_picture_and_their_number_varies(tmp_path: Path) -> None:
    path = write_detector(tmp_path / "detector.onnx")
    assert "If" in {node.op_type for node in onnx.load(path).graph.node}
    session = onnxruntime.InferenceSession(str(path))
    spec = TensorSpec(name=session.get_inputs()[0].name, dtype="FP32", shape=(-1, 3, 224, 224))
    images = random_inputs([spec], 30, np.random.default_rng(1))[spec.name]
    numbers: set[int] = set()
    seen: set[int] = set()
    for i in range(30):
        boxes, scores, labels = map(np.asarray, session.run(None, {spec.name: images[i : i + 1]}))
        assert boxes.shape == (len(scores), 4)
        assert ((boxes >= 0) & (boxes <= 224)).all()
        assert (boxes[:, :2] < boxes[:, 2:]).all()
        assert (np.diff(scores) <= 0).all()
        numbers.add(len(boxes))
        seen |= {*labels.tolist()}
    assert {0, 1} < numbers <= {*range(MOST_BOXES + 1)}
    assert seen == {1, 2}


def test_heads_read_a_feature_map(tmp_path: Path) -> None:
    model = onnx.load(write_example("shufflenet", tmp_path / "m.onnx"))
    with pytest.raises(InputError, match="tensor 'nothing': is"):
        add_heads(model, "nothing", threshold=0.9, seed=1)
