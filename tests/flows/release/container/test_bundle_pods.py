"""A rendered bundle in real containers: an image, three pods, the death of each.

The base image is this machine's own in place of a stock Triton image, so the lines of the rendered
Dockerfile that install packages and compile kernels are left out. The rest is as rendered.
"""

import contextlib
import os
import shutil
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import yaml
from tritonclient.utils import InferenceServerException

from flows.release.container.bundle import ContainerOptions, render_container
from flows.release.server.running import ServerError, ServerState
from tests.fakes.plans import hand_plan, hand_stage
from tests.flows.release.container.machine_image import (
    image_environment,
    kernels_of_this_checkout,
    write_root,
)
from tests.flows.release.container.podman_pods import Pod, Podman, need_podman, pods_of
from tests.triton_backend.serving.artifacts import FACTOR, OFFSET, write_stage
from tests.triton_backend.serving.small_plans import BATCH, model, tensor
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.serve_folder.endpoints import TOKEN_HEADER
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.gateway.warm_up import warm_up

pytestmark = pytest.mark.slow
TOKEN = "the token of this test"
BASE, IMAGE = "localhost/machine:base", "localhost/pools:test"
NETWORK, SUBNET = f"pools-{os.getpid()}", f"10.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250}"
PATIENT_US = 3_000_000
CLIENTS = 3
WORKERS = 4
INSTALLS = ("python3 -m pip", "python3 -c", ".whl ")


def two_nodes_alike(root: Path) -> Plan:
    """y = x * FACTOR + OFFSET in two stages; each has a pool with a vGPU on either node."""
    latency_us = (2_000, 3_000, 4_000, 5_000)
    first = write_stage(root, "first", "Mul", FACTOR, ("x", "middle"))
    second = write_stage(root, "second", "Add", OFFSET, ("middle", "y"))
    fields: dict[str, Any] = {"boundary_bytes_per_sample": 4096}
    boundary = (tensor("middle", 3),)
    stages = (
        hand_stage(
            (0, 1),
            "FAST",
            PlacementRun(node=0, gpu=0, slot=0, nodes=2),
            latency_us,
            artifact=first,
            boundary=boundary,
            **fields,
        ),
        hand_stage(
            (1, 2),
            "FAST",
            PlacementRun(node=0, gpu=1, slot=0, nodes=2),
            latency_us,
            artifact=second,
            **fields,
        ),
    )
    nodes = [NodeGroup(count=2, gpu_class="FAST", gpus=2, nic_gbps=10.0)]
    affine = model("affine", stages, inputs=(tensor("x", 3),), outputs=(tensor("y", 3),))
    return hand_plan(affine, nodes=nodes, plan_id="test-plan")


def build_image(podman: Podman, bundle: Path, scratch: Path) -> None:
    """Build the image of the rendered Dockerfile, but for what it installs."""
    with podman.importing(BASE, image_environment()) as stream:
        write_root(stream, scratch)
    kernels_of_this_checkout(bundle / "numba")
    rendered = (bundle / "Dockerfile").read_text()
    lines = rendered.replace("\\\n", "").splitlines()
    kept = [line for line in lines if not any(word in line for word in INSTALLS)]
    assert len(lines) - len(kept) == len(INSTALLS)
    place = next(number for number, line in enumerate(kept) if line.startswith("COPY"))
    kept.insert(place, f"COPY numba {ContainerOptions().bundle_folder}/numba")
    (bundle / "Dockerfile").write_text("\n".join(kept) + "\n")
    podman.run(
        *("build", "--quiet", "--network", "host", "--build-arg", f"TRITON_IMAGE={BASE}"),
        *("--tag", IMAGE, bundle),
    )


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Pod]]:
    """A gateway and two nodes, by name."""
    need_podman()
    root = tmp_path_factory.mktemp("pods")
    plan = two_nodes_alike(root / "artifacts")
    warm_up(plan, policy="reservation", nic="shared")  # or the gateway compiles for a minute
    options = ContainerOptions(
        serve=ServeOptions(artifacts=root / "artifacts"), image=IMAGE, request_gpus=False
    )
    bundle = render_container(plan, root / "bundle", options).folder
    podman = Podman(Path(tempfile.mkdtemp(prefix="pods-")))  # its paths have to be short
    podman.set_up()
    try:
        build_image(podman, bundle, root / "scratch")
        texts = [path.read_text() for path in sorted((bundle / "kubernetes").glob("*.yaml"))]
        specs = pods_of([item for text in texts for item in yaml.safe_load_all(text)])
        hosts = {name: f"{SUBNET}.{number}" for number, name in enumerate(specs, 10)}
        made = {
            name.partition(".")[0]: Pod(
                podman=podman,
                network=NETWORK,
                name=name.partition(".")[0],
                spec=spec,
                address=hosts[name],
                hosts=hosts,
                secrets={"poolpipe-token": {"token": TOKEN.encode()}},
            )
            for name, spec in specs.items()
        }
        podman.run("network", "create", "--subnet", f"{SUBNET}.0/24", NETWORK)
        for pod in made.values():
            pod.start()
        for pod in made.values():
            wait_until_ready(pod)
        wait_for(lambda: workers_up(made["poolpipe-gateway-0"]) == WORKERS)
        yield made
    finally:
        podman.tear_down(NETWORK)
        shutil.rmtree(podman.folder, ignore_errors=True)


def workers_up(gateway: Pod) -> int:
    """The number of workers that the scheduler counts, asked with the token."""
    fields = {"http_address": gateway.address, "ports": {"http": 8000}}
    state = ServerState({**fields, "token": TOKEN, "token_header": TOKEN_HEADER})
    with contextlib.suppress(ServerError):
        return state.control("status")["workers"].get("up", 0)
    return 0


def wait_until_ready(pod: Pod) -> None:
    """Return once its readiness probe passes; where it does not, its log says why."""
    try:
        wait_for(pod.is_ready)
    except AssertionError:
        pytest.fail(f"{pod.name} did not become ready: {pod.log()}")


@dataclass
class Clients:
    """Clients that each send one whole batch after the other, until they are told to stop."""

    url: str
    stop: threading.Event
    outcomes: Counter[str]

    def ask(self) -> None:
        """Send until told to stop."""
        samples = np.arange(3 * BATCH, dtype=np.float32).reshape(BATCH, 3)
        with grpc_client.InferenceServerClient(self.url) as client:
            given = grpc_client.InferInput("x", [BATCH, 3], "FP32")
            given.set_data_from_numpy(samples)
            while not self.stop.is_set():
                try:
                    answer: Any = client.infer("affine", [given], timeout=PATIENT_US)
                except InferenceServerException as error:
                    self.outcomes[str(error)] += 1
                    continue
                right = np.array_equal(answer.as_numpy("y"), samples * FACTOR + OFFSET)
                self.outcomes["right" if right else "wrong"] += 1


@contextlib.contextmanager
def clients_of(gateway: Pod) -> Generator[Counter[str]]:
    """Outcomes of requests that are sent meanwhile."""
    clients = Clients(f"{gateway.address}:8001", threading.Event(), Counter())
    threads = [threading.Thread(target=clients.ask) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield clients.outcomes
    finally:
        clients.stop.set()
        for thread in threads:
            thread.join()


def test_a_pod_that_dies_comes_back_and_loses_no_more_than_it_had(pods: dict[str, Pod]) -> None:
    gateway, dies = pods["poolpipe-gateway-0"], pods["poolpipe-fast-1"]
    with clients_of(gateway) as outcomes:
        wait_for(lambda: outcomes["right"] >= 10 * CLIENTS)
        before = dies.first_process()
        os.kill(before, signal.SIGKILL)  # as where memory runs out
        wait_for(lambda: workers_up(gateway) == WORKERS // 2)
        half = outcomes["right"]
        wait_for(lambda: outcomes["right"] >= half + 10 * CLIENTS)
        wait_for(lambda: workers_up(gateway) == WORKERS)
        whole = outcomes["right"]
        wait_for(lambda: outcomes["right"] >= whole + 10 * CLIENTS)
    assert dies.first_process() != before
    assert dies.is_ready()
    lost = outcomes.total() - outcomes["right"]
    assert lost <= CLIENTS, outcomes


def test_nodes_find_a_gateway_again_that_died(pods: dict[str, Pod]) -> None:
    gateway = pods["poolpipe-gateway-0"]
    os.kill(gateway.first_process(), signal.SIGKILL)
    wait_for(lambda: workers_up(gateway) == 0)
    wait_for(lambda: workers_up(gateway) == WORKERS)
    with clients_of(gateway) as outcomes:
        wait_for(lambda: outcomes["right"] >= 10 * CLIENTS)
    assert set(outcomes) == {"right"}


def test_a_pod_that_is_replaced_loses_no_more_than_it_had(pods: dict[str, Pod]) -> None:
    gateway, replaced = pods["poolpipe-gateway-0"], pods["poolpipe-fast-0"]
    with clients_of(gateway) as outcomes:
        wait_for(lambda: outcomes["right"] >= 10 * CLIENTS)
        replaced.remove()
        wait_for(lambda: workers_up(gateway) == WORKERS // 2)
        replaced.start()
        wait_for(lambda: workers_up(gateway) == WORKERS)
        whole = outcomes["right"]
        wait_for(lambda: outcomes["right"] >= whole + 10 * CLIENTS)
    lost = outcomes.total() - outcomes["right"]
    assert lost <= CLIENTS, outcomes
