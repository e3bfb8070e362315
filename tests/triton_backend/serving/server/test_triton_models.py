"""Triton's models beside their services; the test plays Triton's own module."""

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.errors import InputError, PoolPipeError

NAME = "triton_backend.serving.server.triton_models"


class TritonError(NamedTuple):
    """An error of a response: its text and Triton's code."""

    text: str
    code: str


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    def response(_tensors: object, error: TritonError) -> TritonError:
        return error

    error = type("Error", (TritonError,), {"INVALID_ARG": "invalid", "UNAVAILABLE": "unavailable"})
    triton = SimpleNamespace(
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
        TritonError=error,
        InferenceResponse=response,
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", triton)
    sys.modules.pop(NAME, None)
    yield importlib.import_module(NAME)
    del sys.modules[NAME]


def made(base: Any, **fields: Any) -> Any:
    """A model of a class with fields and methods of the test's."""

    def nothing(_: object) -> dict[str, Any]:
        return {}

    methods = dict.fromkeys(base.__abstractmethods__, nothing)
    return type("Model", (base,), methods | fields)()


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (
            TimeoutError("the scheduler did not answer within 5 s"),
            ("the scheduler did not answer within 5 s", "unavailable"),
        ),
        (PoolPipeError("it is the standby"), ("it is the standby", "unavailable")),
        (InputError("plan_id", "is wrong"), ("plan_id: is wrong", "invalid")),
    ],
)
def test_a_control_request_that_fails_says_why_and_whose_fault_it_is(
    models: ModuleType, error: Exception, answer: tuple[str, str]
) -> None:
    def fail(_model: Any, _request: str) -> None:
        raise error

    def tensor(name: str, value: bytes) -> SimpleNamespace:
        array = np.array([[value]], dtype=np.object_)
        return SimpleNamespace(name=lambda: name, as_numpy=lambda: array)

    model = made(models._JsonModel, answer=fail, settings=SimpleNamespace(token="t"))
    request = SimpleNamespace(inputs=lambda: [tensor("token", b"t"), tensor("request", b"{}")])
    assert model.execute([request]) == [answer]


def test_a_look_that_fails_is_made_again_a_second_later(
    models: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "PUBLISH_SECONDS", 1e-3)
    looks: list[int] = []
    published: list[int] = []

    def look() -> None:
        looks.append(1)
        if len(looks) == 1:
            raise TypeError("an order of another kind")

    def values(_model: Any) -> dict[Any, float]:
        published.append(len(looks))
        return {}

    model = made(
        models._Model,
        values=values,
        each_second=(look,),
        name="m",
        settings=SimpleNamespace(place=tmp_path),
        _stopping=threading.Event(),
    )
    publishing = threading.Thread(target=model._publish, daemon=True)
    publishing.start()
    wait_for(lambda: bool(published))
    model._stopping.set()
    publishing.join()
    assert published[0] == 2


def test_a_node_is_as_alive_as_its_watch(models: ModuleType) -> None:
    model = made(models.NodeModel, _node=SimpleNamespace(alive_us=lambda: 7))
    assert model.alive_us() == 7
