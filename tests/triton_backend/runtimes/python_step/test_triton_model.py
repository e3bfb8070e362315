"""Triton Python models run as the functions of steps."""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from triton_backend.runtimes.python_step.triton_model import UTILITIES, TritonModel

CONFIG = {
    "name": "m",
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [2]}],
}
HEAD = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
"""
DOUBLES = """
    def initialize(self, args):
        config = json.loads(args["model_config"])
        assert pb_utils.get_input_config_by_name(config, "x")["dims"] == [2]
        assert args["model_instance_kind"] == "CPU"
        pb_utils.Logger.log_info("ready")

    def execute(self, requests):
        assert {r.inputs()[0].shape() for r in requests} == {(1, 2)}
        return [
            pb_utils.InferenceResponse(
                output_tensors=[pb_utils.Tensor("y", 2 * r.inputs()[0].as_numpy())]
            )
            for r in requests
        ]
"""
REFUSES = """
    def execute(self, requests):
        code = pb_utils.TritonError.{}
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("too dark", code))
                for _ in requests]
"""
UNEVEN = """
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", np.zeros(shape, np.float32))])
            for shape in {}
        ]
"""
_NUMBERS = itertools.count()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], TritonModel]:
    """The function of a model of this code."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def made(body: str) -> TritonModel:
        package = tmp_path / f"step_of_a_test_{next(_NUMBERS)}"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "model.py").write_text(HEAD + body)
        return TritonModel(package.name, CONFIG)

    return made


def test_every_sample_is_a_request_of_its_own(model: Callable[[str], TritonModel]) -> None:
    run = model(DOUBLES)
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    (found,) = run(x=x).items()
    assert found[0] == "y"
    np.testing.assert_array_equal(found[1], 2 * x)
    assert UTILITIES not in sys.modules


@pytest.mark.parametrize(
    ("code", "kind"), [("INVALID_ARG", ValueError), ("INTERNAL", RuntimeError)]
)
def test_an_answer_that_is_an_error_refuses_the_sample(
    model: Callable[[str], TritonModel], code: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match="too dark"):
        model(REFUSES.format(code))(x=np.zeros((1, 2), np.float32))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("    def execute(self, requests): return None", "answered 0 of 2"),
        ("    def execute(self, requests): return []", "answered 0 of 2"),
        ("    def execute(self, requests): raise ValueError('odd')", "ValueError: odd"),
        (
            "    def execute(self, requests): return [pb_utils.InferenceResponse([])] * 2",
            "has no 'y'",
        ),
        (
            UNEVEN.format([(2, 2), (0, 2)]),
            r"an answer has 'y' of shape \[2, 2\], \[1, 2\] is stated",
        ),
        (
            UNEVEN.format([(1, 2), (1, 3)]),
            r"an answer has 'y' of shape \[1, 3\], \[1, 2\] is stated",
        ),
        (
            "    def execute(self, requests): raise pb_utils.TritonModelException('lost')",
            "lost",
        ),
    ],
)
def test_what_a_model_does_wrong_fails_and_is_not_its_clients_fault(
    model: Callable[[str], TritonModel], body: str, reason: str
) -> None:
    with pytest.raises(Exception, match=reason) as found:
        model(body)(x=np.zeros((2, 2), np.float32))
    assert not isinstance(found.value, ValueError)


def test_a_file_without_a_model_is_named(model: Callable[[str], TritonModel]) -> None:
    with pytest.raises(AttributeError, match="no attribute 'InferenceRequest'"):
        model("    asks = pb_utils.InferenceRequest")
    assert UTILITIES not in sys.modules
