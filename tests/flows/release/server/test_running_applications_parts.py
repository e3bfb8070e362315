"""Modules on parts of unequal size of one GPU, on a real Triton: answers, and changes of plan."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from flows.planning import PlanOptions, make_plan
from flows.release.rollout.change import change_plan
from flows.release.server.admin import start, stop
from flows.release.server.running import ServerState
from tests.flows.release.server.test_running import Client, server_ports
from tests.triton_backend.serving.served_applications import expected
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile, ProfileKey, ProfileTable
from triton_backend.contract.shares import SOLO
from triton_backend.contract.workload import Workload
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions, ServeSettings
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.shared_memory import Arrays

pytestmark = pytest.mark.slow
PERCENTS = (20, 60, 100)
MODULES = {"detect": 12_000, "cars": 3_000, "people": 2_000}  # µs on a whole GPU, a row
FEW_RPS, MANY_RPS = 20.0, 120.0


def profile(name: str, whole_us: int) -> ModelProfile:
    batches = np.array([[1.0, 1.6, 2.2, 2.8]])
    tables = {
        ProfileKey("GPU", 3 * percent, SOLO): ProfileTable(
            latency_us=np.ceil(batches * whole_us * 100 / percent)
        )
        for percent in PERCENTS
    }
    return ModelProfile(name=name, boundary_bytes=(), tables=tables)


def planned(rate_rps: float) -> Plan:
    kind = GpuClass(
        name="GPU", vgpu_divisors=(), vgpu_percents=PERCENTS, max_vgpus_per_gpu=5, hourly_cost=1.0
    )
    nodes = (NodeGroup(count=1, gpu_class="GPU", gpus=2, nic_gbps=10.0),)
    modules = [
        {"name": name, "model": f"m_{name}", "after": ["detect"] if name != "detect" else []}
        for name in MODULES
    ]
    app = {"name": "traffic", "slo_ms": 1_500, "rate_rps": rate_rps, "modules": modules}
    return make_plan(
        {f"m_{name}": profile(f"m_{name}", us) for name, us in MODULES.items()},
        Cluster(name="cut", gpu_classes=(kind,), nodes=nodes),
        Workload.from_dict({"applications": [app]}),
        PlanOptions(objective="cost"),
    )


def shares_of(plan: Plan) -> list[int]:
    """Parts of the first GPU, in 300ths."""
    return [pool.share for pool in plan.pools for slot in pool.slots() if slot.gpu == 0]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerState]:
    folder = tmp_path_factory.mktemp("serve")
    # Machines that run tests wake late.
    render_repository(folder, planned(FEW_RPS), ServeOptions(guard_fraction=0.4))
    yield start(folder, server_ports())
    stop(folder)


def request(deployment: Deployment, number: int) -> Arrays:
    random = np.random.default_rng(number)
    return {
        spec.name: random.integers(0, 256, (1 + number % 2, *spec.shape[1:])).astype(np.uint8)
        for spec in deployment.served["traffic"].inputs
    }


def answered(state: ServerState, requests: int) -> None:
    """Ask from some clients at once; every answer is that of the modules one after the other."""
    deployment = Deployment.read(ServeSettings.read(Path(state.folder) / "settings.json"), 1)

    def ask(number: int) -> None:
        given = request(deployment, number)
        client = Client(state, "grpc")
        try:
            answer = client.infer("traffic", given)
        finally:
            client.close()
        for output, wanted in expected(deployment, "traffic", given).items():
            np.testing.assert_array_equal(answer.as_numpy(output), wanted)

    with ThreadPoolExecutor(4) as clients:
        list(clients.map(ask, range(requests)))


def test_modules_share_a_gpu_and_plans_of_other_cuts_follow_each_other(state: ServerState) -> None:
    """Three modules have parts of one GPU, then of two, then of one again; nothing is lost."""
    few, many = planned(FEW_RPS), planned(MANY_RPS)
    assert few.gpus_used == {"GPU": 1}
    assert many.gpus_used == {"GPU": 2}
    assert len(set(shares_of(few))) > 1
    answered(state, 12)
    for plan in (many, few):
        with ThreadPoolExecutor(1) as beside:
            asked = beside.submit(answered, state, 24)
            change_plan(state.folder, plan)
            asked.result()
        assert state.control("status")["plan_id"] == plan.plan_id
    runs = state.control("status")["counters"]["stage_runs"]
    assert {pool.name for pool in few.pools} <= {key.split("/")[-1] for key in runs}
