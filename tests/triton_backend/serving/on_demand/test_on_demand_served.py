"""A dozen models that need three times the memory there is, on a real Triton, emulated GPUs."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from flows.planning import PlanOptions, make_plan
from flows.release.server.admin import start, stop
from flows.release.server.running import ServerState, status
from tests.flows.planning.subclusters.test_on_demand import cluster, profile, workload, zipf
from tests.ports import free_ports
from tests.triton_backend.serving.small_plans import tensor
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions

pytestmark = pytest.mark.slow
MODELS, GPUS, MIB_PER_GPU = 12, 2, 210  # 1,200 MiB of weights on 400 beside the workspaces
SLO_US = 2_000_000


@cache
def planned() -> Plan:
    """Two GPUs, each with room for two models of 100 MiB."""
    rates = zipf(MODELS, 10)
    profiles = {f"m{at}": profile(f"m{at}") for at in range(MODELS)}
    options = PlanOptions(planner="subclusters", objective="gpus", own={"on_demand": True})
    plan = make_plan(profiles, cluster(GPUS, MIB_PER_GPU), workload(rates, slo_us=SLO_US), options)
    models = tuple(
        replace(m, inputs=(tensor("x", 3),), outputs=(tensor("y", 3),)) for m in plan.models
    )
    return replace(plan, models=models)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerState, Path]]:
    folder = tmp_path_factory.mktemp("on-demand") / "serve"
    http, grpc, metrics = free_ports(3)
    render_repository(folder, planned(), ServeOptions())
    try:
        yield start(folder, Endpoints(http=http, grpc=grpc, metrics=metrics)), folder
    finally:
        stop(folder)


def ask(
    client: grpc_client.InferenceServerClient, model: int, timeout_us: int | None = None
) -> str:
    """The outcome of a request: `answered`, or why it was refused."""
    given = grpc_client.InferInput("x", [1, 3], "FP32")
    given.set_data_from_numpy(np.full((1, 3), model, np.float32))
    try:
        found = client.infer(f"m{model}", [given], timeout=timeout_us)
    except InferenceServerException as error:
        return str(error)
    assert found is not None
    made = found.as_numpy("y")
    assert made is not None
    assert made.shape == (1, 3)
    return "answered"


def test_all_models_are_answered_though_memory_holds_a_third_of_them(
    served: tuple[ServerState, Path],
) -> None:
    server, folder = served
    rng = np.random.default_rng(0)
    order = rng.choice(MODELS, size=120, p=np.array(zipf(MODELS, 1.0))).tolist()
    with grpc_client.InferenceServerClient(server.grpc_url) as client:
        with ThreadPoolExecutor(3) as threads:
            outcomes = list(threads.map(partial(ask, client), order))
        refused = Counter(text for text in outcomes if text != "answered")
        assert all("deadline cannot be met" in text for text in refused), refused
        assert sum(refused.values()) < len(order) // 10
        # a deadline that a load alone exceeds: refused, with when it could have been answered
        cold = ask(client, MODELS - 1, 20_000)
        assert "deadline 20.0 ms after arrival, best possible finish" in cold
    found = status(folder)
    loads = {key.split("/")[0]: n for key, n in found["counters"]["stage_loads"].items()}
    on_demand = {m.name for m, _, one, _ in planned().placed_stages() if one.load_us is not None}
    assert len(on_demand) == 10
    assert loads.keys() <= on_demand
    assert sum(loads.values()) > len(loads)  # some were evicted and came back
    assert found["workers"]["up"] == GPUS
    assert found["counters"]["batches_failed"] == 0
