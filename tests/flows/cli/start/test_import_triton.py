"""A repository that was tuned by hand: planned and served, and left as it is."""

import contextlib
import http.client
import json
import queue
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml
from tritonclient import grpc
from tritonclient.utils import InferenceServerException

from flows.cli.start import import_triton
from flows.state import project_state
from tests.flows.cli.conftest import Command
from tests.flows.preparation.splitting.test_inputs import picture_net
from tests.flows.preparation.triton_repository.repositories import (
    add_cleaned,
    digest,
    make_others_run,
    write_repository,
    write_steps_alone,
)
from tests.ports import free_ports
from tests.triton_backend.serving.system import wait_for


@pytest.fixture
def repository(project: Path) -> Path:
    return write_repository(project / "models")


def answered(url: str, name: str, tensor: str, output: str) -> Any:
    given = grpc.InferInput(tensor, [1, 4, 6, 6], "FP32")
    given.set_data_from_numpy(np.ones((1, 4, 6, 6), np.float32))
    with grpc.InferenceServerClient(url) as client:
        answer = client.infer(name, [given])
        assert answer is not None
        return answer.as_numpy(output)


def text(value: bytes) -> grpc.InferInput:
    given = grpc.InferInput("TEXT", [1], "BYTES")
    given.set_data_from_numpy(np.array([value], dtype=object))
    return given


def tokens(client: grpc.InferenceServerClient) -> list[int]:
    answer = client.infer("tokens", [text(b"ab")])
    assert answer is not None
    found = answer.as_numpy("IDS")
    assert found is not None
    return list(found)


class Chat:
    """A stream of a decoupled model: three words for each text."""

    def __init__(self, client: grpc.InferenceServerClient) -> None:
        self._client = client
        self._answers: queue.Queue[Any] = queue.Queue()
        client.start_stream(self._take)

    def _take(self, result: Any, error: Any) -> None:
        self._answers.put(error or result.as_numpy("WORD")[0])

    def ask(self) -> list[Any]:
        self._client.async_stream_infer("chat", [text(b"hi")])
        return [self._answers.get(timeout=30) for _ in range(3)]


class Asking(threading.Thread):
    """Asks the models beside the plan again and again, and keeps what is not answered well."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self.ending = threading.Event()
        self.answered = 0
        self.lost: list[str] = []

    def run(self) -> None:
        with grpc.InferenceServerClient(self._url) as client:
            chat = Chat(client)
            while not self.ending.is_set():
                try:
                    assert (tokens(client), chat.ask()) == ([97, 98], [b"hi"] * 3)
                    self.answered += 1
                except Exception as error:  # noqa: BLE001  # each is one that was lost
                    self.lost.append(repr(error))


def code_of(url: str, path: str, body: bytes | None = None) -> int:
    host, _, port = url.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    with contextlib.closing(connection):
        connection.request("GET" if body is None else "POST", path, body)
        return connection.getresponse().status


@pytest.mark.slow
def test_a_repository_is_planned_and_served_and_stays_as_it_is(
    poolpipe: Command, repository: Path
) -> None:
    make_others_run(repository)
    before = digest(repository)
    asked = ("--slo-ms", "400", "--blocks", "2", "-o", "out", "--json")
    found = poolpipe("import-triton", str(repository), *asked).document
    assert found["planned"] == ["classify", "classify@1", "pipeline", "plain", "sharpen"]
    assert sorted(found["beside"]) == ["chat", "tokens"]
    assert found["gpus"] == {"today": 2, "planned": 4, "cluster": 4}
    assert {row["name"]: row["instances"] for row in found["models"]} == {
        "classify": 2,
        "classify@1": 2,
        "pipeline": 0,
        "plain": 2,
        "sharpen": 2,
    }
    assert digest(repository) == before
    web, rpc, metrics = map(str, free_ports(3))
    ports = ("--http-port", web, "--grpc-port", rpc, "--metrics-port", metrics)
    files = ("--cluster", "out/cluster.yaml", "--workload", "out/workload.yaml")
    assert poolpipe("plan", *files, "--slo-margin", "0.3", "-o", "second.json").code == 0
    url = f"127.0.0.1:{rpc}"
    try:
        serving = ("serve", found["plan_id"], "--beside", "models", *ports)
        said = poolpipe(*serving).out.splitlines()
        assert said[0].partition(": ")[2] == "classify, classify@1, plain, sharpen, pipeline"
        assert said[1] == "beside it: chat, tokens"
        _all_answer(url)
        asking = Asking(url)
        asking.start()
        try:
            assert poolpipe("rollout", "second.json", "--bake-seconds", "0.2").code == 0
            assert poolpipe("rollout", "--rollback", "--bake-seconds", "0.2").code == 0
        finally:
            asking.ending.set()
            asking.join()
        assert asking.lost == []
        assert asking.answered > 10
        status = poolpipe("status", "--json").document
        assert (status["plan_id"], status["beside"]) == (
            found["plan_id"],
            {"chat": "ready", "tokens": "ready"},
        )
        # Strangers reach no more than of a plan alone.
        http_url = f"127.0.0.1:{web}"
        for path in ("models/tokens/unload", "models/tokens/load", "index"):
            assert code_of(http_url, f"/v2/repository/{path}", b"{}") == 403
        assert code_of(http_url, "/v2/models/tokens/config") == 403
        _killed_processes_come_back(url)
        workers = {"up": 4, "total": 4}
        wait_for(lambda: workers.items() <= _status(poolpipe).get("workers", {}).items())
        _all_answer(url)
    finally:
        poolpipe("stop")
    assert digest(repository) == before


def _status(poolpipe: Command) -> dict[str, Any]:
    ran = poolpipe("status", "--json")
    return ran.document if ran.code == 0 else {}


def _all_answer(url: str) -> None:
    for name in ("classify", "classify@1", "plain", "sharpen"):
        assert np.isfinite(answered(url, name, "x", "y")).all()
    scores = answered(url, "pipeline", "PICTURE", "SCORES")
    assert scores.sum() == pytest.approx(1, abs=1e-4)
    with grpc.InferenceServerClient(url) as client:
        assert (tokens(client), Chat(client).ask()) == ([97, 98], [b"hi"] * 3)


def _killed_processes_come_back(url: str) -> None:
    """The process of a model beside the plan, then the whole server."""
    serve = project_state().serve
    links = str(serve.resolve() / "beside" / "tokens")
    (stub,) = [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(word.startswith(links) for word in process.info["cmdline"] or ())
    ]
    stub.kill()
    _wait_for_tokens(url)
    psutil.Process(json.loads((serve / "state.json").read_text())["triton_pid"]).kill()
    _wait_for_tokens(url)
    wait_for(
        lambda: (
            json.loads((serve / "state.json").read_text())["beside"]
            == {"chat": "ready", "tokens": "ready"}
        )
    )


def _wait_for_tokens(url: str) -> None:
    def answer() -> bool:
        with grpc.InferenceServerClient(url) as client:
            try:
                return tokens(client) == [97, 98]
            except InferenceServerException:
                return False

    wait_for(lambda: not answer())
    wait_for(answer)


@pytest.mark.slow
def test_an_ensemble_that_cannot_go_on_beside_the_plan_is_said(
    poolpipe: Command, repository: Path
) -> None:
    config = repository / "pipeline" / "config.pbtxt"
    config.write_text(config.read_text().replace('model_name: "sharpen"', 'model_name: "tokens"'))
    ran = poolpipe("import-triton", str(repository), "--blocks", "2", "-o", "out")
    assert ran.code == 0
    assert (
        "note: not every model left beside the plan can be served with it: ensemble 'pi" in ran.err
    )
    # `chat` needs a backend that is not here, `pipeline` calls a planned model.
    assert ran.out.splitlines()[-1].endswith(f" --beside {repository / 'tokens'}")
    assert ran.out.count("--beside") == 1


@pytest.mark.slow
def test_sizes_are_listed_after_an_import(poolpipe: Command, repository: Path) -> None:
    """`reader` takes any size in Triton: it is left beside, split apart, and planned by sizes."""
    (repository / "reader" / "1").mkdir(parents=True)
    file = picture_net(repository / "reader" / "1" / "model.onnx")
    before = digest(repository)
    ran = poolpipe("import-triton", str(repository), "--blocks", "1", "--no-plan", "-o", "out")
    assert ran.code == 0
    assert "--input-shape x=4xSIZExSIZE" in " ".join(ran.out.split())
    shapes = ("4x8x8", "4x8x16")
    asked = [word for shape in shapes for word in ("--input-shape", f"x={shape}")]
    split = ("split", str(file), "--name", "reader", "--blocks", "1", "--max-batch", "2")
    assert poolpipe(*split, *asked).code == 0
    written = yaml.safe_load(Path("out/workload.yaml").read_text())
    assert "reader" not in [model["name"] for model in written["models"]]
    sizes = [{"input_shapes": {"x": shape}} for shape in shapes]
    written["models"] = [{"name": "reader", "slo_ms": 900, "sizes": sizes}]
    del written["applications"]
    Path("out/workload.yaml").write_text(yaml.safe_dump(written))
    files = ("--cluster", "out/cluster.yaml", "--workload", "out/workload.yaml")
    assert poolpipe("profile", "reader", *files[:2]).code == 0
    planned = poolpipe("plan", *files, "--planner", "subclusters", "-o", "plan.json", "--json")
    assert planned.code == 0, planned.err
    plan = json.loads(Path("plan.json").read_text())
    assert {model["name"] for model in plan["models"]} == {f"reader@{one}" for one in shapes}
    assert digest(repository) == before


@pytest.mark.slow
def test_a_repository_of_python_steps_alone_is_planned_step_by_step(
    poolpipe: Command, project: Path
) -> None:
    """Without `--no-plan` it is profiled and planned at once; here by the commands it names."""
    write_steps_alone(project / "models")
    ran = poolpipe("import-triton", "models", "--no-plan", "-o", "out")
    assert ran.code == 0, ran.err
    profile, plan = (line.split("poolpipe ")[1].split() for line in ran.out.splitlines()[-2:])
    assert profile == ["profile", "--cluster", "out/cluster.yaml"]
    assert poolpipe(*profile).code == 0
    planned = poolpipe(*plan)
    assert planned.code == 0, planned.err
    assert [one["name"] for one in json.loads(Path("plan.json").read_text())["models"]]


@pytest.mark.long
def test_an_import_that_does_not_end_leaves_no_files_that_the_next_one_refuses(
    poolpipe: Command, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    add_cleaned(repository)
    asked = ("import-triton", "models", "--blocks", "2", "-o", "out")
    with monkeypatch.context() as patched:
        patched.setattr(import_triton, "_planned", interrupted)
        assert poolpipe(*asked).code == 130
    assert not list(Path("out").rglob("*"))
    assert poolpipe(*asked, "--no-plan").code == 0
    assert {"cluster.yaml", "workload.yaml", "steps"} == {f.name for f in Path("out").iterdir()}


def test_files_are_written_for_gpus_that_are_elsewhere(poolpipe: Command, repository: Path) -> None:
    Path("gpus.yaml").write_text(
        "gpu_classes: {L4: {vgpu_divisors: [1, 2]}}\n"
        "nodes: [{count: 2, gpu_class: L4, gpus: 4, nic_gbps: 25}]\n"
    )
    ran = poolpipe(
        "import-triton", str(repository), "--cluster", "gpus.yaml", "--rate", "plain=20",
        "--slo", "pipeline=300", "--blocks", "2", "-o", "out",
    )  # fmt: skip
    assert ran.code == 0
    assert "next: poolpipe profile classify --cluster gpus.yaml --runtime tensorrt" in ran.out
    assert "left beside the plan" in ran.out
    assert "note: SLO: 1000 ms is assumed" in ran.err
    written = yaml.safe_load(Path("out/workload.yaml").read_text())
    assert {m["name"]: m.get("rate_rps") for m in written["models"]}["plain"] == 20.0
    assert written["applications"][0]["slo_ms"] == 300.0
    assert not Path("out/cluster.yaml").exists()


@pytest.mark.usefixtures("repository")
def test_what_models_beside_the_plan_hold_is_taken_out_of_the_cluster(poolpipe: Command) -> None:
    Path("gpus.yaml").write_text(
        "gpu_classes: {L4: {memory_gib: 24}}\n"
        "nodes: [{count: 1, gpu_class: L4, gpus: 4, nic_gbps: 25}]\n"
    )
    before = Path("gpus.yaml").read_text()
    asked = ("import-triton", "models", "--cluster", "gpus.yaml", "--blocks", "1")
    held = ("--taken", "chat=0,1:8", "--taken", "tokens=3")
    ran = poolpipe(*asked, *held, "-o", "out")
    assert ran.code == 0
    assert (
        "note: held beside the plan, and taken out of out/cluster.yaml: 8 GiB of GPU 0" in ran.err
    )
    assert "next: poolpipe profile classify --cluster out/cluster.yaml" in ran.out
    written = yaml.safe_load(Path("out/cluster.yaml").read_text())
    assert written["gpu_classes"] == {"L4": {"memory_gib": 24, "taken_gib": 8.0}}
    assert (written["nodes"][0]["gpus"], written["nodes"][0]["devices"]) == (3, ["0", "1", "2"])
    assert Path("gpus.yaml").read_text() == before
    # Nothing is taken out for a model whose GPUs are unknown, and that is said.
    unsaid = poolpipe(*asked, "-o", "other")
    assert "note: chat: its configuration names no GPU; take those that it holds" in unsaid.err
    assert not Path("other/cluster.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("models", "--taken", "chat=x"), "--taken chat=x: is not GPUS, GPUS:GIB or none"),
        (("models", "--taken", "absent=0"), "--taken, model 'absent': is not left beside the plan"),
        (("models", "--taken", "plain=0"), "--taken, model 'plain': is not left beside the plan"),
        (
            ("models", "--taken", "chat=7", "--cluster", "cluster.yaml"),
            "--taken chat=7: GPU 7 is not in cluster.yaml; GPUs of this host: ",
        ),
        (
            ("models", "--taken", "chat=0:8"),
            "--taken chat=0: GPU 0 is not in this machine, and --cluster gives no other; GPUs",
        ),
        (("none",), "none: cannot be read"),
        (("models", "-o", "."), "workload.yaml: is there already; give another folder with -o"),
        (("models", "--rate", "chat=5"), "--rate: 'chat' is left beside the plan: "),
        (("models", "--slo", "absent=5"), "--slo: 'absent' is not among those to plan: "),
        (("models", "--slo", "plain"), "--slo: 'plain' is not NAME=VALUE"),
        (("models", "--cluster", "none.yaml"), "none.yaml"),
        (("models", "--slo", "plain=-1"), "--slo: plain=-1 is not a number that is 0 or more"),
        (("models", "--slo", "plain=0"), "model 'plain', slo_ms: 0.0 is not positive"),
        (("models", "--rate", "plain=0"), "model 'plain', rate_rps: 0.0 is not a positive number"),
        (("models", "--rate", "*=5"), "--rate: '*' is not among those to plan"),
        (("models", "-o", "models/out"), "models/out: lies in the repository, where nothing"),
        (("models", "-o", "workload.yaml"), "workload.yaml/workload.yaml: cannot be written"),
        (("models", "-o", "/proc/out"), "/proc/out: cannot be made"),
        (("models", "--warehouse", "models/w.duckdb"), "models/w.duckdb: lies in the repository"),
        ((".",), "lies in the repository, where nothing is written"),
    ],
)
def test_bad_input_is_one_line(
    poolpipe: Command, repository: Path, arguments: tuple[str, ...], reason: str
) -> None:
    before = sorted(repository.rglob("*"))
    elsewhere = () if "-o" in arguments else ("-o", "out")
    ran = poolpipe("import-triton", *arguments, *elsewhere, "--blocks", "1")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-1].startswith("poolpipe: ")
    assert reason in ran.err.splitlines()[-1]
    assert sorted(repository.rglob("*")) == before
    assert not Path("out").exists()
