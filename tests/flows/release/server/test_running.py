"""A real Triton server, started from a rendered repository, asked with the stock clients."""

import contextlib
import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from flows.operations.traces.export import export
from flows.operations.traces.otlp import Receiver
from flows.operations.traces.reading import TraceReader
from flows.release.rollout.change import Step, StepDone, change_plan
from flows.release.rollout.generations import is_same_plan, plan_in_force
from flows.release.server.admin import start, stop
from flows.release.server.running import ServerError, ServerState, read_state
from flows.state import ProjectState
from flows.workspace import Workspace
from tests.fakes.otlp_receiver import attributes, otlp_receiver, took_us
from tests.fakes.plans import HandModel, hand_plan
from tests.ports import free_ports
from tests.triton_backend.serving.artifacts import FACTOR, OFFSET, affine
from tests.triton_backend.serving.small_plans import model, plan, stage, two_stage
from tests.triton_backend.serving.system import processes_of, wait_for
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import CONTROL_MODEL, node_model, render_repository
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.front.quotas import BURST_REQUESTS
from triton_backend.serving.liveness.threads import is_alive

pytestmark = pytest.mark.slow
CLIENTS = {"grpc": grpc_client, "http": http_client}
PATIENT_US = 4_000_000
SLOWLY_RPS = 0.001  # no test lasts until a quota's next token


def server_ports() -> Endpoints:
    http, grpc, metrics = free_ports(3)
    return Endpoints(http=http, grpc=grpc, metrics=metrics)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


def model_of(served: Plan, name: str) -> HandModel:
    """A model of a plan with the pools that its stages name."""
    named = {s.pool for p in served.model(name).pipelines for s in p.stages}
    pools = tuple(pool for pool in served.pools if pool.name in named)
    return HandModel(model=served.model(name), pools=pools)


@pytest.fixture(scope="module")
def first_plan(artifacts: Path) -> Plan:
    return plan(two_stage(), affine(artifacts), plan_id="first")


@pytest.fixture(scope="module")
def state(
    tmp_path_factory: pytest.TempPathFactory, artifacts: Path, first_plan: Plan
) -> Iterator[ServerState]:
    folder = tmp_path_factory.mktemp("serve")
    quotas = {"affine": dict.fromkeys(CLIENTS, SLOWLY_RPS)}
    render_repository(folder, first_plan, ServeOptions(artifacts=artifacts, quotas=quotas))
    running = start(folder, server_ports())
    yield running
    stop(folder)
    prefix = f"poolpipe-{running.data['instance']}"
    assert not list(Path("/dev/shm").glob(f"{prefix}*"))
    assert not Path(running.data["socket_folder"]).exists()
    assert not (folder / "state.json").exists()


class Client:
    """One of the stock clients."""

    def __init__(self, state: ServerState, kind: str) -> None:
        self._module: Any = CLIENTS[kind]
        self.is_http = kind == "http"
        url = state.grpc_url if kind == "grpc" else state.http_url
        self._client = self._module.InferenceServerClient(url)
        self.close = self._client.close

    def infer(self, model: str, tensors: dict[str, np.ndarray], **options: Any) -> Any:
        inputs: list[Any] = []
        for name, array in tensors.items():
            dtype = {"float32": "FP32", "uint8": "UINT8", "float64": "FP64"}[str(array.dtype)]
            given = self._module.InferInput(name, list(array.shape), dtype)
            given.set_data_from_numpy(array)
            inputs.append(given)
        return self._client.infer(model, inputs, **{"timeout": PATIENT_US, **options})


@pytest.fixture(params=["grpc", "http"])
def client(request: pytest.FixtureRequest, state: ServerState) -> Iterator[Client]:
    made = Client(state, request.param)
    yield made
    made.close()


@pytest.fixture
def infer(state: ServerState) -> Iterator[Callable[..., Any]]:
    made = Client(state, "grpc")
    yield made.infer
    made.close()


def counted(state: ServerState, name: str) -> float:
    """The sum of a metric's series that begin so, as published last."""
    rows = [row for row in metrics(state).splitlines() if row.startswith(name)]
    return sum(float(row.rpartition(" ")[2]) for row in rows)


def line(samples: int) -> np.ndarray:
    return np.arange(samples * 3, dtype=np.float32).reshape(samples, 3)


@pytest.mark.parametrize("kind", ["grpc", "http"])
def test_answers_are_those_of_the_model(state: ServerState, kind: str) -> None:
    """Whole batches, of one request or several at once.

    Others are kept until their deadline comes near.
    """

    def ask(model: str, tensors: dict[str, np.ndarray]) -> Any:
        with contextlib.closing(Client(state, kind)) as client:
            return client.infer(model, tensors, request_id="mine")

    image, mask = np.zeros((2, 3, 16), np.float32), np.ones((2, 4), np.uint8)
    with ThreadPoolExecutor() as threads:
        for batch in ((1, 3), (4,)):
            given = [line(samples) + samples for samples in batch]
            answers = [threads.submit(ask, "affine", {"x": x}) for x in given]
            for x, answer in zip(given, answers, strict=True):
                y = answer.result().as_numpy("y")
                np.testing.assert_array_equal(y, x * FACTOR + OFFSET)
        both = [threads.submit(ask, "pair", {"image": image, "mask": mask}) for _ in range(2)]
        for answer in both:
            assert answer.result().as_numpy("scores").shape == (2, 10)


@pytest.mark.parametrize(
    ("model", "tensors", "told"),
    [
        ("affine", {"x": line(5)}, "input 'x': 5 samples, at most 4 fit one request"),
        ("affine", {"x": np.zeros((1, 4), np.float32)}, "unexpected shape for input 'x'"),
        ("affine", {"x": np.zeros((1, 3))}, "inference input 'x' data-type is 'FP64'"),
        ("affine", {"z": line(1)}, "unexpected inference input 'z'"),
        (
            "pair",
            {"image": np.zeros((2, 3, 16), np.float32), "mask": np.ones((1, 4), np.uint8)},
            "input 'mask': 1 samples, but 'image' has 2",
        ),
        ("pair", {"image": np.zeros((2, 3, 16), np.float32)}, "expected 2 inputs but got 1"),
        ("nobody", {"x": line(1)}, "unknown model: 'nobody' is not found"),
    ],
)
def test_bad_requests_are_named_and_do_no_harm(
    client: Client, model: str, tensors: dict[str, np.ndarray], told: str
) -> None:
    with pytest.raises(InferenceServerException, match=told):
        client.infer(model, tensors)
    assert client.infer("affine", {"x": line(4)}).as_numpy("y").shape == (4, 3)


def test_a_deadline_that_cannot_be_met_is_refused_with_the_numbers(
    client: Client,
) -> None:
    with pytest.raises(InferenceServerException, match=r"deadline 1\.0 ms after arrival") as error:
        client.infer("affine", {"x": line(1)}, timeout=1_000)
    assert error.value.status() in {"StatusCode.UNAVAILABLE", "503"}


def metrics(state: ServerState) -> str:
    with urllib.request.urlopen(state.metrics_url) as answer:
        return answer.read().decode()


@pytest.mark.parametrize("timeout", ["18446744073709551615", str(2**63), "-1", '"x"', "0"])
def test_whatever_the_timeout_the_request_is_answered_and_nothing_is_kept(
    state: ServerState, infer: Callable[..., Any], timeout: str
) -> None:
    pid = psutil.Process(int(state.data["triton_pid"]))
    body = (
        f'{{"parameters": {{"timeout": {timeout}}}, "inputs": [{{"name": "x",'
        ' "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}'
    )
    url = f"http://{state.http_url}/v2/models/affine/infer"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body.encode())) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    if timeout in {"-1", '"x"'}:  # Triton's own parser
        assert status == 500
    elif timeout == "0":
        assert status == 200
    else:
        assert (status, timeout in text, "'timeout'" in text) == (400, True, True)
    assert "Traceback" not in text
    infer("affine", {"x": line(4)})
    wait_for(lambda: 'poolpipe_requests_held{model="affine"} 0' in metrics(state))
    assert pid.is_running()


def test_metrics_tell_what_happened(state: ServerState, infer: Callable[..., Any]) -> None:
    infer("affine", {"x": line(4)})

    def published() -> bool:
        with urllib.request.urlopen(state.metrics_url) as answer:
            text = answer.read().decode()
        return (
            'poolpipe_requests_served_total{model="affine"}' in text
            and 'poolpipe_plan{generation="1",plan_id="first"} 1' in text
            and 'poolpipe_stage_runs_total{gpu_class="SLOW",model="affine",pipeline="0"' in text
        )

    wait_for(published)


def test_low_requests_are_answered_and_counted_apart(state: ServerState, client: Client) -> None:
    low = 'poolpipe_low_requests_total{model="affine",outcome="served"}'
    usual = 'poolpipe_requests_offered_total{model="affine"}'
    sent = ({"parameters": {"poolpipe-priority": 2}}, {"headers": {"poolpipe-priority": "3"}})
    before = counted(state, low)
    client.infer("affine", {"x": line(4)})
    client.infer("affine", {"x": line(4)}, **sent[0])
    wait_for(lambda: counted(state, low) == before + 1)  # and all that was sent before is published
    others = counted(state, usual)
    for priority in sent:
        y = client.infer("affine", {"x": line(4)}, **priority).as_numpy("y")
        np.testing.assert_array_equal(y, line(4) * FACTOR + OFFSET)
    wait_for(lambda: counted(state, low) == before + 1 + len(sent))
    assert counted(state, usual) == others
    with pytest.raises(InferenceServerException, match="'poolpipe-priority': '-1' is no whole"):
        client.infer("affine", {"x": line(4)}, parameters={"poolpipe-priority": "-1"})


@pytest.mark.parametrize("kind", ["grpc", "http"])
def test_a_client_beyond_its_quota_sends_low_requests(state: ServerState, kind: str) -> None:
    over = f'poolpipe_requests_over_quota_total{{client="{kind}",model="affine"}}'
    low = 'poolpipe_low_requests_total{model="affine",outcome="served"}'
    forms = ({"parameters": {"poolpipe-client": kind}}, {"headers": {"poolpipe-client": kind}})
    with contextlib.closing(Client(state, kind)) as client:
        before = counted(state, low)  # 0 where none is published yet
        for number in range(BURST_REQUESTS + 4):
            y = client.infer("affine", {"x": line(4)}, **forms[number % 2]).as_numpy("y")
            np.testing.assert_array_equal(y, line(4) * FACTOR + OFFSET)
        wait_for(lambda: counted(state, over) == 4)
        wait_for(lambda: counted(state, low) == before + 4)
        with pytest.raises(InferenceServerException, match="'poolpipe-client': 'a b' is no name"):
            client.infer("affine", {"x": line(4)}, headers={"poolpipe-client": "a b"})


def test_a_traced_request_is_found_in_the_request_log(state: ServerState, client: Client) -> None:
    trace = f"00-4bf92f3577b34da6a3ce929d0e0e4736-{id(client) % 16**16:016x}-01"
    client.infer("affine", {"x": line(4)}, headers={"traceparent": trace}, request_id="traced")

    def logged() -> bool:
        files = (state.folder / "logs").glob("requests-*.jsonl")
        text = "".join(file.read_text() for file in files)
        return f'"request_id": "traced", "traceparent": "{trace}"' in text

    wait_for(logged)


def test_a_traced_request_is_one_tree_of_what_the_event_files_say(
    state: ServerState, client: Client, tmp_path: Path
) -> None:
    number = f"{id(client) % 16**8:08x}"
    traced = [f"{each}{number}".zfill(32) for each in "abc"]
    parents = [f"00-{trace}-00f067aa0ba902b7-01" for trace in traced]
    tensors = {"image": np.zeros((4, 3, 16), np.float32), "mask": np.ones((4, 4), np.uint8)}
    client.infer("pair", tensors, headers={"traceparent": parents[0]})
    if client.is_http:
        client.infer("pair", tensors, headers={"Traceparent": parents[1]})  # as Go's clients spell
    else:
        client.infer("pair", tensors, headers={"traceparent": parents[1]})
    client.infer("pair", tensors, parameters={"traceparent": parents[2]})
    for other in (f"00-{'d' * 32}-00f067aa0ba902b7-00", "00-wrong"):
        client.infer("pair", tensors, headers={"traceparent": other})

    work = Workspace(state=ProjectState(home=tmp_path), warehouse=tmp_path / "w.duckdb")
    with otlp_receiver() as received:

        def told() -> bool:
            received.spans.clear()
            receiver = Receiver(received.url, patience_s=5.0)
            export(TraceReader(work, state.folder), receiver)
            receiver.close()
            return all(received.names(trace)[-1:] == ["answer"] for trace in traced)

        wait_for(told)
        sent = {span.trace_id.hex() for span in received.spans}
        assert "d" * 32 not in sent
        body = b"".join(received.bodies)
    assert tensors["mask"].tobytes() not in body
    assert tensors["image"].tobytes() not in body
    ran = runs_of(state.folder)
    for trace, parent in zip(traced, parents, strict=True):
        (root,) = received.roots(trace)
        assert root.parent_span_id.hex() == parent.split("-")[2]
        children = received.children(root)
        names = ["front", "gather", "vgpu 0", "link 1", "vgpu 1", "answer"]
        assert [each.name for each in children if each.name != "wait"] == names
        (batch,) = {attributes(each)["batch"] for each in children if each.name == "vgpu 1"}
        spans_us = {s.name: took_us(s) for s in children if s.name[:4] in {"vgpu", "link"}}
        assert spans_us == ran[batch]
        assert sum(map(took_us, children)) == took_us(root)


def runs_of(folder: Path) -> dict[int, dict[str, int]]:
    """How long stages and links of each batch took (µs), by the event files."""
    found: dict[int, dict[str, int]] = {}
    kinds = {"StageDone": "vgpu", "TransferDone": "link"}
    for path in (folder / "events").glob("events-*.jsonl"):
        for item in map(json.loads, path.read_text().splitlines()):
            if item["t"] in kinds:
                name = f"{kinds[item['t']]} {item['stage']}"
                batch = found.setdefault(item["batch_id"], {})
                batch[name] = item["end_us"] - item["start_us"]
    return found


def test_only_who_has_the_token_controls_and_loads(state: ServerState) -> None:
    stranger = ServerState({**state.data, "token": "guess"})
    with pytest.raises(ServerError, match="wrong token"):
        stranger.control("status")
    with pytest.raises(ServerError, match="restricted"):
        stranger.unload("affine")
    assert state.control("status")["plan_id"] == "first"


def test_a_second_start_and_a_taken_port_are_refused_by_name(
    state: ServerState, tmp_path: Path, first_plan: Plan
) -> None:
    with pytest.raises(InputError, match="is being served already"):
        start(state.folder, server_ports())
    render_repository(tmp_path, first_plan, ServeOptions())
    taken = replace(server_ports(), http=state.data["ports"]["http"])
    with pytest.raises(InputError, match=f"http-port {taken.http}"):
        start(tmp_path, taken)


def test_a_node_that_has_loaded_has_the_servers_priority(state: ServerState) -> None:
    pid = (state.folder / "pids" / node_model("FAST")).read_text().split()[0]
    threads = [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]
    found = {(os.sched_getscheduler(i), os.getpriority(os.PRIO_PROCESS, i)) for i in threads}
    server = int(state.data["triton_pid"])
    assert found == {(os.sched_getscheduler(server), os.getpriority(os.PRIO_PROCESS, server))}


def test_a_stage_answers_by_itself_through_its_node(state: ServerState) -> None:
    inputs = [{"name": "x", "shape": [2, 3], "data": line(2).tolist()}]
    request = {"command": "infer", "model": "affine", "stage": 0, "inputs": inputs}
    (output,) = state.ask(node_model("FAST"), request)["outputs"]
    assert output["data"] == (line(2) * FACTOR).reshape(-1).tolist()
    with pytest.raises(ServerError, match="runs no stage 1"):
        state.ask(node_model("FAST"), {**request, "stage": 1})


@pytest.mark.parametrize("part", ["worker", "affine", CONTROL_MODEL, node_model("FAST")])
def test_a_killed_part_comes_back(state: ServerState, infer: Callable[..., Any], part: str) -> None:
    pid_file = state.folder / "pids" / part
    if part == "worker":
        node = state.ask(node_model("FAST"), {})
        pid = int(node["workers"][0]["pid"])
    else:
        pid = int(pid_file.read_text().split()[0])
    os.kill(pid, signal.SIGKILL)

    def back() -> bool:
        with contextlib.suppress(ServerError, InferenceServerException, OSError, ValueError):
            workers = state.control("status")["workers"]
            alive = part == "worker" or int(pid_file.read_text().split()[0]) != pid
            answered = infer("affine", {"x": line(4)}, timeout=1_000_000)
            return alive and workers["up"] == workers["total"] and answered is not None
        return False

    wait_for(back)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    if part != "worker":  # processes that Triton forks while it serves keep nothing of it
        anew = int(pid_file.read_text().split()[0])
        assert not sockets_of(anew) & sockets_of(int(state.data["triton_pid"]))


def sockets_of(pid: int) -> set[str]:
    found: set[str] = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since the folder was read
            found.add(str(link.readlink()))
    return {target for target in found if target.startswith("socket:")}


def test_plans_follow_one_another_without_a_lost_request(
    state: ServerState, first_plan: Plan, artifacts: Path, infer: Callable[..., Any]
) -> None:
    number = int(read_state(state.folder).data["generation"])
    added = affine(artifacts, f"added{number}")
    kept = model_of(first_plan, "affine")
    following = hand_plan(kept, added, nodes=first_plan.cluster.nodes, plan_id=f"plan-{number + 1}")
    told: list[StepDone] = []
    done = change_plan(state.folder, following, told.append)
    assert done.generation == number + 1
    assert [step.step for step in told] == [
        step for step in Step if step not in {Step.COMPARE, Step.FLUSH, Step.ABORT}
    ]
    for name in ("affine", added.model.name):
        answer = infer(name, {"x": line(4)}).as_numpy("y")
        np.testing.assert_array_equal(answer, line(4) * FACTOR + OFFSET)
    with pytest.raises(InferenceServerException):
        infer("pair", {})
    assert read_state(state.folder).data["plan_id"] == following.plan_id
    in_force = re.compile(
        rf'poolpipe_plan{{generation="{done.generation}",plan_id="{following.plan_id}".*}} 1'
    )
    wait_for(lambda: any(map(in_force.fullmatch, metrics(state).splitlines())))
    with pytest.raises(InputError, match="is being served already"):
        change_plan(state.folder, following)


def test_a_plan_follows_itself_with_other_artifacts(
    state: ServerState, artifacts: Path, infer: Callable[..., Any]
) -> None:
    served = plan_in_force(state.folder)
    generation = state.control("status")["generation"]
    rebuilt = affine(artifacts, f"rebuilt-{generation}").model.pipelines[0].stages
    affine_now = served.model("affine")
    stages = tuple(
        replace(stage, artifact=other.artifact)
        for stage, other in zip(affine_now.pipelines[0].stages, rebuilt, strict=True)
    )
    changed = replace(affine_now, pipelines=(replace(affine_now.pipelines[0], stages=stages),))
    again = replace(
        served, models=tuple(changed if m.name == "affine" else m for m in served.models)
    )
    assert change_plan(state.folder, again).generation == generation + 1
    assert is_same_plan(plan_in_force(state.folder), again)
    assert state.control("status")["plan_id"] == served.plan_id
    answer = infer("affine", {"x": line(4)}).as_numpy("y")
    np.testing.assert_array_equal(answer, line(4) * FACTOR + OFFSET)
    with pytest.raises(InputError, match="is being served already"):
        change_plan(state.folder, again)


def test_a_node_comes_and_goes_with_the_plans_that_use_it(
    state: ServerState, infer: Callable[..., Any]
) -> None:
    served = plan_in_force(state.folder)
    fast, slow = node_model("FAST"), node_model("SLOW")
    node = int((state.folder / "pids" / slow).read_text().split()[0])
    workers = [worker["pid"] for worker in state.ask(slow, {})["workers"]]
    alone = model("alone", (stage((0, 10), "FAST", 0),))
    nodes = served.cluster.nodes
    done = change_plan(state.folder, hand_plan(alone, nodes=nodes, plan_id="without-SLOW"))
    assert not (state.folder / "repository" / slow).exists()
    wait_for(lambda: not [pid for pid in (node, *workers) if is_alive(pid)])
    assert state.ask(fast, {})["generations"] == [done.generation]
    again = change_plan(state.folder, served)
    for name in (fast, slow):
        assert state.ask(name, {})["generations"] == [again.generation]
    answer = infer("affine", {"x": line(4)}).as_numpy("y")
    np.testing.assert_array_equal(answer, line(4) * FACTOR + OFFSET)


def test_a_rollout_that_fails_leaves_the_old_plan_serving(
    state: ServerState, infer: Callable[..., Any], first_plan: Plan
) -> None:
    served = state.control("status")
    sound = model_of(first_plan, "affine")
    first, *rest = sound.model.pipelines[0].stages
    pipeline = replace(sound.model.pipelines[0], stages=(replace(first, artifact="missing"), *rest))
    broken = replace(sound, model=replace(sound.model, name="broken", pipelines=(pipeline,)))
    bad = hand_plan(broken, nodes=first_plan.cluster.nodes, plan_id="bad")
    steps: list[StepDone] = []
    with pytest.raises(ServerError, match="not an artifact manifest"):
        change_plan(state.folder, bad, steps.append)
    assert steps[-1].step is Step.ABORT
    now = state.control("status")
    assert (now["plan_id"], now["state"], now["prepared"]) == (served["plan_id"], "serving", None)
    assert infer("affine", {"x": line(4)}).as_numpy("y").shape == (4, 3)


def test_stop_clears_up_after_the_keeper_was_killed(tmp_path: Path, first_plan: Plan) -> None:
    alone = hand_plan(model_of(first_plan, "pair"), nodes=first_plan.cluster.nodes)
    render_repository(tmp_path, alone, ServeOptions())
    running = start(tmp_path, server_ports())
    group = int(running.data["process_group"])
    os.kill(int(running.data["pid"]), signal.SIGKILL)
    assert stop(tmp_path)
    assert not processes_of({group})
    assert not list(Path("/dev/shm").glob(f"poolpipe-{running.data['instance']}*"))
