"""One model in two sizes on a real Triton: both served, a third refused, over gRPC and HTTP."""

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from flows.quickstart.load_process import LoadRequest, LoadResult, run_load
from flows.release.rollout.change import change_plan
from flows.release.rollout.outcomes import read_outcomes
from flows.release.server.admin import start, stop
from flows.release.server.running import ServerState
from tests.ports import free_ports
from tests.triton_backend.serving import served_applications
from tests.triton_backend.serving.one_name.sized_plans import NAME, SIZES, sized_plan
from tests.triton_backend.serving.served_applications import application, with_applications
from tests.triton_backend.serving.small_plans import BATCH
from tests.triton_backend.serving.system import wait_for
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.front.quotas import BURST_REQUESTS

pytestmark = pytest.mark.slow
PATIENT_US = 3_000_000  # a batch that is not full waits for company until it is nearly over
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerState]:
    folder = tmp_path_factory.mktemp("sizes") / "serve"
    http, grpc, metrics = free_ports(3)
    options = ServeOptions(quotas={NAME: {"shop": 0.001}}, over_quota="refused")
    render_repository(folder, sized_plan(), options)
    try:
        yield start(folder, Endpoints(http=http, grpc=grpc, metrics=metrics))
    finally:
        stop(folder)


def answered(module: Any, url: str, name: str, tensors: tuple[str, str], *shape: int) -> Any:
    """The one output of a model or application, of ones in its input."""
    given = module.InferInput(tensors[0], list(shape), "FP32")
    given.set_data_from_numpy(np.ones(shape, np.float32))
    own = {"channel_args": OWN_CONNECTION} if module is grpc_client else {}
    client = module.InferenceServerClient(url, **own)
    try:
        return client.infer(name, [given], timeout=PATIENT_US).as_numpy(tensors[1])
    finally:
        client.close()


def answer(module: Any, url: str, *shape: int, model: str = NAME) -> tuple[int, ...]:
    return answered(module, url, model, ("x", "y"), *shape).shape


@pytest.mark.parametrize(
    ("module", "status"), [(grpc_client, "StatusCode.INVALID_ARGUMENT"), (http_client, "400")]
)
def test_two_sizes_are_served_and_a_third_is_refused_with_the_list(
    served: ServerState, module: Any, status: str
) -> None:
    url = served.grpc_url if module is grpc_client else served.http_url
    assert answer(module, url, 1, 3, 32) == (1, 8)
    assert answer(module, url, 2, 3, 64) == (2, 16)
    with pytest.raises(InferenceServerException) as refused:
        answer(module, url, 1, 3, 48)
    assert refused.value.status() == status
    said = "model 'reader': x=3x48 is none of the sizes served: x=3x32; x=3x64"
    assert refused.value.message() == said


def test_a_quota_holds_for_all_sizes_together(served: ServerState) -> None:
    told = r"model 'reader@3x\d+': client 'shop' is over its quota"
    forms = (
        (grpc_client, served.grpc_url, "parameters", "StatusCode.UNAVAILABLE"),
        (http_client, served.http_url, "headers", "503"),
    )
    for module, url, form, status in forms:
        client = module.InferenceServerClient(url)
        refused: list[InferenceServerException] = []
        try:
            for number in range(BURST_REQUESTS // 2 + 1):
                shape = (1, 3, 32 + 32 * (number % 2))
                given = module.InferInput("x", list(shape), "FP32")
                given.set_data_from_numpy(np.ones(shape, np.float32))
                try:
                    client.infer(NAME, [given], **{form: {"poolpipe-client": "shop"}})
                except InferenceServerException as error:
                    refused.append(error)
        finally:
            client.close()
        # Half of the burst by each protocol, and the second one's last is beyond it.
        assert len(refused) == (0 if module is grpc_client else 2)
        assert [one.message() for one in refused if not re.fullmatch(told, one.message())] == []
        assert all(one.status() == status for one in refused)


def test_load_and_metrics_are_by_size(served: ServerState, tmp_path: Path) -> None:
    before = read_outcomes(served.metrics_urls)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(sized_plan().to_dict()))
    request = LoadRequest(url=served.grpc_url, plan=path, duration_s=2.0, load_factor=0.2)
    found = LoadResult.from_document(run_load(request))
    assert set(found.models) == set(SIZES)
    assert all(one.failed == 0 and one.offered > 0 for one in found.models.values())

    def counted() -> bool:
        after = read_outcomes(served.metrics_urls)
        return all(
            after[name].since(before[name]).ended >= found.models[name].offered for name in SIZES
        )

    wait_for(counted)


class Load:
    """Requests of one size over gRPC, one after the other, until the end of the block."""

    def __init__(self, url: str, *shape: int) -> None:
        self.answers = 0
        self.errors: list[str] = []
        self._url, self._shape = url, shape
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:  # each by a connection of its own, which any gateway may accept
                answer(grpc_client, self._url, *self._shape)
                self.answers += 1
            except InferenceServerException as error:
                self.errors.append(str(error))

    def __enter__(self) -> Self:
        self._thread.start()
        wait_for(lambda: self.answers > 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()


def shapes_in_metadata(served: ServerState) -> tuple[list[int], list[int]]:
    with http_client.InferenceServerClient(served.http_url) as client:
        found: dict[str, Any] = client.get_model_metadata(NAME)
    return found["inputs"][0]["shape"], found["outputs"][0]["shape"]


def test_sizes_come_and_go_under_load_without_a_lost_request(served: ServerState) -> None:
    open_shapes = shapes_in_metadata(served)
    with Load(served.grpc_url, BATCH, 3, 64) as load:
        change_plan(served.folder, sized_plan((32, 64, 128), "more-sizes"))
        assert answer(http_client, served.http_url, BATCH, 3, 128) == (BATCH, 32)
        change_plan(served.folder, sized_plan((64,), "one-size"))
        with pytest.raises(InferenceServerException) as refused:
            answer(http_client, served.http_url, 1, 3, 32)
        change_plan(served.folder, sized_plan(plan_id="as-before"))
        assert answer(http_client, served.http_url, BATCH, 3, 32) == (BATCH, 8)
    said = "model 'reader': x=3x32 is none of the sizes served: x=3x64"
    assert refused.value.message() == said
    assert load.errors == []
    assert shapes_in_metadata(served) == open_shapes == ([-1, -1, -1], [-1, -1])


def test_a_model_with_sizes_comes_and_goes_beside_another(served: ServerState) -> None:
    change_plan(served.folder, sized_plan(plan_id="both", names=(NAME, "second")))
    for model in (NAME, "second"):
        assert answer(http_client, served.http_url, BATCH, 3, 32, model=model) == (BATCH, 8)
        assert answer(grpc_client, served.grpc_url, BATCH, 3, 64, model=model) == (BATCH, 16)
    change_plan(served.folder, sized_plan(plan_id="one-again"))
    assert answer(http_client, served.http_url, BATCH, 3, 32) == (BATCH, 8)
    with pytest.raises(InferenceServerException, match="second"):
        answer(http_client, served.http_url, 1, 3, 32, model="second")


def test_a_module_of_an_application_runs_one_size(served: ServerState) -> None:
    """It answers as that size does by itself, whose other requests go on."""
    read = served_applications.module("read", model=SIZES[1], inputs={"x": "request.page"})
    graph = application("pages", read, outputs={"words": "read.y"})
    plan = with_applications(sized_plan(plan_id="with-application"), graph, alone=SIZES)
    change_plan(served.folder, plan)
    for client, url in ((grpc_client, served.grpc_url), (http_client, served.http_url)):
        alone = answered(client, url, NAME, ("x", "y"), BATCH, 3, 64)
        found = answered(client, url, "pages", ("page", "words"), BATCH, 3, 64)
        np.testing.assert_array_equal(found, alone)
        assert answer(client, url, BATCH, 3, 32) == (BATCH, 8)
        with pytest.raises(InferenceServerException) as refused:
            answered(client, url, "pages", ("page", "words"), 1, 3, 32)
        assert "'page'" in refused.value.message()
        assert "\n" not in refused.value.message()
    change_plan(served.folder, sized_plan(plan_id="alone-again"))
    assert answer(http_client, served.http_url, BATCH, 3, 64) == (BATCH, 16)


def test_two_gateways_serve_sizes_and_change_them_under_load(tmp_path: Path) -> None:
    folder = tmp_path / "serve"
    render_repository(folder, sized_plan(), ServeOptions(gateways=2))
    http, grpc, metrics, _ = free_ports(4)  # the last is for the metrics of the second gateway
    try:
        two = start(folder, Endpoints(http=http, grpc=grpc, metrics=metrics))
        with Load(two.grpc_url, BATCH, 3, 64) as load:
            change_plan(folder, sized_plan((64, 128), "others"))
            for _ in range(20):
                assert answer(grpc_client, two.grpc_url, BATCH, 3, 128) == (BATCH, 32)
            with pytest.raises(InferenceServerException, match="sizes served: x=3x64; x=3x128"):
                answer(grpc_client, two.grpc_url, 1, 3, 32)
        assert load.errors == []

        def counted() -> bool:
            found = read_outcomes(two.metrics_urls).get("reader@3x128")
            return found is not None and found.ended >= 20

        wait_for(counted)
    finally:
        stop(folder)
