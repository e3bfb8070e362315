"""A bundle started by its own script on a server laid out as in a stock container."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from flows.release.container.bundle import ContainerOptions, render_container
from flows.release.server.running import ServerError, ServerState
from tests.fakes.plans import hand_plan
from tests.flows.preparation.triton_repository.repositories import RUNNING_TOKENS, TOKENS
from tests.ports import free_ports
from tests.triton_backend.serving.artifacts import FACTOR, OFFSET, affine
from tests.triton_backend.serving.small_plans import plan
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.cluster import NodeGroup
from triton_backend.serve_folder.beside import Beside
from triton_backend.serve_folder.endpoints import TOKEN_HEADER
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.gateway.warm_up import warm_up
from triton_backend.serving.server.command import lay_out_backends, wheel_folder

pytestmark = pytest.mark.slow
TOKEN = "the token of this test"
PATIENT_US = 2_000_000
STOP_SECONDS = 20


@dataclass(frozen=True)
class Started:
    """A container's process, what it logs, and where its Triton listens on 127.0.0.1."""

    process: subprocess.Popen[bytes]
    log: Path
    http: int
    grpc: int


@pytest.fixture(scope="module")
def server_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's server where a container has its own: `bin/tritonserver` and `backends`."""
    root = tmp_path_factory.mktemp("opt") / "tritonserver"
    root.mkdir()
    (root / "bin").symlink_to(wheel_folder() / "tritonserver" / "bin")
    lay_out_backends(root)
    return root


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, server_root: Path) -> Iterator[Started]:
    """Three containers as three processes, each at a loopback address of its own."""
    root = tmp_path_factory.mktemp("bundles")
    served = plan(affine(root / "artifacts"))
    warm_up(served, policy="reservation", nic="shared")  # or the gateway compiles for a minute
    tokens = root / "models" / "tokens"
    (tokens / "1").mkdir(parents=True)
    (tokens / "config.pbtxt").write_text(TOKENS)
    (tokens / "1" / "model.py").write_text(RUNNING_TOKENS)
    subnet = f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 200}"
    hosts = {"FAST": f"{subnet}.2", "SLOW": f"{subnet}.3"}
    started: list[Started] = []
    sockets: list[Path] = []
    for number, name in enumerate(("gateway", "poolpipe-fast-0", "poolpipe-slow-0")):
        short = Path("/tmp") / f"poolpipe-test-{os.getpid()}-{number}"
        sockets.append(short)
        # In containers the paths are the same everywhere; on one machine they must differ.
        options = ContainerOptions(
            serve=ServeOptions(
                artifacts=root / "artifacts",
                hosts=hosts,
                gateway_host=f"{subnet}.1",
                beside=Beside(folders={"tokens": tokens}),
            ),
            beside_folder=tokens.parent,
            bundle_folder=root / name,
            serve_folder=root / f"{name}-serve",
            socket_folder=short,
        )
        bundle = render_container(served, root / name, options)
        assert bundle.containers[number] == name
        started.append(start(bundle.folder, name, server_root, root / f"{name}.log"))
    yield started[0]
    for one in started:
        one.process.send_signal(signal.SIGTERM)
    for one in started:
        assert one.process.wait(STOP_SECONDS) == 0, one.log.read_text()
    for path in sockets:
        assert not path.exists()


@pytest.fixture
def two_gateways(tmp_path: Path, server_root: Path) -> Iterator[Started]:
    """One container with two servers and the node of their plan."""
    sockets = Path("/tmp") / f"poolpipe-test-{os.getpid()}-two"
    options = ContainerOptions(
        serve=ServeOptions(artifacts=tmp_path / "artifacts", gateways=2),
        bundle_folder=tmp_path / "bundle",
        serve_folder=tmp_path / "serve",
        socket_folder=sockets,
    )
    nodes = [NodeGroup(count=1, gpu_class="FAST", gpus=2, nic_gbps=10.0)]
    one_node = hand_plan(affine(tmp_path / "artifacts", second_on=("FAST", 0, 1)), nodes=nodes)
    bundle = render_container(one_node, tmp_path / "bundle", options)
    started = start(bundle.folder, "gateway", server_root, tmp_path / "gateway.log")
    yield started
    started.process.send_signal(signal.SIGTERM)
    assert started.process.wait(STOP_SECONDS) == 0, started.log.read_text()
    assert not sockets.exists()


def test_of_two_servers_in_a_container_either_answers(two_gateways: Started) -> None:
    answered: set[str] = set()

    def ask() -> None:
        """A connection of its own, which the kernel gives to one of the two."""
        assert two_gateways.process.poll() is None, two_gateways.log.read_text()
        given = http_client.InferInput("x", [1, 3], "FP32")
        given.set_data_from_numpy(np.ones((1, 3), np.float32))
        with (
            suppress(OSError, InferenceServerException),
            http_client.InferenceServerClient(f"127.0.0.1:{two_gateways.http}") as client,
        ):
            name = client.get_server_metadata()["name"]
            answer: Any = client.infer("affine", [given], timeout=PATIENT_US)
            np.testing.assert_array_equal(answer.as_numpy("y"), np.full((1, 3), FACTOR + OFFSET))
            answered.add(name)

    def both_have() -> bool:
        ask()
        return answered == {"gateway-1", "gateway-2"}

    wait_for(both_have)


def start(bundle: Path, name: str, server_root: Path, log: Path) -> Started:
    http, grpc, metrics, _ = free_ports(4)  # of two gateways the second's metrics are on the last
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path.cwd()),
        "HOME": os.environ["HOME"],
        "POOLPIPE_SERVER_ROOT": str(server_root),
        "POOLPIPE_TOKEN": TOKEN,
        "POOLPIPE_INFERENCE_ADDRESS": "127.0.0.1",
        "POOLPIPE_HTTP_PORT": str(http),
        "POOLPIPE_GRPC_PORT": str(grpc),
        "POOLPIPE_METRICS_PORT": str(metrics),
    }
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [bundle / "start-node.sh", name],
            env=environment,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    return Started(process, log, http, grpc)


def state_of(started: Started) -> ServerState:
    return ServerState(
        {
            "http_address": "127.0.0.1",
            "ports": {"http": started.http},
            "token": TOKEN,
            "token_header": TOKEN_HEADER,
        }
    )


def test_a_request_crosses_three_containers_and_is_right(gateway: Started) -> None:
    def workers() -> dict[str, Any]:
        assert gateway.process.poll() is None
        with suppress(ServerError):
            return state_of(gateway).control("status")["workers"]
        return {}

    wait_for(lambda: bool(workers()))
    wait_for(lambda: workers().get("up") == 2)
    samples = np.arange(6, dtype=np.float32).reshape(2, 3)
    with grpc_client.InferenceServerClient(f"127.0.0.1:{gateway.grpc}") as client:
        given = grpc_client.InferInput("x", [2, 3], "FP32")
        given.set_data_from_numpy(samples)
        answer: Any = client.infer("affine", [given], timeout=PATIENT_US)
    np.testing.assert_array_equal(answer.as_numpy("y"), samples * FACTOR + OFFSET)


def test_a_model_beside_the_plan_answers_at_the_gateway(gateway: Started) -> None:
    made: Any = http_client.InferenceServerClient(f"127.0.0.1:{gateway.http}")
    with made as client:
        wait_for(lambda: client.is_model_ready("tokens"))
        given = http_client.InferInput("TEXT", [1], "BYTES")
        given.set_data_from_numpy(np.array([b"ab"], dtype=object))
        assert client.infer("tokens", [given]).as_numpy("IDS").tolist() == [97, 98]


def test_the_token_of_the_secret_opens_what_is_closed(gateway: Started) -> None:
    made: Any = http_client.InferenceServerClient(f"127.0.0.1:{gateway.http}")
    with made as client:
        wait_for(client.is_server_ready)
        with pytest.raises(InferenceServerException, match="restricted"):
            client.get_model_repository_index()
        index = client.get_model_repository_index(headers={TOKEN_HEADER: TOKEN})
    assert {entry["name"] for entry in index} >= {"affine", "poolpipe_control"}
    command = " ".join(psutil.Process(gateway.process.pid).cmdline())
    assert TOKEN not in command
