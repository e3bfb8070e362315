"""A model cut by its clients, behind a real Triton server.

Every open cut, and the client's own process.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from flows.device_class import DeviceClass
from flows.preparation.building.onnxruntime import build_stage
from flows.preparation.splitting import SplitModel, extract_stage
from flows.release.server.admin import start, stop
from flows.release.server.running import ServerState
from tests.fakes.plans import hand_model, hand_pipeline, hand_plan
from tests.ports import free_ports
from tests.triton_backend.client.cut_models import heads_of, split_shrinking
from tests.triton_backend.serving.small_plans import stage
from triton_backend.client.device import Device, largest_error, read_input
from triton_backend.client.heads import Heads
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.entries import Entry
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import OFFLOAD_MODEL, render_repository
from triton_backend.serve_folder.settings import ServeOptions

pytestmark = pytest.mark.slow
CLIENTS: dict[str, Any] = {"grpc": grpc_client, "http": http_client}
OPEN = (0, 1, 3)  # of the cuts 0 to 3
SLO_US = 400_000
PATIENT_US = 1_000_000
HEADS_US = [0, 60_000, 100_000, 120_000, 390_000]  # of a slow device


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cuts")


@pytest.fixture(scope="module")
def split(work: Path) -> SplitModel:
    return split_shrinking(work)


@pytest.fixture(scope="module")
def heads(work: Path, split: SplitModel) -> Heads:
    return heads_of(split, work / "heads", HEADS_US)


def planned(work: Path, split: SplitModel) -> Plan:
    """Tails of the open cuts, all on one pool."""
    device = DeviceClass(name="FAST", cores=(min(os.sched_getaffinity(0)),))

    def tail(cut: int) -> Any:
        built = build_stage(
            extract_stage(split, cut, split.blocks),
            split.stage_inputs(cut),
            split.outputs,
            device_class=device,
            max_batch=4,
            root=work / "artifacts",
        )
        one = stage((cut, split.blocks), "FAST", 0, vgpus=2, artifact=built.key)
        return hand_pipeline(one, batch=4, rate_rps=30.0, entry=f"cut{cut}")

    model = hand_model(
        "net",
        *map(tail, OPEN),
        slo_us=SLO_US,
        entries=tuple(
            Entry(
                name=f"cut{cut}",
                block=cut,
                budget_us=SLO_US // 2,
                rate_rps=30.0,
                inputs=split.stage_inputs(cut),
            )
            for cut in OPEN
        ),
        inputs=split.inputs,
        outputs=split.outputs,
        split=split.key,
        policy="eager",
    )
    return hand_plan(model, nodes=[NodeGroup(count=1, gpu_class="FAST", gpus=2, nic_gbps=10.0)])


@pytest.fixture(scope="module")
def state(work: Path, split: SplitModel) -> Iterator[ServerState]:
    folder = work / "serve"
    options = ServeOptions(artifacts=work / "artifacts", cut_models=True)
    render_repository(folder, planned(work, split), options)
    http, grpc, metrics = free_ports(3)
    yield start(folder, Endpoints(http=http, grpc=grpc, metrics=metrics))
    stop(folder)


def infer(
    state: ServerState,
    kind: str,
    tensors: dict[str, Any],
    model: str = "net",
    timeout_us: int = PATIENT_US,
    **parameters: Any,
) -> Any:
    module = CLIENTS[kind]
    url = state.grpc_url if kind == "grpc" else state.http_url
    with module.InferenceServerClient(url) as client:
        inputs: list[Any] = []
        for name, array in tensors.items():
            dtype = np_to_triton_dtype(array.dtype)
            inputs.append(module.InferInput(name, list(array.shape), dtype))
            inputs[-1].set_data_from_numpy(array)
        return client.infer(model, inputs, timeout=timeout_us, parameters=parameters)


@pytest.mark.parametrize("kind", CLIENTS)
def test_every_open_cut_answers_as_the_whole_model(
    state: ServerState, heads: Heads, kind: str
) -> None:
    device, inputs = Device(heads), read_input("random", heads.inputs)
    expected = device.run(heads.whole, inputs)
    for cut in OPEN:
        crossing = device.run(heads.cuts[cut], inputs)
        answer = infer(state, kind, crossing, cut=cut, split=heads.split)
        assert largest_error({"y": answer.as_numpy("y")}, expected) <= 1e-4
        halves = {f"{name}.fp16": array.astype(np.float16) for name, array in crossing.items()}
        answer = infer(state, kind, halves, cut=cut)
        assert largest_error({"y": answer.as_numpy("y")}, expected) <= 1e-2


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_cut_has_a_model_of_its_own_that_takes_its_tensors_alone(
    state: ServerState, heads: Heads, kind: str
) -> None:
    device, inputs = Device(heads), read_input("random", heads.inputs)
    expected = device.run(heads.whole, inputs)
    for cut in OPEN:
        crossing = device.run(heads.cuts[cut], inputs)
        answer = infer(state, kind, crossing, f"net_cut_{cut}")
        assert largest_error({"y": answer.as_numpy("y")}, expected) <= 1e-4
        with pytest.raises(InferenceServerException, match=r"expected \d+ inputs but got 0"):
            infer(state, kind, {}, f"net_cut_{cut}")
    with pytest.raises(InferenceServerException, match="is not found"):
        infer(state, kind, inputs, "net_cut_2")
    # Refusals carry the front's words and status.
    with pytest.raises(InferenceServerException, match="net") as error:
        infer(state, kind, inputs, "net_cut_0", timeout_us=1)
    assert str(error.value.status()) in {"StatusCode.UNAVAILABLE", "503"}
    with pytest.raises(InferenceServerException, match="parameter 'split': 'other'") as error:
        infer(state, kind, inputs, "net_cut_0", split="other")
    assert str(error.value.status()) in {"StatusCode.INVALID_ARGUMENT", "400"}


@pytest.mark.parametrize("kind", CLIENTS)
def test_wrong_tensors_are_refused_with_the_open_cuts(
    state: ServerState, heads: Heads, kind: str
) -> None:
    device, inputs = Device(heads), read_input("random", heads.inputs)
    first, third = (device.run(heads.cuts[cut], inputs) for cut in (1, 3))
    listed = r"open no entry \(cut0: \['x'\]; cut1: \['t0'\]; cut3: \['t2'\]\)"
    wrong: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({}, {}, listed),
        (first | third, {}, listed),
        (first, {"cut": 3}, listed),
        (first, {"cut": 2}, "parameter 'cut': '2' is none of 0, 1, 3"),
        (first, {"split": "other"}, "parameter 'split': 'other', but blocks of"),
        (device.run(heads.cuts[2], inputs), {}, "unexpected inference input 't1'"),
    ]
    for tensors, parameters, complaint in wrong:
        with pytest.raises(InferenceServerException, match=complaint) as error:
            infer(state, kind, tensors, **parameters)
        assert str(error.value.status()) in {"StatusCode.INVALID_ARGUMENT", "400"}


def client_run(heads: Heads, url: str, *options: str) -> dict[str, Any]:
    """The client as a process of its own."""
    command = [sys.executable, "-m", "triton_backend.client", "run", str(heads.folder), "--json"]
    done = subprocess.run(
        [*command, "--url", url, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_cut_of_a_client_process_follows_the_link(
    state: ServerState, heads: Heads, tmp_path: Path
) -> None:
    trace = tmp_path / "link.csv"
    trace.write_text("time_s,mbit_per_s\n0,100\n3,1\n7,100\n")
    how = ("--rps", "5", "--slo-ms", "400", "--duration", "14", "--link", str(trace))
    ran = client_run(heads, state.grpc_url, *how)
    rows = ran["requests"]
    assert ran["offered"] == len(rows) == 70 == ran["served"] + ran["late"]
    assert {row["outcome"] for row in rows} <= {"served", "late"}
    assert sum(row["outcome"] == "late" for row in rows) == ran["late"]
    cuts = [row["cut"] for row in rows]
    assert set(cuts[:14]) == {0}  # 110 KB in 9 ms
    assert 3 in cuts[20:35]  # 4.6 KB in 37 ms; 110 KB take 885
    assert set(cuts[-3:]) == {0}  # found out by a probe, as nothing large is sent
    assert ran["refused"] == 0
    assert ran["max_error"] <= 1e-4
    asked = ran["asked"]
    assert asked["offers"] >= 3  # at the begin, and before its cut moved
    assert asked["announcements"] >= 4  # two moves, and its lease given back
    assert "announcements refused" not in asked
    assert state.ask(OFFLOAD_MODEL, {"command": "announced"})["leases"] == []
    for row in rows:
        if row["on"] == "server":
            assert row["upload_bytes"] == {0: 110_592, 1: 73_728, 3: 4_608}[row["cut"]]


@pytest.mark.parametrize("protocol", ["", "http://"])
def test_half_the_bytes_over_the_network_as_it_is(
    state: ServerState, heads: Heads, protocol: str
) -> None:
    url = protocol + (state.http_url if protocol else state.grpc_url)
    ran = client_run(heads, url, "--rps", "10", "--slo-ms", "400", "--duration", "2", "--half")
    sent = [row for row in ran["requests"] if row["on"] == "server"]
    assert sent
    assert {row["upload_bytes"] for row in sent} <= {55_296, 36_864, 2_304}
    assert 0 < ran["max_error"] <= 1e-2


def test_without_a_server_the_device_runs_all(heads: Heads) -> None:
    ran = client_run(heads, "127.0.0.1:1", "--rps", "10", "--slo-ms", "900", "--duration", "1")
    assert ran["on_device"] == ran["served"] == 10
    assert ran["cuts"] == {"4": 10}


def test_heads_of_another_split_are_refused_and_run_on_the_device(
    state: ServerState, heads: Heads, tmp_path: Path
) -> None:
    for file in heads.folder.iterdir():
        text = file.read_bytes().replace(heads.split.encode(), b"0" * len(heads.split))
        (tmp_path / file.name).write_bytes(text)
    done = client_run(
        Heads(folder=tmp_path, model="net", split="", cuts=heads.cuts),
        state.grpc_url,
        *("--rps", "5", "--slo-ms", "400", "--duration", "1"),
    )
    refused = [row["refused"] for row in done["requests"] if row["refused"]]
    assert refused
    assert all("parameter 'split'" in text for text in refused)
    assert done["on_device"] == done["served"] + done["late"] - done["unanswered"]
    assert np.isclose(done["max_error"], 0)
