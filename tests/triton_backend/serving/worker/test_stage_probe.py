"""A stage run by itself, through its node and its worker's socket."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.triton_backend.serving.artifacts import FACTOR, affine
from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import LocalSystem
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.registry import load_runtime
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.node.node import Node
from triton_backend.serving.transport.shared_memory import SHARED_FOLDER

X = [[0.5, -1.0, 2.0], [1.0, 2.0, 3.0]]
GOOD: dict[str, Any] = {
    "command": "infer",
    "model": "halves",
    "stage": 0,
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "data": X}],
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[LocalSystem]:
    served = plan(two_stage(), affine(root, "halves", "FP16"))
    folder = tmp_path_factory.mktemp("direct")
    made = LocalSystem(folder / "serve", served, ServeOptions(artifacts=root))
    yield made
    made.stop()


@pytest.fixture
def node(system: LocalSystem) -> Node:
    """Not started: the workers run already, as threads of this process."""
    made = Node(system.settings, "FAST", system.clock)
    made.look()
    return made


def test_result_is_that_of_the_stages_own_runtime(node: Node, root: Path) -> None:
    (output,) = node.infer(GOOD)["outputs"]
    x = np.array(X, np.float32)
    own = {"middle": np.empty((2, 3), np.float32)}
    runtime = load_runtime(root / "halves-0")
    runtime.run({"x": x}, own)
    runtime.close()
    np.testing.assert_array_equal(own["middle"], x * np.float32(FACTOR))
    # As it crosses the boundary: in the plan's type.
    assert (output["datatype"], output["shape"]) == ("FP16", [2, 3])
    expected = own["middle"].astype(np.float16).astype(float).reshape(-1).tolist()
    assert output["data"] == expected


def test_nothing_is_left_in_shared_memory(system: LocalSystem, node: Node) -> None:
    node.infer(GOOD)
    prefix = system.settings.segment_prefix
    assert not [path for path in SHARED_FOLDER.glob(f"{prefix}*") if "-probe-" in path.name]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": "nobody"}, "runs no stage 0 of pipeline 0 of model 'nobody'"),
        ({"stage": 1}, "runs no stage 1"),
        ({"inputs": None}, "is not a list of tensors"),
        ({"inputs": []}, r"has \[\], not \['x'\]"),
        ({"inputs": [{"name": "x", "shape": [1, 4], "data": [0] * 4}]}, r"shape \[1, 4\], not"),
        ({"inputs": [{"name": "x", "shape": [1, 3], "data": [0, 1]}]}, "data is not FP32"),
        ({"inputs": [{"name": "x", "shape": [5, 3], "data": [0] * 15}]}, "1 to 4 fits"),
        (
            {"inputs": [{"name": "x", "datatype": "INT8", "shape": [1, 3], "data": [0] * 3}]},
            "datatype 'INT8', not FP32",
        ),
    ],
)
def test_what_does_not_fit_is_told(node: Node, change: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        node.infer({**GOOD, **change})


def test_a_worker_that_is_gone_is_told(system: LocalSystem, node: Node) -> None:
    vgpu = node.infer(GOOD)["vgpu"]
    system.stop_worker(1, vgpu)
    with pytest.raises(InputError, match="its worker does not answer"):
        node.infer(GOOD)
