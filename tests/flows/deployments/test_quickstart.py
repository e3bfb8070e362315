"""The main job from end to end: a real model, a real Prefect server, a real Triton."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
import tritonclient.grpc as grpc_client
from onnx import helper

from flows.deployments import quickstart
from flows.quickstart.ocr import ReaderHere, write_models
from flows.quickstart.pages import draw_page
from flows.state import ProjectState
from flows.workspace import Workspace
from tests.fakes.plans import two_stages
from tests.flows.deployments.joined import AUTH
from tests.flows.deployments.prefect_database import give_database
from tests.flows.preparation.splitting import tiny_models
from tests.flows.preparation.splitting.tiny_models import residual_net
from tests.ports import free_ports
from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.state import boot_id, read_state_file, write_state_file

pytestmark = pytest.mark.slow
POOLPIPE = Path(sys.executable).with_name("poolpipe")
# Few latencies to measure, each of two runs.
FEW = """
from flows.cli.main import main
from flows.preparation.profiling.measure import MeasureLimits
from flows.quickstart import example_project as small
small.BLOCKS, small.MAX_BATCH = 4, 2
small.LIMITS = MeasureLimits(warm_up=1, min_runs=2, max_runs=2)
main()
"""
# Few latencies to measure, of models that are hardly slowed down, and a plan within a second.
SMALLEST = """
from flows.cli.main import main
from flows.preparation.profiling.measure import MeasureLimits
from flows.quickstart import example_project as small
small.APPLICATION_BLOCKS, small.MAX_BATCH, small.FAST_STRETCH, small.SLOW_STRETCH = 1, 2, 1.0, 2.0
small.LIMITS = MeasureLimits(warm_up=1, min_runs=2, max_runs=2)
main()
"""
# Models in one piece, hardly slowed down, few samples, with an SLO that a busy machine keeps.
SMALLEST_OCR = """
from flows.cli.main import main
from flows.preparation.profiling.measure import MeasureLimits
from flows.quickstart import example_project as small, ocr
small.OCR_BLOCKS, small.OCR_STRETCHES = dict.fromkeys(small.OCR_BLOCKS, 1), (1.0, 1.5)
ocr.PAGES, ocr.SAMPLE_PAGES, ocr.MOST_SAMPLES, small.APPLICATION_SLO_FACTOR = 2, 2, 4, 100
small.LIMITS = MeasureLimits(warm_up=1, min_runs=2, max_runs=2)
main()
"""


class Project:
    """A project of its own in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        give_database(folder / "state" / "prefect")
        self.ports = free_ports(3)
        self.model = residual_net(folder / "tiny.onnx")
        self.second = residual_net(folder / "second.onnx")

    def run(
        self,
        *arguments: str,
        poolpipe: tuple[str | Path, ...] = (POOLPIPE,),
        prefect_url: str | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """The `poolpipe` command, run in the project's folder.

        Its Prefect server is its own without one.
        """
        joined: dict[str, str] = {}
        if prefect_url is not None:
            joined = {"PREFECT_API_URL": prefect_url, "PREFECT_API_AUTH_STRING": AUTH}
        return subprocess.run(
            [*poolpipe, *arguments],
            cwd=self.folder,
            env={
                **os.environ,
                "POOLPIPE_HOME": str(self.folder / "state"),
                **joined,
            },
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def quickstart(self, *more: str, prefect_url: str | None = None) -> dict[str, Any]:
        """The object that `quickstart --json` prints."""
        own = [f"--model={self.model}", f"--model={self.second}", "--slo-ms=500"]
        own += ["--duration=1", "--load-factor=0.01"]
        own.append("--attainment-target=0")  # a busy machine does not decide
        own += self.port_options()
        few = (sys.executable, "-c", FEW)
        done = self.run("quickstart", "--json", *own, *more, poolpipe=few, prefect_url=prefect_url)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    def port_options(self) -> list[str]:
        """Where to serve."""
        names = ("--http-port", "--grpc-port", "--metrics-port")
        return [f"{name}={port}" for name, port in zip(names, self.ports, strict=True)]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def first(project: Project) -> dict[str, Any]:
    return project.quickstart()


def test_every_request_is_accounted_for_and_every_answer_is_right(first: dict[str, Any]) -> None:
    assert sorted(first["models"]) == ["second", "tiny"]
    for name, row in first["models"].items():
        assert row["offered"] > 0
        assert row["offered"] == row["served"] + row["late"] + row["dropped"] + row["failed"]
        assert row["checked"]["responses"] == row["served"] + row["late"] > 0
        assert row["checked"]["wrong"] == 0
        assert first["http"][name]["checked"]["wrong"] == 0


@pytest.fixture(scope="module")
def shared(project: Project, first: dict[str, Any], prefect_url: str) -> dict[str, Any]:
    """A second run in the same project, by another planner and with a Prefect server that runs."""
    del first
    return project.quickstart("--planner=subclusters", prefect_url=prefect_url)


def test_two_models_share_one_pool(
    project: Project, first: dict[str, Any], shared: dict[str, Any]
) -> None:
    plan = json.loads((project.folder / f"state/reports/plan-{shared['plan_id']}.json").read_text())
    assert plan["planner"] == "subclusters"
    assert len(plan["pools"]) == 1
    assert {model["policy"] for model in plan["models"]} == {"timeout"}
    assert shared["models"].keys() == first["models"].keys()
    for row in shared["models"].values():
        assert row["checked"]["responses"] == row["served"] + row["late"] > 0
        assert row["checked"]["wrong"] == 0


def test_an_application_gives_the_answers_of_its_models_one_after_the_other(
    tmp_path: Path, prefect_url: str
) -> None:
    project = Project(tmp_path)
    own = ("--application", "--duration=2", "--load-factor=0.05", "--attainment-target=0")
    done = project.run(
        *("quickstart", "--json", *own, *project.port_options()),
        poolpipe=(sys.executable, "-c", SMALLEST),
        prefect_url=prefect_url,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    for rows in (found["models"], found["http"]):
        assert list(rows) == ["traffic"]
        row = rows["traffic"]
        assert row["failed"] == 0, found["messages"]
        assert row["offered"] == row["served"] + row["late"] + row["dropped"] > 0
        assert row["checked"]["responses"] == row["served"] + row["late"] > 0
        assert row["checked"]["wrong"] == 0
    assert "traffic" in Path(found["report"]).read_text()


@pytest.mark.timeout(900)  # three trained models; a busy machine takes minutes for them
def test_a_page_is_read_as_the_package_reads_it(tmp_path: Path, prefect_url: str) -> None:
    pytest.importorskip("rapidocr_onnxruntime", reason="needs the extra `ocr`")
    project = Project(tmp_path)
    own = ("--application", "ocr", "--duration=3", "--load-factor=0.4", "--attainment-target=0")
    done = project.run(
        *("quickstart", "--json", "--keep-serving", *own, *project.port_options()),
        poolpipe=(sys.executable, "-c", SMALLEST_OCR),
        prefect_url=prefect_url,
    )
    try:
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads(done.stdout)
        for rows in (found["models"], found["http"]):
            assert list(rows) == ["ocr"]
            row = rows["ocr"]
            assert row["failed"] == 0, found["messages"]
            assert row["offered"] == row["served"] + row["late"] + row["dropped"] > 0
            assert row["checked"]["responses"] == row["served"] + row["late"] > 0
            assert row["checked"]["wrong"] == 0
        notes = {step["name"]: step["note"] for step in found["steps"]}
        said = notes["read pages here, and by the package itself"]
        assert "text as the package reads it on 2 of 2 pages" in said
        page = draw_page(9, most_lines=5)
        here = ReaderHere(write_models(tmp_path / "models")).read(page.picture)
        serving = found["serving"]
        texts = [text.encode() for text in here.texts]
        assert texts_of_client(serving["grpc"], page.picture) == texts
        body = body_of_post(serving["http"], page.picture)
        assert all(text in body for text in texts)
    finally:
        stopped = project.run("stop")
    assert stopped.returncode == 0, stopped.stderr


def texts_of_client(url: str, picture: bytes) -> list[bytes]:
    """The texts that a stock client reads."""
    with grpc_client.InferenceServerClient(url) as client:
        given = grpc_client.InferInput("image", [1], "BYTES")
        given.set_data_from_numpy(np.array([picture], np.object_))
        found = client.infer("ocr", [given])
    assert found is not None
    texts = found.as_numpy("text")
    assert texts is not None
    return texts.tolist()


def body_of_post(url: str, picture: bytes) -> bytes:
    """The answer to a picture that is sent as it is."""
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": "0"}
    request = urllib.request.Request(f"http://{url}/v2/models/ocr/infer", picture, headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.read()


def test_the_report_is_one_page_that_needs_no_network(first: dict[str, Any]) -> None:
    page = Path(first["report"]).read_text()
    assert "tiny" in page
    assert page.count("<svg") >= 3
    assert 'src="http' not in page
    assert 'href="http' not in page


def test_nothing_that_was_started_is_left(project: Project, first: dict[str, Any]) -> None:
    del first
    home = str(project.folder)
    left = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"]]
    assert [line for line in left if any(home in part for part in line)] == []
    for port in project.ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_second_run_reuses_what_is_unchanged(shared: dict[str, Any]) -> None:
    notes = {step["name"]: step["note"] for step in shared["steps"]}
    assert "reused" in notes["split tiny"]
    assert "0 built" in notes["build and profile tiny"]
    assert "cells 0 measured" in notes["build and profile tiny"]


def test_the_plan_that_was_served_can_be_verified(project: Project, first: dict[str, Any]) -> None:
    done = project.run(
        "verify", str(project.folder / f"state/reports/plan-{first['plan_id']}.json")
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_model_with_rows_of_its_own_number_is_refused_before_it_is_measured(
    project: Project, prefect_url: str
) -> None:
    path = tiny_models.save(
        project.folder / "found.onnx",
        [
            helper.make_node("Relu", ["x"], ["r"]),
            helper.make_node("NonZero", ["r"], ["f"]),
            helper.make_node("Transpose", ["f"], ["y"]),
        ],
        inputs={"x": ["n", 4]},
        outputs=["y"],
    )
    model = onnx.load(path)
    found = helper.make_tensor_value_info("y", onnx.TensorProto.INT64, ["k", 2])
    model.graph.output[0].CopyFrom(found)
    onnx.save(model, path)
    asked = (f"--model={path}", "--slo-ms=500", *project.port_options())
    done = project.run("quickstart", *asked, prefect_url=prefect_url)
    *steps, reason = done.stderr.splitlines()
    assert done.returncode == 2
    assert "not one per sample: serve it in an application" in reason
    assert not [line for line in steps if "profile" in line]


def test_a_port_in_use_is_one_line_and_exit_2(project: Project, first: dict[str, Any]) -> None:
    plan = project.folder / f"state/reports/plan-{first['plan_id']}.json"
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", project.ports[0]))
        taken.listen()
        done = project.run("serve", str(plan), f"--http-port={project.ports[0]}")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert str(project.ports[0]) in done.stderr


def giving(value: object) -> Callable[..., object]:
    """A function that returns this, whatever it is asked."""

    def given(*_: object) -> object:
        return value

    return given


def served_by_another(folder: Path) -> "subprocess.Popen[bytes]":
    """A process that looks as the keeper of a system, and the files that it serves from."""
    (folder / "repository" / "theirs").mkdir(parents=True)
    arguments = ["start", f"--folder={folder}"]
    words = ["triton_backend.serving.server.tritonserver", *arguments]
    keeper = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert keeper.stdout
    keeper.stdout.readline()  # as a keeper, it runs before its state file is there
    state = {
        "pid": keeper.pid,
        "triton_pid": keeper.pid,
        "process_group": keeper.pid,
        "instance": "0123abcd",
        "folder": str(folder),
        "socket_folder": str(folder / "sockets"),
        "token": "t",
        "token_header": "h",
        "address": "127.0.0.1",
        "http_address": "127.0.0.1",
        "grpc_address": "127.0.0.1",
        "arguments": arguments,
        "ready": True,
        "ports": {"http": 1, "grpc": 2, "metrics": 3},
        "boot_id": boot_id(),
    }
    write_state_file(folder, state)
    return keeper


def test_a_system_that_another_command_started_meanwhile_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Workspace(state=ProjectState(home=tmp_path), warehouse=tmp_path / "w.duckdb")
    folder = work.state.serve.resolve()
    keepers: list[subprocess.Popen[bytes]] = []

    def plan(*_: object) -> object:
        keepers.append(served_by_another(folder))
        return two_stages()

    monkeypatch.setattr(quickstart, "compiling", contextlib.nullcontext)
    for name, stand_in in (
        ("_prepare", giving(quickstart._Offered((), two_stages().workload, (), {}))),
        ("_plan", plan),
        ("_simulate", giving(SimpleNamespace(attainment=1.0))),
        ("_roll_out", quickstart._roll_out.fn),
    ):
        monkeypatch.setattr(quickstart, name, stand_in)
    http, grpc, metrics = free_ports(3)
    options = quickstart.QuickstartOptions(ports=Endpoints(http=http, grpc=grpc, metrics=metrics))
    try:
        with pytest.raises(InputError, match="is being served already"):
            quickstart.quickstart.fn(work, options, lambda _: None)
        (keeper,) = keepers
        assert keeper.poll() is None
        assert (folder / "repository" / "theirs").is_dir()
        assert (read_state_file(folder) or {})["pid"] == keeper.pid
    finally:
        for keeper in keepers:
            with keeper:
                keeper.kill()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_all_of_a_job_ends_everything_and_blocks_no_other_command(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    project = Project(tmp_path)
    command = [POOLPIPE, "quickstart", f"--model={project.model}", "--slo-ms=500", "--duration=1"]
    ports = zip(("http", "grpc", "metrics"), project.ports, strict=True)
    with subprocess.Popen(
        [*command, *(f"--{name}-port={port}" for name, port in ports)],
        cwd=tmp_path,
        env={**os.environ, "POOLPIPE_HOME": str(tmp_path / "state")},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if "cell" in line:
                break
        # A terminal sends Ctrl-C to every process of the group, `timeout` its SIGTERM.
        os.killpg(running.pid, number)
        _, said = running.communicate(timeout=60)
    assert running.returncode == code
    assert "Traceback" not in said
    home = str(tmp_path)
    left = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"]]
    assert [line for line in left if any(home in part for part in line)] == []
    again = project.run("split", str(project.model))
    assert again.returncode == 0, again.stderr
