"""One name with two variants on a real Triton: both ONNX models answer under overload."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from flows.release.rollout.change import change_plan
from flows.release.server.admin import start, stop
from flows.release.server.running import ServerState
from tests.ports import free_ports
from tests.triton_backend.serving.artifacts import write_stage
from tests.triton_backend.serving.one_name.variant_plans import CHEAP, NAME, VARIANTS, variant_plan
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.runtimes.stage_tensors import endpoints
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.names import PRIORITY_PARAMETER, VARIANT_OUTPUT
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions

FACTORS = {NAME: 3.0, CHEAP: 5.0}  # of each model: what it multiplies its input with


LOW = {PRIORITY_PARAMETER: "2"}


@cache
def artifacts(root: Path) -> dict[str, str]:
    return {
        name: write_stage(root, name, "Mul", factor, ("x", "y")) for name, factor in FACTORS.items()
    }


def onnx_plan(root: Path, names: tuple[str, ...] = VARIANTS) -> Plan:
    return variant_plan(names=names, artifacts=artifacts(root))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerState]:
    root = tmp_path_factory.mktemp("variants")
    http, grpc, metrics = free_ports(3)
    plan = onnx_plan(root / "artifacts")
    render_repository(root / "serve", plan, ServeOptions(artifacts=root / "artifacts"))
    try:
        yield start(root / "serve", Endpoints(http=http, grpc=grpc, metrics=metrics))
    finally:
        stop(root / "serve")


def ask(
    client: grpc_client.InferenceServerClient, number: int, parameters: dict[str, Any] | None = None
) -> str | None:
    """The variant that answered, whose own answer it was; None where it was refused."""
    given = grpc_client.InferInput("x", [1, 3], "FP32")
    sent = np.full((1, 3), number, np.float32)
    given.set_data_from_numpy(sent)
    try:
        found = client.infer(NAME, [given], parameters=parameters)
    except InferenceServerException:
        return None
    assert found is not None
    names, given_back = found.as_numpy(VARIANT_OUTPUT), found.as_numpy("y")
    assert names is not None
    assert given_back is not None
    name = str(names[0].decode())
    np.testing.assert_allclose(given_back, FACTORS[name] * sent)
    return name


@pytest.mark.slow
def test_both_variants_answer_under_overload_and_each_with_its_own_numbers(
    served: ServerState,
) -> None:
    with grpc_client.InferenceServerClient(served.grpc_url) as client:
        assert ask(client, 1) == NAME
        with ThreadPoolExecutor(16) as threads:
            answered = list(threads.map(partial(ask, client), range(1_500)))
        assert {*VARIANTS} <= {*answered}
        assert CHEAP in answered[-200:]


@pytest.mark.slow
def test_a_variant_goes_and_comes_under_load_without_a_lost_request(served: ServerState) -> None:
    root = served.folder.parent / "artifacts"
    stopping = threading.Event()
    answered: list[str | None] = []

    def load() -> None:
        with grpc_client.InferenceServerClient(served.grpc_url) as client:
            while not stopping.is_set():
                answered.append(ask(client, len(answered) % 7, LOW if len(answered) % 2 else {}))

    thread = threading.Thread(target=load)
    thread.start()
    try:
        wait_for(lambda: {*VARIANTS} <= {*answered})
        change_plan(served.folder, replace(onnx_plan(root, (NAME,)), plan_id="alone"))
        at = len(answered)
        wait_for(lambda: len(answered) > at + 20)
        assert {*answered[at + 1 :]} == {NAME}
        change_plan(served.folder, replace(onnx_plan(root), plan_id="both-again"))
        at = len(answered)
        wait_for(lambda: CHEAP in answered[at:])
    finally:
        stopping.set()
        thread.join()
    assert None not in answered


def test_variants_of_other_tensors_are_refused_by_the_difference() -> None:
    plan = variant_plan()
    data = json.loads(json.dumps(plan.to_dict()))
    data["models"][1]["outputs"][0]["shape"] = [-1, 9]
    said = r"'net-small', variant of 'net': shape of output 'y' is \[-1, 9\], not \[-1, 3\]"
    with pytest.raises(InputError, match=said):
        endpoints(Plan.from_dict(data))
