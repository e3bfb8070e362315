"""Two real servers on the same ports, in front of one scheduler and one set of workers.

Either may die.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from flows.release.rollout.change import change_plan
from flows.release.rollout.options import RolloutMode, RolloutOptions
from flows.release.rollout.outcomes import read_outcomes
from flows.release.server.admin import start, stop, take_over
from flows.release.server.running import ServerState, read_state, served_without_keeper, status
from flows.system_metrics import MetricsError
from tests.fakes.plans import HandModel
from tests.ports import free_ports
from tests.triton_backend.serving.artifacts import FACTOR, OFFSET, affine
from tests.triton_backend.serving.small_plans import BATCH, plan, two_stage
from tests.triton_backend.serving.system import owners, processes_of, wait_for
from triton_backend.contract.errors import PoolPipeError
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.repository import CONTROL_MODEL, STANDBY_MODEL, render_repository
from triton_backend.serve_folder.settings import ServeOptions

pytestmark = pytest.mark.slow
CLIENTS = 4
PATIENT_US = 10_000_000
MOST_RETRIES = 2  # each while the request's patience lasts
RETRY_SECONDS = 0.5
PAUSE_SECONDS = 0.02  # of a client between two requests: what restarts needs the processors
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def line(artifacts: Path) -> HandModel:
    return affine(artifacts)


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory, artifacts: Path, line: HandModel
) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("serve")
    options = ServeOptions(artifacts=artifacts, gateways=2)
    render_repository(folder, plan(line, two_stage(), plan_id="first"), options)
    running = start(folder, endpoints())
    yield folder
    groups = {running.data["process_group"], read_state(folder).data["process_group"]}
    assert stop(folder)
    assert not list(Path("/dev/shm").glob(f"poolpipe-{running.data['instance']}*"))
    assert not Path(running.data["socket_folder"]).exists()
    assert not (folder / "state.json").exists()
    assert processes_of(groups) == []


def endpoints() -> Endpoints:
    http, grpc, metrics, _ = free_ports(4)  # the last is for the metrics of the second gateway
    return Endpoints(http=http, grpc=grpc, metrics=metrics)


def ask(state: ServerState, number: int) -> bool:
    """True if one of the servers answers rightly; each request has a connection of its own."""
    # A full batch: a smaller one waits for company until the last moment.
    given = grpc_client.InferInput("x", [BATCH, 3], "FP32")
    line = np.full((BATCH, 3), number % 1000, np.float32)
    given.set_data_from_numpy(line)
    with grpc_client.InferenceServerClient(state.grpc_url, channel_args=OWN_CONNECTION) as client:
        answer = client.infer("affine", [given], timeout=PATIENT_US, client_timeout=20.0)
    assert answer is not None
    found = answer.as_numpy("y")
    assert found is not None
    return bool(np.array_equal(found, line * FACTOR + OFFSET))


class Clients:
    """Clients that ask one request after the other, each of them again where it fails."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(CLIENTS)]
        self.answered = self.retried = self.wrong = 0
        self.lost: list[str] = []

    def _run(self, number: int) -> None:
        while not self._over.wait(PAUSE_SECONDS):
            number += CLIENTS
            try:
                right = self._ask(number)
            except InferenceServerException as error:
                self.lost.append(str(error))
            else:
                self.answered += 1
                self.wrong += not right

    def _ask(self, number: int) -> bool:
        """Ask, and again while a connection ends: the kernel gives some to a server that dies."""
        for _ in range(MOST_RETRIES):
            with contextlib.suppress(InferenceServerException):
                return ask(self._state, number)
            self.retried += 1
            self._over.wait(RETRY_SECONDS)
        return ask(self._state, number)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def nothing_lost(folder: Path) -> Generator[None]:
    """Under load, which goes on for a while after."""
    with Clients(read_state(folder)) as clients:
        wait_for(lambda: clients.answered > 50)
        yield
        before = clients.answered
        wait_for(lambda: clients.answered > before + 50)
    assert (clients.lost, clients.wrong) == ([], 0)


def workers(folder: Path) -> set[int]:
    data = read_state(folder).data
    groups = {data["process_group"], *(server["server_group"] for server in data["servers"])}
    found: set[int] = set()
    for process in processes_of(groups):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name().startswith("worker-"):
                found.add(process.pid)
    assert found
    return found


def workers_by(folder: Path, node: str, gateway: int) -> set[int | None]:
    """The workers of a node as a gateway's model of it has them; empty without an answer."""
    with contextlib.suppress(PoolPipeError):
        said = read_state(folder).ask(node, {}, gateway)
        return {worker["pid"] for worker in said["workers"]}
    return set()


def scheduler(folder: Path) -> dict[str, Any]:
    """The scheduler's entry in the status; empty without an answer."""
    with contextlib.suppress(PoolPipeError):
        return status(folder)["scheduler"]
    return {"active": None, "standby": None}


def is_whole(folder: Path) -> bool:
    if not read_state(folder).data["ready"] or scheduler(folder)["standby"] != "ready":
        return False
    counts = status(folder)["workers"]
    return counts["up"] == counts["total"]


def kill_server(folder: Path, gateway: int) -> int:
    pid = int(read_state(folder).data["servers"][gateway]["triton_pid"])
    os.kill(pid, signal.SIGKILL)
    return pid


def offered(folder: Path, gateway: int) -> int:
    """Requests that a gateway has answered, as it publishes once a second."""
    with contextlib.suppress(MetricsError):
        url = read_state(folder).metrics_urls[gateway]
        return sum(each.ended for each in read_outcomes([url]).values())
    return 0


@pytest.mark.parametrize("which", ["the scheduler's", "the standby's", "the scheduler's again"])
def test_a_server_that_is_killed_costs_a_client_that_retries_nothing(
    folder: Path, which: str
) -> None:
    wait_for(lambda: is_whole(folder))
    servers = {int(server["triton_pid"]) for server in read_state(folder).data["servers"]}
    wait_for(lambda: all(owners(pid) >= servers for pid in workers(folder)))
    before, lives = scheduler(folder), workers(folder)
    active = (CONTROL_MODEL, STANDBY_MODEL).index(before["active"])
    killed = active if "scheduler" in which else 1 - active
    with nothing_lost(folder):
        pid = kill_server(folder, killed)
        wait_for(lambda: scheduler(folder)["active"] is not None)
    wait_for(lambda: is_whole(folder))
    after = scheduler(folder)
    assert (after["active"] == before["active"]) == (killed != active)
    assert (after["life"] == before["life"]) == (killed != active)
    assert workers(folder) == lives  # they belong to both
    assert read_state(folder).data["servers"][killed]["triton_pid"] != pid
    log = (folder / "logs" / "server.log").read_text()
    assert f"tritonserver of gateway-{killed + 1} ended with -9, restarted" in log
    gateways = status(folder)["gateways"]
    assert gateways[f"gateway {killed + 1}"].startswith("runs, restarted")
    with Clients(read_state(folder)):  # both take requests, the new one too
        wait_for(lambda: min(offered(folder, 0), offered(folder, 1)) > 0)


def test_a_node_that_is_killed_keeps_its_workers(folder: Path) -> None:
    """The other server's model of it leads then, and starts a worker that dies then."""
    wait_for(lambda: is_whole(folder))
    lives = workers(folder)
    file = next((folder / "pids").glob("poolpipe_node_FAST*"))
    first = int(file.read_text().split()[0])
    with nothing_lost(folder):
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: file.exists() and int((file.read_text().split() or ["0"])[0]) != first)
    assert workers(folder) == lives
    wait_for(lambda: workers_by(folder, file.name, 0) == {None})  # each is asked for itself
    assert workers_by(folder, file.name, 1) < lives
    victim = min(lives)
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: len(workers(folder) - {victim}) == len(lives))
    wait_for(lambda: is_whole(folder))


@pytest.mark.parametrize("way", [RolloutMode.IN_PLACE, RolloutMode.FLUSH])
def test_a_rollout_changes_both(folder: Path, line: HandModel, way: RolloutMode) -> None:
    wait_for(lambda: is_whole(folder))
    name = f"added-{way}"
    with nothing_lost(folder):
        change_plan(
            folder, plan(line, two_stage(name), plan_id=name), options=RolloutOptions(way=way)
        )
        assert status(folder)["plan_id"] == name
    wait_for(lambda: is_whole(folder))
    state = read_state(folder)
    for gateway in state.gateways:
        body = {"inputs": []}  # refused by Triton where the model is there, unknown where it is not
        told = pytest.raises(PoolPipeError, match="expected 2 inputs but got 0")
        with told:
            state.post(f"/v2/models/{name}/infer", body, gateway)
    folders = [folder / "repository", folder / "gateway-2" / "repository"]
    names = [
        {p.name for p in place.iterdir()} - {CONTROL_MODEL, STANDBY_MODEL} for place in folders
    ]
    assert names[0] == names[1]
    # A restarted server serves the files of the one before.
    with nothing_lost(folder):
        kill_server(folder, 1)
    wait_for(lambda: is_whole(folder))
    assert status(folder)["plan_id"] == name


def test_the_next_keeper_takes_both_over(folder: Path) -> None:
    wait_for(lambda: is_whole(folder))
    state = read_state(folder)
    pids = [server["triton_pid"] for server in state.data["servers"]]
    with nothing_lost(folder):
        os.kill(int(state.data["pid"]), signal.SIGKILL)
        wait_for(lambda: served_without_keeper(folder) is not None)
        take_over(folder)
        wait_for(lambda: all(read_state(folder).data["servers"]))
        assert [s["triton_pid"] for s in read_state(folder).data["servers"]] == pids
        kill_server(folder, 0)
    wait_for(lambda: is_whole(folder))


def test_a_server_that_hangs_is_killed(folder: Path) -> None:
    wait_for(lambda: is_whole(folder))
    hung = int(read_state(folder).data["servers"][1]["triton_pid"])
    os.kill(hung, signal.SIGSTOP)
    wait_for(lambda: read_state(folder).data["servers"][1]["triton_pid"] != hung)
    wait_for(lambda: is_whole(folder))
    assert read_state(folder).data["servers"][0]["triton_pid"] != hung
