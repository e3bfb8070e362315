"""Python steps on a real Triton server.

Prepared, profiled, planned and served from a workload.yaml.
"""

import contextlib
import io
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from numpy.typing import NDArray
from PIL import Image
from tritonclient.utils import InferenceServerException

from flows.device_class import DeviceClass
from flows.files import read_workload
from flows.planning.registry import PlanOptions
from flows.planning.stored_plans import plan_step
from flows.preparation.building.onnxruntime import OnnxRuntimeClass
from flows.preparation.profiling.measure import MeasureLimits
from flows.preparation.profiling.model_profile import profile_step
from flows.preparation.splitting.stored_split import split_step
from flows.preparation.steps.given import read_steps
from flows.preparation.steps.prepare import prepare_steps
from flows.release.artifacts import attach_artifacts
from flows.release.rollout.change import change_plan
from flows.release.server.admin import start, stop
from flows.release.server.running import ServerState
from flows.state import ProjectState
from flows.workspace import Workspace
from tests.flows.release.server.test_running import server_ports
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.plan import Plan
from triton_backend.runtimes.python_step.pictures import decode
from triton_backend.serve_folder.repository import node_model, render_repository
from triton_backend.serve_folder.settings import ServeOptions

pytestmark = pytest.mark.slow
T = TypeVar("T")
SIDE, CLASSES, MOST = 16, 5, 4
MAX_BYTES, MAX_PIXELS = 200_000, 1_000_000
CLASS = "CPU"
# A batch of pictures that is not full is kept until the time of its oldest request is nearly over.
PATIENT_US = 3_000_000
WORKLOAD = f"""
steps:
  - name: decode
    python: triton_backend.runtimes.python_step.pictures:decode
    package: triton_backend
    inputs: {{image: BYTES}}
    max_bytes: {{image: {MAX_BYTES}}}
    outputs: {{pixels: FP32 3x{SIDE}x{SIDE}}}
    arguments: {{height: {SIDE}, width: {SIDE}, max_pixels: {MAX_PIXELS}}}
    samples: photos
    max_batch: 4
  - name: bright
    python: shop_steps.rows:bright
    package: ./shop_steps
    inputs: {{pixels: FP32 3x{SIDE}x{SIDE}}}
    outputs: {{piece: FP32 3x{SIDE}x{SIDE}, piece_rows: INT64}}
    max_batch: 1
  - name: label
    python: shop_steps.words:label
    package: ./shop_steps
    inputs: {{scores: FP32 {CLASSES}}}
    outputs: {{word: BYTES}}
    max_bytes: {{word: 40}}
    max_batch: 1
  - name: shout
    python: shop_steps.words:shout
    package: ./shop_steps
    inputs: {{image: BYTES}}
    max_bytes: {{image: 20, loud: 20}}
    outputs: {{loud: BYTES}}
    samples: quiet
    max_batch: 1
models:
  - {{name: shout, slo_ms: 500, rate_rps: 2}}
  - {{name: label, slo_ms: 500, rate_rps: 2}}
  - name: photo
    model: net
    before: decode
    after: label
    slo_ms: 2000
    rate_rps: 4
    outputs: {{word: after.word, scores: model.scores}}
applications:
  - name: pieces
    slo_ms: 2000
    rate_rps: 2
    modules:
      - {{name: decode, model: decode, inputs: {{image: request.image}}}}
      - {{name: bright, model: bright, inputs: {{pixels: decode.pixels}}}}
      - name: net
        model: net
        rows_per_request: 2
        max_rows: {MOST}
        inputs: {{pixels: bright.piece}}
    outputs: {{scores: net.scores, found: bright.piece_rows}}
"""
ROWS = '''
"""A picture gives as many rows as its mean says."""
import numpy as np


def bright(pixels):
    counts = [int(round(float(picture.mean()) * 5)) for picture in pixels]
    pairs = zip(pixels, counts)
    return [np.stack([p / (k + 1) for k in range(n)]) if n else p[:0] for p, n in pairs]
'''
WORDS = """
from shop_steps.names import NAMES


def label(scores):
    return [f"{NAMES[int(row.argmax())]} {float(row.max()):.3f}" for row in scores]
"""
SHOUT = """

def shout(image):
    if any(text == b"silence" for text in image):
        raise ValueError("nothing to shout")
    return [text.upper() for text in image]
"""
NAMES = ("ape", "bee", "cat", "dog", "elk")


def write_net(path: Path) -> None:
    rng = np.random.default_rng(2)
    weights = [
        onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 4, name)
        for name, shape in (("a", (6, 3, 3, 3)), ("b", (CLASSES, 6, 3, 3)))
    ]
    nodes = [
        onnx.helper.make_node("Conv", ["pixels", "a"], ["c"]),
        onnx.helper.make_node("Relu", ["c"], ["d"]),
        onnx.helper.make_node("Conv", ["d", "b"], ["e"]),
        onnx.helper.make_node("GlobalAveragePool", ["e"], ["f"]),
        onnx.helper.make_node("Flatten", ["f"], ["scores"]),
    ]
    sides = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", *shape])
        for name, shape in (("pixels", (3, SIDE, SIDE)), ("scores", (CLASSES,)))
    ]
    graph = onnx.helper.make_graph(nodes, "net", sides[:1], sides[1:], weights)
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), path)


def photo(seed: int, kind: str = "JPEG", level: float | None = None) -> bytes:
    """A picture of this mean brightness, or of any."""
    rng = np.random.default_rng(seed)
    mean = rng.random() if level is None else level
    pixels = np.clip(rng.normal(255 * mean, 20, (40, 50, 3)), 0, 255).astype(np.uint8)
    with io.BytesIO() as file:
        Image.fromarray(pixels).save(file, kind)
        return file.getvalue()


class Project:
    """A folder with a workload, made a plan of real artifacts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "workload.yaml").write_text(WORKLOAD)
        package = folder / "shop_steps"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "rows.py").write_text(ROWS)
        (package / "words.py").write_text(WORDS + SHOUT)
        (package / "names.py").write_text(f"NAMES = {NAMES}")
        (folder / "photos").mkdir()
        for seed in range(4):
            (folder / "photos" / f"{seed}.jpg").write_bytes(photo(seed))
        (folder / "quiet").mkdir()
        (folder / "quiet" / "word.txt").write_bytes(b"word")
        write_net(folder / "net.onnx")
        self.work = Workspace(
            state=ProjectState(home=folder / "state"), warehouse=folder / "w.duckdb"
        )
        split_step(self.work, folder / "net.onnx", "net", blocks=2, max_batch=1)

    def plan(self) -> Plan:
        """Prepare, profile, plan and build what the workload names."""
        device = DeviceClass(name=CLASS, cores=(min(os.sched_getaffinity(0)),))
        steps = prepare_steps(self.work, list(read_steps(self.folder / "workload.yaml").values()))
        net = split_step(self.work, self.folder / "net.onnx", "net", blocks=2, max_batch=1)
        limits = MeasureLimits(min_runs=3, max_seconds=0.05)
        for split in (net, *steps):
            profile_step(self.work, split, [OnnxRuntimeClass(device=device)], limits=limits)
        cluster = Cluster.from_dict(
            {
                "name": "here",
                "gpu_classes": {CLASS: {"hourly_cost": 1.0}},
                "nodes": [{"count": 1, "gpu_class": CLASS, "gpus": 5, "nic_gbps": 10}],
            }
        )
        workload = read_workload(self.folder / "workload.yaml")
        options = PlanOptions(objective="cost", time_limit_s=20)
        planned = plan_step(self.work, cluster, workload, options, robust=False).plan
        return attach_artifacts(self.work, planned, {CLASS: device})


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def state(project: Project) -> Iterator[ServerState]:
    folder = project.folder / "serve"
    options = ServeOptions(artifacts=project.work.state.artifacts, guard_fraction=0.4)
    render_repository(folder, project.plan(), options)
    running = start(folder, server_ports())
    yield running
    stop(folder)
    assert not list(Path("/dev/shm").glob(f"poolpipe-{running.data['instance']}*"))


class Client:
    """A stock client, whose texts are BYTES."""

    def __init__(self, state: ServerState, kind: str) -> None:
        self._alike = partial(Client, state, kind)
        self._module: Any = grpc_client if kind == "grpc" else http_client
        url = state.grpc_url if kind == "grpc" else state.http_url
        self._client = self._module.InferenceServerClient(url)
        self.close = self._client.close

    def infer(self, model: str, *images: bytes) -> Any:
        given = self._module.InferInput("image", [len(images)], "BYTES")
        given.set_data_from_numpy(np.array(images, np.object_))
        return self._client.infer(model, [given], timeout=PATIENT_US)

    def each(self, ask: Callable[["Client", bytes], T], images: Sequence[bytes]) -> list[T]:
        """The result of each picture, all of them sent at once by clients of their own."""

        def alone(image: bytes) -> T:
            with contextlib.closing(self._alike()) as client:
                return ask(client, image)

        with ThreadPoolExecutor(len(images)) as threads:
            return list(threads.map(alone, images))


@pytest.fixture(params=["grpc", "http"])
def client(request: pytest.FixtureRequest, state: ServerState) -> Iterator[Client]:
    made = Client(state, request.param)
    yield made
    made.close()


def scores_of(project: Project, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    session = onnxruntime.InferenceSession(str(project.folder / "net.onnx"))
    return np.asarray(session.run(None, {"pixels": pixels})[0])


def pixels_of(data: bytes) -> NDArray[np.float32]:
    return decode([data], height=SIDE, width=SIDE)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_picture_comes_back_as_a_word(project: Project, client: Client, kind: str) -> None:
    pictures = [photo(seed, kind) for seed in range(5)]
    answers = client.each(lambda one, data: one.infer("photo", data), pictures)
    for data, answer in zip(pictures, answers, strict=True):
        wanted = scores_of(project, pixels_of(data))
        assert np.allclose(answer.as_numpy("scores"), wanted, rtol=1e-4, atol=1e-6)
        word = f"{NAMES[int(wanted.argmax())]} {float(wanted.max()):.3f}"
        assert answer.as_numpy("word").tolist() == [word.encode()]


def test_a_picture_gives_as_many_rows_as_it_has(project: Project, client: Client) -> None:
    pictures = [photo(7, level=level) for level in (0.0, 0.1, 0.3, 0.55, 1.0)]
    answers = client.each(lambda one, data: one.infer("pieces", data), pictures)
    for data, answer in zip(pictures, answers, strict=True):
        pixels = pixels_of(data)
        rows = min(round(float(pixels.mean()) * 5), MOST)
        assert answer.as_numpy("found").tolist() == [rows]
        pieces = [scores_of(project, pixels / np.float32(k + 1)) for k in range(rows)]
        wanted = np.concatenate(pieces) if pieces else np.empty((0, CLASSES), np.float32)
        assert np.allclose(answer.as_numpy("scores"), wanted, rtol=1e-4, atol=1e-6)


def test_a_step_may_be_served_alone(client: Client) -> None:
    answer = client.infer("shout", b"hear")
    assert answer.as_numpy("loud").tolist() == [b"HEAR"]
    assert "model 'shout': nothing to shout" in refused_with(client, b"silence", model="shout")


def test_a_step_may_be_served_alone_and_in_an_application(state: ServerState) -> None:
    made: Any = grpc_client.InferenceServerClient(state.grpc_url)
    given = grpc_client.InferInput("scores", [1, CLASSES], "FP32")
    given.set_data_from_numpy(np.arange(CLASSES, dtype=np.float32)[None])
    word = made.infer("label", [given]).as_numpy("word")
    made.close()
    assert word.tolist() == [f"{NAMES[-1]} 4.000".encode()]


def refused_with(client: Client, *images: bytes, model: str = "photo") -> str:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, *images)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_what_is_no_picture_is_refused_in_one_line(client: Client) -> None:
    for text in client.each(refused_with, (b"", b"no picture", b"\x00" * 1_000, photo(1)[:300])):
        assert "[StatusCode.INVALID_ARGUMENT]" in text or "[400]" in text
        assert "module 'before': " in text


def test_more_bytes_or_pixels_than_allowed_are_refused_with_the_limit(client: Client) -> None:
    assert f"at most {MAX_BYTES} are taken (max_bytes)" in refused_with(client, b"x" * 200_001)
    with io.BytesIO() as file:
        Image.new("RGB", (10_000, 100)).save(file, "PNG")
        most = file.getvalue()
    with io.BytesIO() as file:
        Image.new("1", (10_000, 10_000)).save(file, "PNG")
        many = file.getvalue()
    assert len(many) <= MAX_BYTES
    text = refused_with(client, many)
    assert f"10000 x 10000 pixels, at most {MAX_PIXELS} are decoded" in text
    assert client.infer("photo", most).as_numpy("word").shape == (1,)


def test_a_picture_may_be_the_body(project: Project, state: ServerState) -> None:
    data = photo(3)

    def ask(body: bytes) -> tuple[int, bytes]:
        headers = {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": "0",
        }
        url = f"http://{state.http_url}/v2/models/photo/infer"
        request = urllib.request.Request(url, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    word = NAMES[int(scores_of(project, pixels_of(data)).argmax())]
    code, body = ask(data)
    assert code == 200
    assert word.encode() in body
    assert ask(b"x" * 100)[0] == 400


def test_bad_pictures_cost_good_ones_nothing(project: Project, state: ServerState) -> None:
    good = [photo(seed) for seed in range(8)]
    wanted = [scores_of(project, pixels_of(data)) for data in good]
    rng = np.random.default_rng(4)
    bad = [rng.bytes(int(rng.integers(0, 2_000))) for _ in range(40)]

    def ask(number: int) -> bool:
        made = Client(state, "grpc" if number % 2 else "http")
        try:
            if number % 3:
                with pytest.raises(InferenceServerException, match="no picture"):
                    made.infer("photo", bad[number % len(bad)])
                return True
            answer = made.infer("photo", good[number % len(good)])
            return np.allclose(
                answer.as_numpy("scores"), wanted[number % len(good)], rtol=1e-4, atol=1e-6
            )
        finally:
            made.close()

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(ask, range(120)))


def test_a_worker_that_was_killed_runs_its_step_again(
    project: Project, state: ServerState, client: Client
) -> None:
    pids = [int(worker["pid"]) for worker in state.ask(node_model(CLASS), {})["workers"]]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    data = photo(5)
    wanted = scores_of(project, pixels_of(data))

    def answers() -> bool:
        try:
            answer = client.infer("photo", data)
        except InferenceServerException:
            return False
        return np.allclose(answer.as_numpy("scores"), wanted, rtol=1e-4, atol=1e-6)

    wait_for(answers)
    now = [int(worker["pid"]) for worker in state.ask(node_model(CLASS), {})["workers"]]
    assert not set(pids) & set(now)


def test_a_package_that_changed_is_rolled_out(project: Project, state: ServerState) -> None:
    data = photo(6)
    best = int(scores_of(project, pixels_of(data)).argmax())
    client = Client(state, "grpc")
    before = client.infer("photo", data).as_numpy("word").tolist()[0].split()[0]
    names = [name.upper() for name in NAMES]
    (project.folder / "shop_steps" / "names.py").write_text(f"NAMES = {names}")
    change_plan(state.folder, project.plan())
    after = client.infer("photo", data).as_numpy("word").tolist()[0].split()[0]
    client.close()
    assert (before, after) == (NAMES[best].encode(), names[best].encode())
