"""Shared pools, unequal shares and entries behind a real Triton server, with changes of plan."""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException, shared_memory

from flows.device_class import DeviceClass
from flows.preparation.building.onnxruntime import build_stage
from flows.preparation.splitting.extracting import extract_stage
from flows.preparation.splitting.model import SplitModel
from flows.preparation.splitting.running import open_session, run_session
from flows.preparation.splitting.split import split_model
from flows.release.rollout.change import change_plan
from flows.release.server.admin import start, stop
from flows.release.server.running import ServerState
from tests.fakes.plans import HandModel, HandStage, hand_model, hand_pipeline, hand_plan
from tests.fakes.unequal_shares import example
from tests.flows.preparation.splitting.tiny_models import CHANNELS, SIZE, chain, residual_net
from tests.ports import free_ports
from tests.triton_backend.serving.small_plans import BATCH, stage
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import OFFLOAD_MODEL, node_model, render_repository
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.loadgen.__main__ import main as loadgen

pytestmark = pytest.mark.slow
CLIENTS: dict[str, Any] = {"grpc": grpc_client, "http": http_client}
DTYPES = {"float32": "FP32", "uint8": "UINT8"}
PATIENT_US = 1_500_000  # of which 0.6 s are kept back as guard
FIRST, *OTHERS = ("reservation", "eager", "deferred", "turns")
ORIGINALS = {"residual": residual_net, "chain": chain}
CLIENTS_AT_ONCE, ASKED, KILLED_AFTER = 6, 120, 30


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SplitModel]:
    """Two real ONNX models in two blocks each."""
    folder = tmp_path_factory.mktemp("models")
    return {
        name: split_model(
            write(folder / f"{name}.onnx"), name=name, out=folder, blocks=2, max_batch=BATCH
        )
        for name, write in ORIGINALS.items()
    }


def shared(splits: dict[str, SplitModel], artifacts: Path, policy: str) -> Plan:
    """Both on one pool of two vGPUs; `residual` in two stages, but under `turns`, which has one."""

    def one(split: SplitModel, first: int, last: int) -> HandStage:
        given, made = split.stage_inputs(first), split.stage_outputs(last)
        built = build_stage(
            extract_stage(split, first, last),
            given,
            made,
            device_class=DeviceClass(name="CPU", cores=(min(os.sched_getaffinity(0)),)),
            max_batch=BATCH,
            root=artifacts,
        )
        boundary = None if last == split.blocks else made
        return stage((first, last), "FAST", 0, vgpus=2, artifact=built.key, boundary=boundary)

    def model(name: str, cuts: list[int]) -> HandModel:
        split = splits[name]
        stages = [one(split, *blocks) for blocks in pairwise(cuts)]
        return hand_model(
            name,
            hand_pipeline(*stages, batch=BATCH, rate_rps=100.0),
            slo_us=400_000,
            inputs=split.inputs,
            outputs=split.outputs,
            policy=policy,
        )

    residual = model("residual", [0, 2] if policy == "turns" else [0, 1, 2])
    node = NodeGroup(count=1, gpu_class="FAST", gpus=2, nic_gbps=10.0)
    return hand_plan(residual, model("chain", [0, 2]), nodes=[node], plan_id=policy)


@pytest.fixture(scope="module")
def state(
    tmp_path_factory: pytest.TempPathFactory, artifacts: Path, splits: dict[str, SplitModel]
) -> Iterator[ServerState]:
    folder = tmp_path_factory.mktemp("serve")
    http, grpc, metrics = free_ports(3)
    # Machines that run tests wake late: requests with 50 ms need more of it kept back.
    first = shared(splits, artifacts, FIRST)
    options = ServeOptions(artifacts=artifacts, guard_fraction=0.4, cut_models=True)
    render_repository(folder, first, options)
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


def right_answer(state: ServerState, split: SplitModel, seed: int, kind: str = "grpc") -> bool:
    """True if a request was served, and as by the unsplit model; refused only for its deadline."""
    samples = 1 + seed % BATCH
    x = np.random.default_rng(seed).normal(size=(samples, CHANNELS, SIZE, SIZE))
    given = {"x": x.astype(np.float32)}
    try:
        answer = infer(state, kind, split.name, given).as_numpy("y")
    except InferenceServerException as error:
        if "deadline cannot be met" in str(error):
            return False
        raise
    expected: Any = run_session(open_session(split.model_path, split.name), given)["y"]
    np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-6)
    return True


def test_two_models_share_a_pool_under_every_policy(
    state: ServerState, splits: dict[str, SplitModel], artifacts: Path
) -> None:
    """A worker of the pool is killed under load.

    None wrong, none without an answer, and it comes back.
    """
    both = list(splits.values())
    for policy in (FIRST, *OTHERS):
        if policy != FIRST:
            change_plan(state.folder, shared(splits, artifacts, policy))
        assert state.control("status")["plan_id"] == policy
        assert all(right_answer(state, split, 1, kind) for split in both for kind in CLIENTS)
        node = node_model("FAST")
        worker, _ = state.ask(node, {})["workers"]
        with ThreadPoolExecutor(CLIENTS_AT_ONCE) as clients:
            asked = {
                clients.submit(right_answer, state, both[seed % 2], seed): both[seed % 2].name
                for seed in range(ASKED)
            }
            for number, _ in enumerate(as_completed(asked)):
                if number == KILLED_AFTER:
                    os.kill(int(worker["pid"]), signal.SIGKILL)
        served = {name: [f.result() for f in asked if asked[f] == name] for name in splits}
        assert all(sum(each) > 0.9 * len(each) for each in served.values()), (policy, served)

        def whole() -> bool:
            workers = state.control("status")["workers"]
            return bool(workers["up"] == workers["total"] == 2)

        wait_for(whole)
        assert all(right_answer(state, split, 2) for split in both)


def test_a_plan_of_unequal_shares_is_rolled_out_to_and_from(
    state: ServerState,
    splits: dict[str, SplitModel],
    artifacts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change_plan(state.folder, Plan.from_dict(example()))
    (tmp_path / "plan.json").write_text(json.dumps(example()))
    words = ["--json", f"--plan={tmp_path / 'plan.json'}", "--duration=1", "--deadline-ms=2000"]
    assert loadgen([*words, f"--url={state.grpc_url}"]) == 0
    loaded = json.loads(capsys.readouterr().out)
    both = loaded["entries"]["a"]
    assert both.keys() == {"whole", "tail"}
    assert all(
        row["served"] == row["offered"] > 0 for row in (*loaded["models"].values(), *both.values())
    )
    whole = {"input": np.ones((1, 4096), np.uint8)}
    tail = {"cut_4": np.ones((2, 64), np.uint8)}
    asked = [("a", whole), ("a", tail), ("b", whole), ("c", whole)]
    asked += [("a_cut_4", tail), ("a_cut_0", whole)]
    # All at once: what fills no batch waits for others until its deadline comes near.
    with ThreadPoolExecutor(len(CLIENTS) * len(asked)) as clients:
        begun = [
            (given, clients.submit(infer, state, kind, model, given))
            for kind in CLIENTS
            for model, given in asked
        ]
        for given, answer in begun:
            assert len(answer.result().as_numpy("output")) == (2 if given is tail else 1)
    for kind in CLIENTS:
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
    change_plan(state.folder, shared(splits, artifacts, FIRST))
    assert all(right_answer(state, split, 3) for split in splits.values())
    # The models of its cuts and the one that offers them came with that plan, and went with it.
    for gone in ("a", "a_cut_4", OFFLOAD_MODEL):
        assert not (state.folder / "repository" / gone).exists()
        with pytest.raises(InferenceServerException, match=r"unknown model|not ready|not found"):
            infer(state, "grpc", gone, {})


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
