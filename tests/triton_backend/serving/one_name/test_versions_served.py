"""Versions of one name on a real Triton, chosen by the version field of KServe."""

import json
import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from flows.release.rollout.change import change_plan, finish_or_undo_change
from flows.release.server.admin import start, stop
from flows.release.server.running import ServerState
from tests.ports import free_ports
from tests.triton_backend.serving.artifacts import write_stage
from tests.triton_backend.serving.one_name.versioned_plans import NAME, version_name, versioned_plan
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.runtimes.stage_tensors import endpoints
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serve_folder.versions import process_file
from triton_backend.serving.loadgen import __main__ as loadgen

FACTORS = {1: 3.0, 2: 5.0, 3: 7.0}  # of each version: what it multiplies its input with
# Triton's words of a version that it had before; 404 is of one that it never had.
GONE = "503 Request for unknown model: 'net' version {} is not at ready state"
TIMEOUT_US = 10_000_000  # far beyond the SLO: none is late on a busy machine
pytestmark = pytest.mark.slow


@cache
def artifacts(root: Path) -> dict[int, str]:
    return {
        version: write_stage(root, version_name(version), "Mul", factor, ("x", "y"))
        for version, factor in FACTORS.items()
    }


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("versions")


def onnx_plan(root: Path, versions: tuple[int, ...], plan_id: str = "versions") -> Plan:
    return versioned_plan(versions, plan_id, artifacts(root / "artifacts"))


@pytest.fixture(scope="module")
def served(root: Path) -> Iterator[ServerState]:
    http, grpc, metrics = free_ports(3)
    plan = onnx_plan(root, (1, 2))
    render_repository(root / "serve", plan, ServeOptions(artifacts=root / "artifacts"))
    try:
        yield start(root / "serve", Endpoints(http=http, grpc=grpc, metrics=metrics))
    finally:
        stop(root / "serve")


def http(served: ServerState, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{served.http_url}/v2/{path}", data)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"{}")


def over_http(served: ServerState, version: str) -> float | str:
    """The factor of the version that answered; else the server's words."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 2.0, 3.0]}
    chosen = f"/versions/{version}" if version else ""
    body = {"inputs": [tensor], "parameters": {"timeout": TIMEOUT_US}}
    code, answer = http(served, f"models/{NAME}{chosen}/infer", body)
    if code != 200:
        return f"{code} {answer['error']}"
    y = answer["outputs"][0]["data"]
    assert np.allclose(np.asarray(y) / y[0], [1, 2, 3])
    assert answer["model_version"] == version or not version
    return float(y[0])


def over_grpc(client: grpc_client.InferenceServerClient, version: str) -> float | str:
    """The same over gRPC."""
    given = grpc_client.InferInput("x", [1, 3], "FP32")
    given.set_data_from_numpy(np.array([[1, 2, 3]], np.float32))
    try:
        found = client.infer(NAME, [given], model_version=version, timeout=TIMEOUT_US)
    except InferenceServerException as error:
        return f"{error.status()} {error.message()}"
    assert found is not None
    y = found.as_numpy("y")
    assert y is not None
    return float(y[0, 0])


def test_the_version_of_a_request_chooses_the_model(served: ServerState) -> None:
    """Over HTTP and gRPC; without one the highest answers, and one that is not there is 404."""
    with grpc_client.InferenceServerClient(served.grpc_url) as client:
        ways: tuple[Callable[[str], float | str], ...] = (
            lambda version: over_http(served, version),
            lambda version: over_grpc(client, version),
        )
        for ask in ways:
            assert [ask(version) for version in ("1", "2", "")] == [3, 5, 5]
        unknown = [ask("9") for ask in ways]
        metadata = client.get_model_metadata(NAME, as_json=True)
        assert isinstance(metadata, dict)
        assert metadata["versions"] == ["1", "2"]
    assert str(unknown[0]).startswith("404 ")
    assert str(unknown[1]).startswith("StatusCode.NOT_FOUND ")
    assert all("version 9" in str(said) for said in unknown)
    _, described = http(served, f"models/{NAME}")
    assert described["versions"] == ["1", "2"]
    assert [tensor["shape"] for tensor in described["inputs"]] == [[-1, 3]]
    ready = [http(served, f"models/{NAME}/versions/{v}/ready")[0] for v in (1, 2)]
    assert ready == [200, 200]
    index: Any = served.post("/v2/repository/index", {})
    assert [(one["version"], one["state"]) for one in index if one["name"] == NAME] == [
        ("1", "READY"),
        ("2", "READY"),
    ]


def test_the_load_generator_offers_each_version_its_own_requests(
    served: ServerState, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "plan.json").write_text(json.dumps(onnx_plan(root, (1, 2)).to_dict()))
    options = ["--plan", str(root / "plan.json"), "--duration", "1", "--load-factor", "0.2"]
    for url, protocol in ((served.grpc_url, "grpc"), (served.http_url, "http")):
        given = ["--url", url, "--protocol", protocol, "--json", *options]
        assert loadgen.main(given) == 0
        models = json.loads(capsys.readouterr().out)["models"]
        assert {*models} == {version_name(1), version_name(2)}
        for row in models.values():
            assert row["offered"] > 0
            assert row["failed"] == 0


class Load:
    """Requests for one version, one after the other, until the end of the block."""

    def __init__(self, served: ServerState, version: str) -> None:
        self.answers: list[float | str] = []
        self._served, self._version = served, version
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with grpc_client.InferenceServerClient(self._served.grpc_url) as client:
            while not self._stopping.is_set():
                self.answers.append(over_grpc(client, self._version))

    def begin(self) -> None:
        self._thread.start()
        wait_for(lambda: bool(self.answers))

    def end(self) -> None:
        self._stopping.set()
        self._thread.join()


@contextmanager
def loads(served: ServerState, *versions: str) -> Generator[list[Load]]:
    found = [Load(served, version) for version in versions]
    for one in found:
        one.begin()
    try:
        yield found
    finally:
        for one in found:
            one.end()


def pid_of(served: ServerState, version: int) -> int:
    return int((served.folder / "pids" / process_file(NAME, version)).read_text().split()[0])


def test_a_version_whose_process_dies_comes_back_and_the_others_serve_on(
    served: ServerState,
) -> None:
    kept, killed = pid_of(served, 1), pid_of(served, 2)
    with loads(served, "1") as (load,):
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: over_http(served, "2") == 5)
        at = len(load.answers)
        wait_for(lambda: len(load.answers) > at)
    assert {*load.answers} == {3}
    assert pid_of(served, 1) == kept
    assert pid_of(served, 2) != killed


def test_versions_come_and_go_in_rollouts_without_a_lost_request(
    served: ServerState, root: Path
) -> None:
    """Of those that stay, and of clients that name none; their processes are not started again."""
    first = pid_of(served, 1)
    with loads(served, "1", "") as (named, any_of):
        change_plan(served.folder, onnx_plan(root, (1, 2, 3), "three"))
        wait_for(lambda: any_of.answers[-1] == 7)
        assert over_http(served, "2") == 5
        change_plan(served.folder, onnx_plan(root, (1, 2), "without-3"))
        wait_for(lambda: any_of.answers[-1] == 5)
        assert over_http(served, "3") == GONE.format(3)
        change_plan(served.folder, onnx_plan(root, (1, 3), "without-2"))
        wait_for(lambda: any_of.answers[-1] == 7)
        assert over_http(served, "2") == GONE.format(2)
    assert {*named.answers} == {3}
    assert {*any_of.answers} <= {3, 5, 7}
    assert pid_of(served, 1) == first
    assert http(served, f"models/{NAME}")[1]["versions"] == ["1", "3"]
    finish_or_undo_change(served.folder)
    assert (over_http(served, "1"), over_http(served, "3")) == (3, 7)
    assert pid_of(served, 1) == first


def test_versions_of_other_tensors_are_refused_by_the_difference() -> None:
    data = json.loads(json.dumps(versioned_plan().to_dict()))
    data["models"][1]["outputs"][0]["shape"] = [-1, 9]
    said = r"'net-v2', version of 'net': shape of output 'y' is \[-1, 9\], not \[-1, 3\]"
    with pytest.raises(InputError, match=said):
        endpoints(Plan.from_dict(data))


def test_two_gateways_serve_versions_and_change_them(root: Path, tmp_path: Path) -> None:
    http, grpc, metrics, _ = free_ports(4)  # the second's metrics are on the last
    plan = onnx_plan(root, (1, 2))
    options = ServeOptions(artifacts=root / "artifacts", gateways=2)
    render_repository(tmp_path / "serve", plan, options)
    try:
        state = start(tmp_path / "serve", Endpoints(http=http, grpc=grpc, metrics=metrics))
        with loads(state, "1", "") as (named, any_of):
            change_plan(state.folder, onnx_plan(root, (1, 3), "without-2"))
            wait_for(lambda: any_of.answers[-1] == 7)
        assert [over_http(state, version) for version in ("1", "3", "")] == [3, 7, 7]
    finally:
        stop(tmp_path / "serve")
    assert {*named.answers} == {3}
    assert {*any_of.answers} <= {3, 5, 7}
