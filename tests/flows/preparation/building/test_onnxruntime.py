"""Artifacts are named by content, appear whole or not at all, and run."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, get_ident

import numpy as np
import pytest

from flows.device_class import DeviceClass
from flows.preparation.building.keys import BuiltArtifact, artifact_key, publish
from flows.preparation.building.onnxruntime import build_stage
from tests.triton_backend.runtimes.stages import spec, write_doubling
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.base import MANIFEST_NAME
from triton_backend.runtimes.registry import load_runtime

CORE = min(os.sched_getaffinity(0))
FAST = DeviceClass(name="fast", cores=(CORE,))


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    write_doubling(tmp_path / "source")
    return tmp_path / "source" / "m.onnx"


def build(
    stage: Path, root: Path, device_class: DeviceClass = FAST, batch: int = 4
) -> BuiltArtifact:
    return build_stage(
        stage,
        (spec("x"),),
        (spec("y"),),
        device_class=device_class,
        max_batch=batch,
        root=root,
    )


def test_what_is_built_runs_for_its_class(stage: Path, tmp_path: Path) -> None:
    built = build(stage, tmp_path / "artifacts")
    assert built.folder == tmp_path / "artifacts" / built.key
    runtime = load_runtime(built.folder)
    out = np.zeros((2, 3), np.float32)
    runtime.run({"x": np.ones((2, 3), np.float32)}, {"y": out})
    runtime.close()
    assert (out == 2).all()


def test_the_same_stage_is_built_once(stage: Path, tmp_path: Path) -> None:
    first, again = (build(stage, tmp_path / "artifacts") for _ in range(2))
    assert (first.reused, again.reused) == (False, True)
    assert first.key == again.key


def test_content_class_and_batch_are_in_the_key(stage: Path, tmp_path: Path) -> None:
    root = tmp_path / "artifacts"
    write_doubling(tmp_path / "other", forwards="skip")
    slow = DeviceClass(name="slow", cores=(CORE,))
    stretched = DeviceClass(name="fast", cores=(CORE,), stretch=2.0)
    built = [
        build(stage, root),
        build(tmp_path / "other" / "m.onnx", root),
        build(stage, root, slow),
        build(stage, root, stretched),
        build(stage, root, batch=8),
    ]
    assert len({artifact.key for artifact in built}) == len(built)


def test_weights_beside_the_stage_are_part_of_it(stage: Path, tmp_path: Path) -> None:
    before = build(stage, tmp_path / "artifacts")
    stage.with_name("m.onnx.data").write_bytes(b"weights")
    after = build(stage, tmp_path / "artifacts")
    assert before.key != after.key
    assert (after.folder / "m.onnx.data").read_bytes() == b"weights"


def test_a_missing_stage_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such stage file"):
        build(tmp_path / "none.onnx", tmp_path)


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "half").write_text("written")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        publish(tmp_path, "key", fill)
    assert list(tmp_path.iterdir()) == []


def test_of_threads_that_build_the_same_at_once_one_is_first(tmp_path: Path) -> None:
    both = Barrier(2, timeout=30)

    def fill(folder: Path) -> None:
        mine = folder / f"model-{get_ident()}"
        mine.write_text("weights")
        both.wait()
        assert mine.is_file()
        (folder / MANIFEST_NAME).write_text("{}")

    with ThreadPoolExecutor(2) as pool:
        built = [pool.submit(publish, tmp_path, "key", fill) for _ in range(2)]
    assert sorted(artifact.result().reused for artifact in built) == [False, True]
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
    assert len(list((tmp_path / "key").glob("model-*"))) == 1


def test_the_key_does_not_depend_on_the_order_of_ingredients() -> None:
    assert artifact_key({"a": 1, "b": [2]}) == artifact_key({"b": [2], "a": 1})
    assert artifact_key({"a": 1}) != artifact_key({"a": 2})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"cores": ()}, "cores"),
        ({"cores": (4000,)}, r"\[4000\] are not all among the cores here"),
        ({"threads": 0}, "threads: 0 is below 1"),
        ({"stretch": 0.5}, r"stretch: 0\.5 is below 1"),
        ({"stretch": float("nan")}, "stretch: nan"),
    ],
)
def test_a_class_that_cannot_be_is_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        DeviceClass(**{"name": "odd", "cores": (CORE,), **fields})  # type: ignore[arg-type] - wrong on purpose
