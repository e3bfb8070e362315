"""Stages loaded into and dropped from running workers of a real Triton, under kills.

`quick` keeps its two workers. `slow`, which takes most of a second to load, is on two vGPUs of its
own and is moved beside `quick`, and back: a change loads it into living workers, the next drops it.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpc_client
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from flows.device_class import DeviceClass
from flows.preparation.building.onnxruntime import build_stage
from flows.release.rollout.change import Step, StepDone, change_plan, finish_or_undo_change
from flows.release.server.admin import start, stop
from flows.release.server.running import ServerError, ServerState
from tests.flows.release.server.test_running import server_ports
from tests.triton_backend.serving.shared.shared_plans import on_one_pool
from tests.triton_backend.serving.small_plans import BATCH, model, plan, stage, tensor
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.repository import node_model, render_repository
from triton_backend.serve_folder.settings import ServeOptions

pytestmark = pytest.mark.slow
NODES = {"quick": 2, "slow": 12_000}  # an even number of signs turned: every answer is its request
WORKER, NODE, SCHEDULER, COMMAND = "worker", "node", "scheduler", "command"
PATIENT_US = 3_000_000
PAUSE_SECONDS = 0.02  # of a client between two requests: most of the processors is for what loads


def write_model(path: Path, nodes: int) -> Path:
    """So many nodes in a row, each of which turns the sign."""
    names = ["x", *(f"t{i}" for i in range(nodes - 1)), "y"]
    graph = helper.make_graph(
        [helper.make_node("Neg", [names[i]], [names[i + 1]]) for i in range(nodes)],
        "signs",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory, artifacts: Path) -> dict[str, Plan]:
    """`apart`: a pool of two vGPUs each; `together`: both on the first."""
    folder = tmp_path_factory.mktemp("models")
    x, y = (tensor("x", 3),), (tensor("y", 3),)
    models = [
        model(
            name,
            (
                stage(
                    (0, 1),
                    "FAST",
                    0,
                    vgpus=2,
                    latency_us_by_batch=(30_000,) * BATCH,
                    artifact=build_stage(
                        write_model(folder / f"{name}.onnx", nodes),
                        x,
                        y,
                        device_class=DeviceClass(name="CPU", cores=(min(os.sched_getaffinity(0)),)),
                        max_batch=BATCH,
                        root=artifacts,
                    ).key,
                ),
            ),
            inputs=x,
            outputs=y,
            policy="eager",
            slo_us=1_000_000,
        )
        for name, nodes in NODES.items()
    ]
    apart = plan(*models, plan_id="apart")
    return {"apart": apart, "together": replace(on_one_pool(apart), plan_id="together")}


@pytest.fixture(scope="module")
def state(
    tmp_path_factory: pytest.TempPathFactory, plans: dict[str, Plan], artifacts: Path
) -> Iterator[ServerState]:
    folder = tmp_path_factory.mktemp("serve")
    render_repository(folder, plans["apart"], ServeOptions(artifacts=artifacts))
    yield start(folder, server_ports())
    stop(folder)


@dataclass(slots=True)
class Load:
    """Clients that ask both models in turns until they are stopped.

    Each request is answered or told why not.
    """

    url: str
    answered: int = 0
    refusals: list[str] = field(default_factory=list[str])
    wrong: int = 0
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list[threading.Thread])

    def __enter__(self) -> Self:
        self._threads = [threading.Thread(target=self._ask, args=(name,)) for name in NODES]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, name: str) -> None:
        rng = np.random.default_rng(len(name))
        with grpc_client.InferenceServerClient(self.url) as client:
            while not self._over.wait(PAUSE_SECONDS):
                x = rng.normal(size=(2, 3)).astype(np.float32)
                given = grpc_client.InferInput("x", [2, 3], "FP32")
                given.set_data_from_numpy(x)
                try:
                    answer: Any = client.infer(name, [given], timeout=PATIENT_US)
                except InferenceServerException as error:
                    self.refusals.append(str(error))
                else:
                    self.answered += 1
                    self.wrong += int(not np.array_equal(answer.as_numpy("y"), x))


def change_in_child(folder: Path, wanted: Plan, marks: Path, halt: str) -> None:
    """A rollout in a process of its own, which notes its steps and waits to be killed after one."""

    def note(done: StepDone) -> None:
        (marks / str(done.step)).touch()
        if done.step == halt:
            threading.Event().wait()

    change_plan(folder, wanted, note)


def strike(state: ServerState, what: str, child: Any) -> None:
    """SIGKILL to a worker that goes on, to its node, to the scheduler, or to the command."""
    status = state.control("status")
    if what == COMMAND:
        pid = child.pid
    elif what in {SCHEDULER, NODE}:
        model = status["scheduler"]["active"] if what == SCHEDULER else node_model("FAST")
        text = (state.folder / "pids" / model).read_text()
        pid = int(text.split()[0])
    else:
        asked = {"generation": status["generation"]}
        pid = int(state.ask(node_model("FAST"), asked)["workers"][0]["pid"])
    os.kill(pid, signal.SIGKILL)


def being_loaded(state: ServerState) -> bool:
    """True if workers of the plan to come still load."""
    prepared = state.control("status")["prepared"]
    return prepared is not None and prepared["up"] < prepared["total"]


def answers(state: ServerState) -> bool:
    try:
        status = state.control("status")
    except ServerError:
        return False
    workers = status["workers"]
    return bool(workers["up"] == workers["total"] and status["state"] == "serving")


@pytest.mark.parametrize("fault", [WORKER, NODE, SCHEDULER, COMMAND])
@pytest.mark.parametrize("moment", ["while loading", "while dropping"])
def test_one_whole_plan_is_left_and_nothing_is_lost(
    state: ServerState, plans: dict[str, Plan], tmp_path: Path, moment: str, fault: str
) -> None:
    first, then = ("apart", "together") if moment == "while loading" else ("together", "apart")
    if state.control("status")["plan_id"] != first:
        change_plan(state.folder, plans[first])
    # Until the swap, loading; from it on, what the old plan had more is dropped.
    halt = "" if moment == "while loading" else str(Step.SWAP)
    reached: Callable[[], bool] = lambda: being_loaded(state)  # noqa: E731
    if halt:
        reached = (tmp_path / halt).exists
    with Load(state.grpc_url) as load:
        wait_for(lambda: load.answered > 10)
        # One server imports the code once; its children are cheap.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        child = context.Process(
            target=change_in_child,
            args=(state.folder, plans[then], tmp_path, halt if fault == COMMAND else ""),
        )
        child.start()
        wait_for(reached)
        strike(state, fault, child)
        child.join()
        wait_for(lambda: answers(state))
        in_force = finish_or_undo_change(state.folder).plan_id
        wait_for(lambda: answers(state))
        before = load.answered
        wait_for(lambda: load.answered > before + 10)
    assert load.wrong == 0
    # Requests that a scheduler had when it was killed may be refused by the next one.
    assert load.refusals == [] or fault == SCHEDULER, load.refusals
    assert in_force == (then if halt else in_force)
    status = state.control("status")
    assert (status["plan_id"], status["prepared"]) == (in_force, None)
    names = [entry.name for entry in (state.folder / "repository").iterdir()]
    nodes = [name for name in names if "_node_" in name]
    assert nodes == [node_model("FAST")]
    assert state.ask(nodes[0], {})["generations"] == [status["generation"]]
