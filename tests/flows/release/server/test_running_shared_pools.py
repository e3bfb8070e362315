"""Shared pools, unequal shares and entries behind a real Triton server, with changes of plan."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException, shared_memory

from flows.release.rollout.change import change_plan
from flows.release.server.admin import start, stop
from flows.release.server.running import ServerState
from tests.fakes.unequal_shares import example
from tests.ports import free_ports
from tests.triton_backend.serving.shared_plans import sharing
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import node_model, render_repository
from triton_backend.serve_folder.settings import ServeOptions

pytestmark = pytest.mark.slow
CLIENTS: dict[str, Any] = {"grpc": grpc_client, "http": http_client}
DTYPES = {"float32": "FP32", "uint8": "UINT8"}
PATIENT_US = 1_000_000
FIRST, *OTHERS = ("reservation", "eager", "deferred", "turns")


def under(plan: Plan, policy: str, plan_id: str | None = None) -> Plan:
    """The same plan under another policy, which it is named after."""
    models = tuple(replace(model, policy=policy) for model in plan.models)
    return replace(plan, plan_id=plan_id or policy, models=models)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def shared(artifacts: Path) -> Plan:
    """Two real models on one pool of two vGPUs."""
    return under(sharing(artifacts, FIRST), FIRST)


@pytest.fixture(scope="module")
def state(
    tmp_path_factory: pytest.TempPathFactory, artifacts: Path, shared: Plan
) -> Iterator[ServerState]:
    folder = tmp_path_factory.mktemp("serve")
    http, grpc, metrics = free_ports(3)
    # Machines that run tests wake late: requests with 50 ms need more of it kept back.
    render_repository(folder, shared, ServeOptions(artifacts=artifacts, guard_fraction=0.4))
    ports = Endpoints(http=http, grpc=grpc, metrics=metrics, opened=("shared-memory",))
    yield start(folder, ports)
    stop(folder)


def infer(state: ServerState, kind: str, model: str, tensors: dict[str, Any]) -> Any:
    module = CLIENTS[kind]
    url = state.grpc_url if kind == "grpc" else state.http_url
    with module.InferenceServerClient(url) as client:
        inputs: list[Any] = []
        for name, array in tensors.items():
            given = module.InferInput(name, list(array.shape), DTYPES[str(array.dtype)])
            given.set_data_from_numpy(array)
            inputs.append(given)
        return client.infer(model, inputs, timeout=PATIENT_US)


def both_answer(state: ServerState) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for kind in CLIENTS:
        doubled = infer(state, kind, "doubled", {"x": x}).as_numpy("y")
        raised = infer(state, kind, "raised", {"x": x}).as_numpy("y")
        np.testing.assert_array_equal(doubled, x * 2)
        np.testing.assert_array_equal(raised, x + 5)


def test_two_models_share_a_pool_under_every_policy(state: ServerState, shared: Plan) -> None:
    both_answer(state)
    for policy in OTHERS:
        change_plan(state.folder, under(shared, policy))
        assert state.control("status")["plan_id"] == policy
        both_answer(state)
        generation = int(state.control("status")["generation"])
        worker, _ = state.ask(node_model("FAST", generation), {})["workers"]
        os.kill(int(worker["pid"]), signal.SIGKILL)
        both_answer(state)

        def whole() -> bool:
            workers = state.control("status")["workers"]
            return bool(workers["up"] == workers["total"] == 2)

        wait_for(whole)
        both_answer(state)


def test_a_plan_of_unequal_shares_is_rolled_out_to_and_from(
    state: ServerState, shared: Plan
) -> None:
    change_plan(state.folder, Plan.from_dict(example()))
    whole = {"input": np.ones((1, 4096), np.uint8)}
    tail = {"cut_4": np.ones((2, 64), np.uint8)}
    for kind in CLIENTS:
        assert infer(state, kind, "a", whole).as_numpy("output").shape == (1, 64)
        assert infer(state, kind, "a", tail).as_numpy("output").shape == (2, 64)
        for model in ("b", "c"):
            infer(state, kind, model, whole)
        for wrong in (whole | tail, {}):
            with pytest.raises(InferenceServerException, match="open no entry") as error:
                infer(state, kind, "a", wrong)
            assert str(error.value.status()) in {"StatusCode.INVALID_ARGUMENT", "400"}
    through_shared_memory(state, tail["cut_4"])
    runs = state.control("status")["counters"]["stage_runs"]
    assert {"p20", "p40", "p60", "p80"} <= {key.split("/")[-1] for key in runs}
    # `b` and `c` hold 3 of 4 GiB of their GPU: nothing as large can start beside them.
    slower: dict[str, Any] = {**example(), "plan_id": "slower"}
    (stage,) = slower["models"][1]["pipelines"][0]["stages"]
    stage["latency_us_by_batch"] = [2 * us for us in stage["latency_us_by_batch"]]
    with pytest.raises(InputError, match=r"old and new need .* GiB together, it has 4"):
        change_plan(state.folder, Plan.from_dict(slower))
    assert state.control("status")["prepared"] is None
    infer(state, "grpc", "b", whole)
    change_plan(state.folder, under(shared, FIRST, "back"))
    both_answer(state)


def through_shared_memory(state: ServerState, array: np.ndarray) -> None:
    """A tail whose tensor lies in the client's own shared memory."""
    region = shared_memory.create_shared_memory_region("cut", "/poolpipe-test-cut", array.nbytes)
    try:
        shared_memory.set_shared_memory_region(region, [array])
        with http_client.InferenceServerClient(state.http_url) as client:
            client.register_system_shared_memory("cut", "/poolpipe-test-cut", array.nbytes)
            given = http_client.InferInput("cut_4", list(array.shape), "UINT8")
            given.set_shared_memory("cut", array.nbytes)
            answer = client.infer("a", [given], timeout=PATIENT_US)
            output = answer.as_numpy("output")
            assert output is not None
            assert output.shape == (2, 64)
            client.unregister_system_shared_memory("cut")
    finally:
        shared_memory.destroy_shared_memory_region(region)
