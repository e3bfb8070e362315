"""Answers of an application are those of its models, each run on one row after the other."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from flows.preparation.graphs.glue import Crop, write_crop
from flows.preparation.splitting import split_model
from flows.quickstart.reference_outputs import mean_rows, write_answers, write_application_answers
from tests.flows.preparation.splitting import tiny_models
from tests.flows.preparation.splitting.exported_models import SIZE, write_exported
from triton_backend.contract.applications import Application, Module
from triton_backend.serving.loadgen.payload import relative_error, requests_from_file, tolerance_of

CROPPED = 8


@pytest.mark.parametrize(("kind", "most"), [(np.float32, 1e-4), (np.float16, 5e-3)])
def test_answers_state_how_near_the_served_ones_must_be(
    tmp_path: Path, kind: type[np.floating], most: float
) -> None:
    """Layers in FP16 between inputs and outputs in FP32 round as FP16 does."""
    code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    path = tiny_models.save(
        tmp_path / "m.onnx",
        [
            helper.make_node("Cast", ["x"], ["a"], to=code),
            helper.make_node("MatMul", ["a", "w"], ["b"]),
            helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
        ],
        inputs={"x": ["n", 4]},
        outputs=["y"],
        constants={"w": np.eye(4, dtype=kind)},
    )
    split = split_model(path, name="m", out=tmp_path / "models")
    assert tolerance_of(write_answers(split, tmp_path / "answers.npz")) == most


@pytest.mark.slow
def test_every_box_of_a_picture_has_its_crop(tmp_path: Path) -> None:
    crop = Crop(image=(3, SIZE, SIZE), size=(CROPPED, CROPPED))
    files = {
        "finder": write_exported(tmp_path / "finder.onnx"),
        "crop": write_crop(tmp_path / "crop.onnx", crop),
    }
    splits = {
        name: split_model(file, name=name, out=tmp_path / "models", blocks=1)
        for name, file in files.items()
    }
    reads = {"image": "request.picture", "box": "find.boxes"}
    graph = Application(
        name="crops",
        slo_us=1,
        modules=(
            Module(name="find", model="finder", inputs={"image": "request.picture"}),
            Module(name="cut", model="crop", inputs=reads, rows_per_request=2, max_rows=6),
        ),
        outputs={"boxes": "find.boxes", "crops": "cut.crops"},
    )
    path = write_application_answers(graph, files, splits, tmp_path / "answers.npz")
    finder, cut = (onnxruntime.InferenceSession(str(files[name])) for name in ("finder", "crop"))
    asked = splits["finder"].inputs
    picture = tuple(type(spec)(name="picture", dtype="FP32", shape=spec.shape) for spec in asked)
    seen: list[int] = []
    for request in requests_from_file(path, picture, samples=1):
        image = request.inputs["picture"]
        boxes = np.asarray(finder.run(["boxes"], {"image": image})[0])
        images = np.repeat(image, len(boxes), axis=0)
        crops = np.asarray(cut.run(None, {"image": images, "box": boxes})[0])
        assert request.expected is not None
        assert relative_error({"boxes": boxes, "crops": crops}, request.expected) < 1e-5
        seen.append(len(boxes))
    assert len({*seen}) > 1
    assert mean_rows(path, "crops") == np.mean(seen)
    assert tolerance_of(path) == 1e-4
