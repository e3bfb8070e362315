"""Clients at different cuts of a real model whose tails share batches on a real Triton."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from flows.device_class import DeviceClass
from flows.preparation.building.onnxruntime import build_stage
from flows.preparation.splitting import SplitModel, extract_stage
from flows.release.server.admin import start, stop
from flows.release.server.running import ServerState
from flows.system_metrics import read_metrics
from tests.fakes.plans import HandStage, hand_model, hand_pipeline, hand_plan
from tests.ports import free_ports
from tests.triton_backend.client.cut_models import heads_of, split_shrinking
from tests.triton_backend.serving.small_plans import stage
from tests.triton_backend.serving.system import wait_for
from triton_backend.client.device import Device, largest_error, read_input
from triton_backend.client.heads import Heads
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.entries import Entry
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import node_model, render_repository
from triton_backend.serve_folder.settings import ServeOptions

pytestmark = pytest.mark.slow
CUTS = (0, 1, 3)  # those before the junction are aligned there
JUNCTION, SEATS = 3, 4
TAIL_US = (20_000, 25_000, 30_000, 35_000)  # as planned: so long a shared batch waits for company
SLO_US = 400_000
PATIENT_US = 2_000_000


def planned(work: Path, split: SplitModel) -> Plan:
    """Two cuts run to the junction on a pool of each, and share the last block with the third."""

    def built(gpu_class: str, first: int, last: int) -> str:
        return build_stage(
            extract_stage(split, first, last),
            split.stage_inputs(first),
            split.outputs if last == split.blocks else split.stage_inputs(last),
            device_class=DeviceClass(name=gpu_class, cores=(min(os.sched_getaffinity(0)),)),
            max_batch=SEATS,
            root=work / "artifacts",
        ).key

    tail = built("SLOW", JUNCTION, split.blocks)
    shared = stage(
        (JUNCTION, split.blocks),
        "SLOW",
        1,
        vgpus=2,
        artifact=tail,
        boards=True,
        batch=SEATS,
        latency_us_by_batch=TAIL_US,
    )

    def pipeline(cut: int) -> Any:
        stages: list[HandStage] = [shared]
        if cut < JUNCTION:
            align = built("FAST", cut, JUNCTION)
            boundary = split.stage_inputs(JUNCTION)
            stages.insert(
                0, stage((cut, JUNCTION), "FAST", 0, artifact=align, boundary=boundary, gpu=cut)
            )
        return hand_pipeline(*stages, batch=1, rate_rps=30.0, entry=f"cut{cut}")

    entries = tuple(
        Entry(
            name=f"cut{cut}",
            block=cut,
            budget_us=SLO_US // 2,
            rate_rps=30.0,
            inputs=split.stage_inputs(cut),
        )
        for cut in CUTS
    )
    model = hand_model(
        "net",
        *map(pipeline, CUTS),
        slo_us=SLO_US,
        entries=entries,
        inputs=split.inputs,
        outputs=split.outputs,
        split=split.key,
        policy="reservation-ahead",
    )
    nodes = [NodeGroup(count=1, gpu_class=name, gpus=2, nic_gbps=10.0) for name in ("FAST", "SLOW")]
    return hand_plan(model, nodes=nodes)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared_batches")


@pytest.fixture(scope="module")
def split(work: Path) -> SplitModel:
    return split_shrinking(work)


@pytest.fixture(scope="module")
def heads(work: Path, split: SplitModel) -> Heads:
    return heads_of(split, work / "heads", [0, 1, 2, 3, 4])


@pytest.fixture(scope="module")
def state(work: Path, split: SplitModel) -> Iterator[ServerState]:
    folder = work / "serve"
    render_repository(folder, planned(work, split), ServeOptions(artifacts=work / "artifacts"))
    http, grpc, metrics = free_ports(3)
    yield start(folder, Endpoints(http=http, grpc=grpc, metrics=metrics))
    stop(folder)


class Clients:
    """So many per cut, each of which asks for the whole answer to an input of its own."""

    def __init__(self, state: ServerState, heads: Heads, each: int = 4) -> None:
        self.url = state.grpc_url
        device = Device(heads)
        self.asked: list[tuple[dict[str, Any], dict[str, Any]]] = []
        given = read_input("random", heads.inputs)
        for number in range(each * len(CUTS)):
            inputs = {name: np.roll(array, number, -1) for name, array in given.items()}
            crossing = device.run(heads.cuts[CUTS[number % len(CUTS)]], inputs)
            self.asked.append((crossing, device.run(heads.whole, inputs)))
        self.errors: list[float] = []
        self.refusals: list[str] = []

    def run(self, times: int, meanwhile: Any = lambda: None) -> None:
        threads = [threading.Thread(target=self._ask, args=(*one, times)) for one in self.asked]
        for thread in threads:
            thread.start()
        meanwhile()
        for thread in threads:
            thread.join()

    def _ask(self, crossing: dict[str, Any], expected: dict[str, Any], times: int) -> None:
        with grpc_client.InferenceServerClient(self.url) as client:
            inputs: list[Any] = []
            for name, array in crossing.items():
                inputs.append(grpc_client.InferInput(name, list(array.shape), "FP32"))
                inputs[-1].set_data_from_numpy(array)
            for _ in range(times):
                try:
                    answer: Any = client.infer("net", inputs, timeout=PATIENT_US)
                except InferenceServerException as error:
                    self.refusals.append(str(error))
                else:
                    self.errors.append(largest_error({"y": answer.as_numpy("y")}, expected))


def counted(state: ServerState) -> dict[str, float]:
    """Shared batches so far, and what was in them, as metrics say."""
    metrics = read_metrics(state.metrics_url, 5.0)
    names = (
        "shared_batches",
        "shared_batch_members",
        "shared_batch_samples",
        "shared_batch_entries",
    )
    return {name: sum(metrics.get(name, {}).values()) for name in names}


def ridden(state: ServerState, samples: float) -> dict[str, float]:
    """Metrics once so many samples were in shared batches; they are published periodically."""
    wait_for(lambda: counted(state)["shared_batch_samples"] >= samples)
    return counted(state)


def test_clients_at_different_cuts_shared_batch_together_and_get_the_whole_models_answers(
    state: ServerState, heads: Heads
) -> None:
    clients = Clients(state, heads)
    clients.run(10)
    assert clients.refusals == []
    assert len(clients.errors) == 120
    assert max(clients.errors) <= 1e-4
    told = ridden(state, 120)
    assert told["shared_batch_samples"] == told["shared_batch_members"] == 120
    assert told["shared_batch_members"] > told["shared_batches"]
    assert told["shared_batch_entries"] > told["shared_batches"]


def kill(state: ServerState, part: str) -> None:
    """A worker of the shared stage, or the scheduler's process."""
    if part == "worker":
        worker, _ = state.ask(node_model("SLOW"), {})["workers"]
        os.kill(int(worker["pid"]), signal.SIGKILL)
    else:
        pid_file = state.folder / "pids" / str(state.control("status")["scheduler"]["active"])
        os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)


@pytest.mark.parametrize("part", ["worker", "scheduler"])
def test_a_killed_part_makes_no_answer_wrong_and_shared_batches_go_on(
    state: ServerState, heads: Heads, part: str
) -> None:
    clients = Clients(state, heads)

    def kill_meanwhile() -> None:
        wait_for(lambda: len(clients.errors) > 30)
        kill(state, part)

    clients.run(20, kill_meanwhile)
    assert max(clients.errors) <= 1e-4
    assert len(clients.errors) + len(clients.refusals) == 240
    assert len(clients.refusals) <= len(clients.asked)  # of those in flight at that instant
    wait_for(lambda: state.control("status")["workers"]["up"] == 4)
    before = ridden_so_far(state)
    again = Clients(state, heads)
    again.run(5)
    assert again.refusals == []
    assert max(again.errors) <= 1e-4
    wait_for(lambda: ridden_so_far(state) >= before + 60)


def ridden_so_far(state: ServerState) -> int:
    """Samples in shared batches, as the scheduler counts."""
    return int(state.control("status")["counters"]["shared_batch_samples"].get("net", 0))
