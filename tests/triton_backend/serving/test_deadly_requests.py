"""A request that ends each process that runs it, on a real Triton."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace

import pytest

from flows.release.server.admin import start, stop
from flows.release.server.running import ServerState
from tests.ports import free_ports
from tests.triton_backend.runtimes.python_step.step_folders import write_step
from tests.triton_backend.serving.small_plans import model, plan, stage, tensor
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.applications.steps import Step
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions

pytestmark = pytest.mark.slow
VGPUS, DEADLY = 4, 13.0
TIMEOUT_US = 20_000_000  # time enough to end all workers
SOURCE = f"""
import os


def run(x):
    if (x == {DEADLY}).any():
        os._exit(9)
    return 3 * x
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerState]:
    root = tmp_path_factory.mktemp("deadly")
    given, answer = tensor("x", 3), tensor("y", 3)
    write_step(root / "artifacts" / "step", SOURCE, inputs=[given], outputs=[answer])
    only = stage((0, 1), "FAST", 0, vgpus=VGPUS, artifact="step")
    made = plan(model("net", (only,), inputs=(given,), outputs=(answer,)), gpus=VGPUS)
    steps = (Step(name="net", python="shop:run"),)
    made = replace(made, workload=replace(made.workload, steps=steps))
    http, grpc, metrics = free_ports(3)
    render_repository(root / "serve", made, ServeOptions(artifacts=root / "artifacts"))
    try:
        yield start(root / "serve", Endpoints(http=http, grpc=grpc, metrics=metrics))
    finally:
        stop(root / "serve")


def answer_to(served: ServerState, value: float) -> tuple[int, object]:
    """Status and values, or the server's words."""
    tensor_of = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [value] * 3}
    body = {"inputs": [tensor_of], "parameters": {"timeout": TIMEOUT_US}}
    url = f"http://{served.http_url}/v2/models/net/infer"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, json.dumps(body).encode()), timeout=30
        ) as reply:
            return reply.status, json.loads(reply.read())["outputs"][0]["data"]
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]


def test_it_ends_two_workers_and_is_refused_while_others_are_served(served: ServerState) -> None:
    assert answer_to(served, 2.0) == (200, [6.0] * 3)
    code, words = answer_to(served, DEADLY)
    assert (code, words) == (500, "model 'net': two workers died while they ran the request")
    status = served.control("status")
    assert status["workers"]["up"] >= VGPUS - 2
    assert answer_to(served, 4.0) == (200, [12.0] * 3)
    wait_for(lambda: served.control("status")["workers"]["up"] == VGPUS)
