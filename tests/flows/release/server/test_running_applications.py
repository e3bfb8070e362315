"""Applications on a real Triton server, asked with the stock clients."""

import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from flows.device_class import DeviceClass
from flows.operations.traces.export import export
from flows.operations.traces.otlp import Receiver
from flows.operations.traces.reading import TraceReader
from flows.preparation.building.onnxruntime import build_stage
from flows.preparation.splitting import extract_stage, split_model
from flows.release.rollout.change import change_plan
from flows.release.rollout.generations import plan_in_force
from flows.release.server.admin import start, stop
from flows.release.server.running import ServerState
from flows.state import ProjectState
from flows.workspace import Workspace
from tests.fakes.applications import with_applications
from tests.fakes.otlp_receiver import otlp_receiver
from tests.fakes.plans import HandModel, HandStage
from tests.flows.preparation.splitting.exported_models import (
    MOST,
    SIZE,
    one_by_one,
    write_exported,
    write_looped,
)
from tests.flows.release.server.test_running import Client, server_ports
from tests.triton_backend.serving.served_applications import (
    DROPPED,
    OneAfterTheOther,
    application,
    module,
    onnx_plan,
)
from tests.triton_backend.serving.small_plans import BATCH, model, stage
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.applications import Application, ApplicationPlan
from triton_backend.serve_folder.repository import CONTROL_MODEL, node_model, render_repository
from triton_backend.serve_folder.settings import ServeOptions

pytestmark = pytest.mark.slow
NAMES = ("crops", "diamond", "alone")
Asked = tuple[str, NDArray[np.float32]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[ServerState]:
    folder = tmp_path_factory.mktemp("serve")
    models, found = exported(root)
    # A module's rows seldom fill a batch, which then waits for others for a fifth of its time.
    options = ServeOptions(artifacts=root, guard_fraction=0.4)
    render_repository(folder, onnx_plan(root, models, [found]), options)
    running = start(folder, server_ports())
    yield running
    stop(folder)
    assert not list(Path("/dev/shm").glob(f"poolpipe-{running.data['instance']}*"))


def exported(root: Path) -> tuple[list[HandModel], Application]:
    """A detector cut in two before its choice of boxes, and a model that loops over boxes.

    Both are built from files as exporters write them.
    """
    files = root / "finder.onnx", root / "looped.onnx"
    write_exported(files[0], around_one=True)
    write_looped(files[1])
    device = DeviceClass(name="CPU", cores=(min(os.sched_getaffinity(0)),))
    models: list[HandModel] = []
    for file, cuts in zip(files, ((0, 2, 3), (0, 1)), strict=True):
        split = split_model(
            file, name=file.stem, out=root / "splits", blocks=cuts[-1], max_batch=BATCH
        )
        stages: list[HandStage] = []
        for number, (first, last) in enumerate(pairwise(cuts)):
            built = build_stage(
                extract_stage(split, first, last),
                split.stage_inputs(first),
                split.stage_outputs(last),
                device_class=device,
                max_batch=BATCH,
                root=root,
            )
            place = ("FAST", "SLOW")[number]
            boundary = None if last == split.blocks else split.boundaries[last - 1]
            stages.append(
                stage((first, last), place, number, artifact=built.key, boundary=boundary)
            )
        models.append(model(split.name, tuple(stages), inputs=split.inputs, outputs=split.outputs))
    find = module("find", model="finder", inputs={"image": "request.image"})
    walk = module(
        "walk",
        "find",
        model="looped",
        rows_per_request=2.0,
        max_rows=MOST,
        inputs={"x": "find.boxes"},
    )
    outputs = {"boxes": "find.boxes", "walked": "walk.y", "found": "find.rows"}
    return models, application("found", find, walk, outputs=outputs)


def requests(count: int, seed: int) -> list[Asked]:
    rng = np.random.default_rng(seed)
    return [
        (NAMES[i % len(NAMES)], rng.integers(0, 5, (1 + i % 4, 3)).astype(np.float32))
        for i in range(count)
    ]


class Clients:
    """Eight threads with a client each: a batch that is not full waits for company."""

    def __init__(self, state: ServerState, kind: str) -> None:
        self._state, self._kind = state, kind
        self._threads = ThreadPoolExecutor(8)

    def ask(self, name: str, x: NDArray[np.float32]) -> dict[str, NDArray[np.generic]] | None:
        """The answer; None where it is refused, or where its front is just being reloaded."""
        client = Client(self._state, self._kind)
        try:
            answer = client.infer(name, {"x": x}, timeout=3_000_000)
        except InferenceServerException as error:
            status = str(error.status())
            if "UNAVAILABLE" in status or "503" in status or "no available versions" in str(error):
                return None
            raise
        finally:
            client.close()
        outputs = {
            "crops": ("found", "y", DROPPED),
            "diamond": ("all", "half"),
            "alone": ("found", "crops"),
        }[name]
        return {output: answer.as_numpy(output) for output in outputs}

    def begin(self, asked: list[Asked]) -> list[Future[dict[str, NDArray[np.generic]] | None]]:
        return [self._threads.submit(self.ask, *one) for one in asked]


def served(root: Path, asked: list[Asked], clients: Clients) -> int:
    """How many of the requests were answered; every answer is checked."""
    return check(root, asked, clients.begin(asked))


def check(
    root: Path, asked: list[Asked], begun: list[Future[dict[str, NDArray[np.generic]] | None]]
) -> int:
    chain, count = OneAfterTheOther(root), 0
    for (name, x), one in zip(asked, begun, strict=True):
        answer = one.result(timeout=60)
        if answer is not None:
            count += 1
            dropped = name == "crops" and bool(answer[DROPPED][0])
            for output, wanted in chain.answer(name, x).items():
                if dropped and output != "found":
                    assert output == DROPPED or not len(answer[output])
                    continue
                np.testing.assert_array_equal(answer[output], wanted)
    return count


@pytest.mark.parametrize("kind", ["grpc", "http"])
def test_every_answer_is_that_of_the_models_one_after_the_other(
    state: ServerState, root: Path, kind: str
) -> None:
    asked = requests(24, seed=1)
    assert served(root, asked, Clients(state, kind)) == len(asked)


def test_a_detector_cut_before_its_choice_of_boxes_answers_as_its_file(
    state: ServerState, root: Path
) -> None:
    rng = np.random.default_rng(8)
    asked = [
        (rng.standard_normal((samples, 3, SIZE, SIZE)) * rng.uniform(0.3, 2.0)).astype(np.float32)
        for samples in (1, 3, 4, 2)
    ]

    def ask(images: NDArray[np.float32]) -> Any:
        with closing(Client(state, "grpc")) as client:
            return client.infer("found", {"image": images}, timeout=3_000_000)

    with ThreadPoolExecutor(len(asked)) as threads:
        answers = list(threads.map(ask, asked))
    seen = set[int]()
    for images, answer in zip(asked, answers, strict=True):
        wanted = one_by_one(root / "finder.onnx", images)
        np.testing.assert_array_equal(answer.as_numpy("found"), wanted["rows"])
        np.testing.assert_allclose(answer.as_numpy("boxes"), wanted["boxes"], rtol=1e-4, atol=1e-4)
        walked = answer.as_numpy("walked")
        assert len(walked) == len(wanted["boxes"])
        if len(walked):
            given = answer.as_numpy("boxes")
            steps = one_by_one(root / "looped.onnx", given)["y"]
            np.testing.assert_allclose(walked, steps, rtol=1e-4)
        seen |= {*wanted["rows"].tolist()}
    assert len(seen) > 1  # pictures have more boxes or fewer


def test_a_traced_job_has_a_span_for_every_module(state: ServerState, tmp_path: Path) -> None:
    work = Workspace(state=ProjectState(home=tmp_path), warehouse=tmp_path / "w.duckdb")
    with closing(Client(state, "http")) as client, otlp_receiver() as received:
        parent = f"00-{'c' * 32}-00f067aa0ba902b7-01"
        x = np.ones((4, 3), np.float32)
        client.infer("diamond", {"x": x}, timeout=3_000_000, headers={"traceparent": parent})

        def told() -> bool:
            received.spans.clear()
            receiver = Receiver(received.url, patience_s=5.0)
            export(TraceReader(work, state.folder), receiver)
            receiver.close()
            return received.names("c" * 32)[-1:] == ["answer"]

        wait_for(told)
    (root,) = received.roots("c" * 32)
    children = received.children(root)
    graph = next(
        a for a in plan_in_force(state.folder).applications if a.name == "diamond"
    ).application
    modules = {f"module {each.name}" for each in graph.modules}
    assert {each.name for each in children} == {"front", "answer", *modules}
    for each in children:
        assert root.start_time_unix_nano <= each.start_time_unix_nano
        assert each.end_time_unix_nano <= root.end_time_unix_nano
        if each.name in modules:
            below = [span.name for span in received.children(each)]
            assert below[0] == "wait"
            assert "vgpu 0" in below


def test_metrics_tell_modules_apart_and_what_passes_the_front(
    state: ServerState, root: Path
) -> None:
    assert served(root, requests(2, seed=2), Clients(state, "grpc")) == 2

    def there() -> bool:
        with urllib.request.urlopen(state.metrics_url) as answer:
            text = answer.read().decode()
        # The scheduler's have a label more once its standby has taken over.
        return all(
            re.search(pattern, text)
            for pattern in (
                r'poolpipe_front_bytes_total\{direction="in",model="diamond"',
                r'poolpipe_module_rows_total\{application="crops",module="classify"',
                r'poolpipe_module_seconds_count\{application="crops",module="classify".*\} [1-9]',
                r"poolpipe_jobs(\{.*\})? 0",
                r"poolpipe_retained_output_slots(\{.*\})? 0",
            )
        )

    wait_for(there)


@pytest.mark.parametrize("part", ["worker", "diamond", CONTROL_MODEL, node_model("FAST")])
def test_a_killed_part_costs_no_wrong_answer_and_comes_back(
    state: ServerState, root: Path, part: str
) -> None:
    clients, asked = Clients(state, "grpc"), requests(40, seed=3)
    if part == "worker":
        pid = int(state.ask(node_model("FAST"), {})["workers"][0]["pid"])
    else:
        pid = int((state.folder / "pids" / part).read_text().split()[0])
    others = [one for one in asked if one[0] != part]  # a dead front's requests are never answered
    begun = clients.begin(others)
    os.kill(pid, signal.SIGKILL)
    check(root, others, begun)
    last = requests(4, seed=4)
    wait_for(lambda: served(root, last, clients) == len(last))


def _turned_round(planned: ApplicationPlan) -> ApplicationPlan:
    """The same application with its outputs in the opposite order."""
    outputs = dict(tuple(planned.application.outputs.items())[::-1])
    return replace(planned, application=replace(planned.application, outputs=outputs))


def test_plans_follow_one_another_without_a_lost_job(state: ServerState, root: Path) -> None:
    """Answers are named; the next plan lists them in another order."""
    clients, asked = Clients(state, "grpc"), requests(48, seed=5)
    begun = clients.begin(asked)
    before = plan_in_force(state.folder)
    following = with_applications(
        replace(before, plan_id="next"), *map(_turned_round, before.applications)
    )
    assert change_plan(state.folder, following).plan_id == "next"
    assert check(root, asked, begun) == len(asked)
    assert served(root, asked[:8], clients) == len(asked[:8])
